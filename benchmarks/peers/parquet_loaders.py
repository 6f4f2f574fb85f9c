"""Read Parquet files where they are with one of several loaders, tokenize, and cut rows.

    request     {"loader": "litdata", "data": "s3://corpus", ...}
    question    {}                  builds the loader, and takes its first batch
    question    {"seconds": 2.0}    takes batches for this time

All loaders have one worker, shuffle, and concatenate documents with an eos after each. cloudload
reads with its defaults. `datasets` streams, as in `benchmarks.peers.hf_datasets`. LitData reads
with its `ParquetLoader` and an index made before, and its documents are tokenized as those of
`datasets`, in groups. This module needs only the packages of its loader.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from benchmarks.harness import Message, Take, family_cpu, serve

PACKAGES = {"cloudload": "cloudload", "datasets": "datasets", "litdata": "litdata"}
_AT_ONCE, _SHUFFLE_BUFFER = 128, 1_000


def start(request: Message) -> Take:
    """Import what the loader needs, so that it is not timed."""
    make = LOADERS[request["loader"]](request)
    batches: Iterator[Any] = iter(())

    def take(question: Message) -> Message:
        nonlocal batches
        began, cpu_s, tokens = time.perf_counter(), family_cpu(), 0
        if not question:
            batches = make()
            next(batches)
        while time.perf_counter() - began < question.get("seconds", 0.0):
            tokens += next(batches).numel()
        wall_s = time.perf_counter() - began
        return {"wall": wall_s, "cpu": family_cpu() - cpu_s, "tokens": tokens}

    return take


def _with_cloudload(request: Message) -> Callable[[], Iterator[Any]]:
    from cloudload import CloudLoader

    def make() -> Iterator[Any]:
        loader = CloudLoader(
            request["data"],
            tokenizer=request["tokenizer"],
            seq_len=request["seq_len"],
            batch_size=request["batch_size"],
            num_workers=1,
            local=request["cache"],
        )
        return (batch["input_ids"] for batch in loader)

    return make


def _with_datasets(request: Message) -> Callable[[], Iterator[Any]]:
    from datasets import load_dataset
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make() -> Iterator[Any]:
        documents = load_dataset(
            "parquet",
            data_files=f"{request['data']}/*.parquet",
            split="train",
            streaming=True,
            columns=["text"],
            cache_dir=request["cache"],
        )
        cut = _make_cutter(request)
        rows = (
            documents.shuffle(seed=17, buffer_size=_SHUFFLE_BUFFER)
            .map(
                lambda samples: {"ids": list(cut(samples["text"]))},
                batched=True,
                batch_size=_AT_ONCE,
                remove_columns=["text"],
            )
            .repeat(None)
            .with_format("torch")
        )
        size = request["batch_size"]
        return (batch["ids"] for batch in StatefulDataLoader(rows, size, num_workers=1))

    return make


def _with_litdata(request: Message) -> Callable[[], Iterator[Any]]:
    import torch
    from litdata import StreamingDataset
    from litdata.streaming import downloader
    from litdata.streaming.item_loader import ParquetLoader

    # its client otherwise refuses a server without TLS, such as the one of the benchmark
    vars(downloader)["_OBSTORE_CLIENT_OPTIONS"]["allow_http"] = True

    class Rows(torch.utils.data.IterableDataset[Any]):
        def __init__(self, source: Any) -> None:
            self._source = source

        def __iter__(self) -> Iterator[Any]:
            cut = _make_cutter(request)
            while True:
                samples = iter(self._source)
                while texts := [sample["text"] for sample in islice(samples, _AT_ONCE)]:
                    yield from cut(texts)

    def make() -> Iterator[Any]:
        source = StreamingDataset(
            request["data"],
            item_loader=ParquetLoader(),
            index_path=request["index"],
            cache_dir=request["cache"],
            shuffle=True,
            seed=17,
            storage_options=request["storage_options"],
        )
        return iter(torch.utils.data.DataLoader(Rows(source), request["batch_size"], num_workers=1))

    return make


def _make_cutter(request: Message) -> Callable[[list[str]], Any]:
    """A function that tokenizes documents, and cuts their IDs into rows."""
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{request['tokenizer']}/tokenizer.json")

    def cut(texts: list[str]) -> Any:
        found = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        parts = [np.array([*each.ids, request["eos"]], np.int64) for each in found]
        ids = np.concatenate(parts)
        whole = len(ids) // request["seq_len"] * request["seq_len"]
        return ids[:whole].reshape(-1, request["seq_len"])

    return cut


LOADERS: dict[str, Callable[[Message], Callable[[], Iterator[Any]]]] = {
    "cloudload": _with_cloudload,
    "datasets": _with_datasets,
    "litdata": _with_litdata,
}


if __name__ == "__main__":
    serve(start)
