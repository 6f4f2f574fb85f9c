"""Count the requests of a node to a real S3 server until all its ranks have a first batch."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.documents import TOKENIZER
from benchmarks.figures import Row
from benchmarks.harness import ONE_THREAD, Child
from benchmarks.scale.simulated_store import short_texts
from testkit.fault_proxy import FaultProxy, start_fault_proxy
from testkit.servers import BUCKET, start_s3

URL = f"s3://{BUCKET}/opening"
_DOCUMENTS, _SHARD_BYTES = 20_000, 40_000
_KINDS = {"of the index": "/index.json", "of lengths": "/lengths/", "of shards": ".mds"}


def count_requests(work: Path, ranks: int, nodes: int) -> Iterator[Row]:
    """Yield the requests of one node and of all nodes, for a first and a later start and a resume.

    The three starts share one cache.
    """
    from cloudload import convert_to_mds, count_tokens

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(start_s3(BUCKET))
        proxy = stack.enter_context(start_fault_proxy(server.endpoint))
        os.environ.update(server.environment())
        texts = ({"text": text} for text in short_texts(_DOCUMENTS))
        convert_to_mds(texts, URL, shard_bytes=_SHARD_BYTES, progress=False)
        count_tokens(URL, tokenizer=str(TOKENIZER), processes=1, progress=False)
        environment = server.environment(proxy.endpoint)
        start_ranks(work / "other", 1, environment, work / "state")
        for start in ("first", "later", "resume"):
            proxy.set_faults([])
            state = work / "state" if start == "resume" else None
            start_ranks(work / "cache", ranks, environment, state)
            found = _sum(proxy)
            everywhere = {f"{name}, {nodes:,} nodes": nodes * found[name] for name in _KINDS}
            yield {"start": start, "ranks": ranks, **found, **everywhere}


def _sum(proxy: FaultProxy) -> dict[str, int]:
    """Count the requests by kind, and the bytes of the responses that contain an index."""
    requests = proxy.requests()
    found = {
        name: sum(part in request.line for request in requests) for name, part in _KINDS.items()
    }
    return {
        **found,
        "others": len(requests) - sum(found.values()),
        "bytes of the index": sum(
            request.body_bytes for request in requests if "/index.json" in request.line
        ),
    }


def start_ranks(cache: Path, ranks: int, environment: dict[str, str], state: Path | None) -> None:
    """Run the ranks of a node until each has its first batch."""
    variables = ONE_THREAD | environment | {"LOCAL_WORLD_SIZE": str(ranks)}
    request = {"cache": str(cache), "size": ranks, "state": state and str(state)}
    children = [Child(read_a_batch, variables, **request, rank=rank) for rank in range(ranks)]
    for child in children:
        child.answer()
    for child in children:
        child.close()


def read_a_batch(cache: str, rank: int, size: int, state: str | None) -> Iterator[str]:
    """Run one rank until its first batch.

    A single rank saves its state to the file `state`. Several ranks resume from that file.
    """
    from cloudload import CloudLoader, Retry

    options: dict[str, Any] = {"tokenizer": str(TOKENIZER), "seq_len": 256, "batch_size": 4}
    options |= {"local": cache, "num_workers": 1, "prefetch_batches": 1, "num_lanes": 120}
    options |= {"retry": Retry(timeout_s=300, deadline_s=600)}  # so that no request is retried
    with CloudLoader(URL, **options, dp_rank=rank, dp_world_size=size) as loader:
        if state and size > 1:
            loader.load_state_dict(json.loads(Path(state).read_text()))
        batches = iter(loader)
        next(batches)
        if state and size == 1:
            Path(state).write_text(json.dumps(loader.state_dict()))
        yield "first batch"
