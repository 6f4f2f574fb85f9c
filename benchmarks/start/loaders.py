"""Read with a loader in a new process, for `benchmarks.start.first_batches`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Message

STARTED = time.perf_counter()
SEQ_LEN, BATCH_SIZE = 2048, 8


def read(request: dict[str, Any]) -> Iterator[Message]:
    """Read until the first batch or through an epoch, and yield the seconds and the batches.

    `request["what"]` is `first_batch`, `epoch`, or `learn`, which only checks the tokenizer. The
    loader continues to download until the benchmark closes the process.
    """
    # import first, so that a loader's seconds do not include imports
    import streaming  # noqa: F401
    import torch
    import transformers  # noqa: F401

    from cloudload import CloudLoader  # noqa: F401

    if request["what"] == "learn":
        learn_tokenizer(request)
        yield {}
        return
    if "port" in request:
        torch.distributed.init_process_group("gloo")
        torch.distributed.barrier()  # the ranks construct their loaders at the same time
    started = time.perf_counter()
    batches = LOADERS[request["loader"]](request)
    count = 0
    for _ in batches:
        count += 1
        if request["what"] == "first_batch":
            break
    ended = time.perf_counter()
    yield {"seconds": ended - started, "process": ended - STARTED, "batches": count}


def learn_tokenizer(request: dict[str, Any]) -> None:
    """Compare the tokenizer's backends, so that the cache contains the result for later loaders."""
    from cloudload.rows.tokenization.backend import choose_backend
    from cloudload.rows.tokenization.tokenizer import load_tokenizer

    choose_backend(load_tokenizer(request["tokenizer"]).json, "auto", Path(request["cache"]))


def make_cloudload(request: dict[str, Any], **more: Any) -> Any:
    """Create a CloudLoader with one worker, and defaults for all other options."""
    from cloudload import CloudLoader

    return CloudLoader(
        request["data"],
        tokenizer=request["tokenizer"],
        seq_len=SEQ_LEN,
        batch_size=BATCH_SIZE,
        num_workers=1,
        local=request["cache"],
        **more,
    )


def cloudload_batches(request: dict[str, Any]) -> Iterator[Any]:
    """Yield the batches of an endless run, until this node has begun its share of documents."""
    nodes, rank = request.get("nodes", 1), {}
    if "port" not in request:
        os.environ["LOCAL_WORLD_SIZE"] = "1"
        rank = {"dp_rank": request["node"], "dp_world_size": nodes}
    with make_cloudload(request, **rank) as loader:
        begun = 0
        for batch in loader:
            yield batch
            begun += sum(start == 0 for _, _, _, _, start, _ in batch.spans)
            if begun >= loader.num_samples / nodes:
                return


def finite_cloudload_batches(request: dict[str, Any]) -> Iterator[Any]:
    """Yield the batches of a run of one epoch, including its tail."""
    with make_cloudload(request, epochs=1) as loader:
        yield from loader


def streaming_batches(request: dict[str, Any]) -> Iterator[Any]:
    """Yield batches of a shuffled StreamingDataset, with defaults for all other options.

    For a whole epoch, yields untokenized samples, because tokenizing does not change the downloads.
    """
    from streaming import StreamingDataset
    from streaming.base.world import World
    from torch.utils.data import DataLoader

    from benchmarks.peers.streaming_text import ConcatenatedTokens, load_encoder

    if "port" not in request:
        # one rank per node; Streaming detects the workers later
        world = World(request.get("nodes", 1), 1, 1, request["node"])
        World.detect = classmethod(lambda _: world.copy())
    source = StreamingDataset(
        remote=request["data"],
        local=f"{request['cache']}/local",
        shuffle=True,
        batch_size=BATCH_SIZE,
    )
    if request["what"] == "epoch":
        yield from DataLoader(source, batch_size=BATCH_SIZE, num_workers=1)
        return
    encode, at_once = load_encoder(request["tokenizer"], "each")
    rows = ConcatenatedTokens(source, encode, at_once, request["eos"], SEQ_LEN)
    yield from DataLoader(rows, batch_size=BATCH_SIZE, num_workers=1)


LOADERS = {
    "cloudload": cloudload_batches,
    "cloudload_finite": finite_cloudload_batches,
    "streaming": streaming_batches,
}
