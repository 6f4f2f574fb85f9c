"""Run a loader as a side of a race, which makes batches during its turns and reports their cost.

    request     {"data": ..., "tokenizer": ..., ...}
    question    {"seconds": 1.0}
    answer      {"tokens": ..., "documents": ..., "batches": ..., "wall": ..., "cpu": ..., ...}

This module needs only the standard library and numpy, so it runs in every peer's environment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Message, Take, family_cpu, serve

WARM_UP_S, WARM_UP_BATCHES = 2.0, 16
BATCHES_AT_ONCE = 4
"""Each turn takes a multiple of this many batches per worker, because some loaders deliver several
batches at a time."""
SAMPLED_BATCHES = 32


@dataclass(frozen=True)
class Request:
    """The data that a side reads, and its settings."""

    data: Path
    """A folder with the same documents as MDS shards in mds/, and as JSON Lines in texts/."""
    ids: Path
    """A folder with the documents' token IDs in tokens.npy, and their bounds in offsets.npy."""
    scratch: Path
    """A folder that only this side uses."""
    tokenizer: Path
    """A folder with tokenizer.json."""
    eos: int
    """The token ID of the eos, which ends each document."""
    specials: tuple[int, ...]
    """The IDs of bos and eos, which frame documents and do not count as text."""
    seq_len: int
    batch_size: int
    num_workers: int
    options: dict[str, Any]


@dataclass
class Turn:
    """The work that a side does in one turn, and its cost."""

    tokens: float = 0.0
    """The number of text tokens, without bos and eos. It is an estimate if the side is a loader."""
    documents: float = 0.0
    """The number of documents. It is an estimate if the side is a loader."""
    batches: int = 0
    wall: float = 0.0
    """Seconds of wall time."""
    cpu: float = 0.0
    """CPU seconds of the process and all its descendants."""
    main_cpu: float = 0.0
    """CPU seconds of the process alone, which for a loader is the training process."""


def serve_turns(
    start: Callable[[Request], Callable[[float], Turn]], packages: Sequence[str]
) -> None:
    """Serve turns whose duration the benchmark chooses.

    `start` prepares the side, and returns a function that takes a turn of the given seconds.
    """

    def answer(fields: Message) -> Take:
        paths = {name: Path(fields[name]) for name in ("data", "ids", "scratch", "tokenizer")}
        take = start(Request(**fields | paths | {"specials": tuple(fields["specials"])}))
        return lambda question: asdict(take(question["seconds"]))

    serve(answer, packages)


def serve_batches(
    make_batches: Callable[[Request], Iterator[Any]], packages: Sequence[str]
) -> None:
    """Warm up a loader, and serve its turns. `make_batches` yields token IDs without end."""

    def start(request: Request) -> Callable[[float], Turn]:
        batches = make_batches(request)
        warm = time.perf_counter() + WARM_UP_S
        count = 0
        while count < WARM_UP_BATCHES or time.perf_counter() < warm:
            next(batches)
            count += 1
        return lambda seconds: take_batches(batches, seconds, request)

    serve_turns(start, packages)


def take_batches(batches: Iterator[Any], seconds: float, request: Request) -> Turn:
    """Take batches for at least `seconds`.

    The numbers of text tokens and documents are estimated from the first 32 batches. The estimate
    is not part of the timing.
    """
    at_once = BATCHES_AT_ONCE * max(1, request.num_workers)
    sample: list[Any] = []
    turn, ids = Turn(), 0
    wall, cpu, main_cpu = time.perf_counter(), family_cpu(), time.process_time()
    while turn.batches % at_once or time.perf_counter() - wall < seconds:
        batch = next(batches)
        ids += batch.size if isinstance(batch.size, int) else batch.numel()
        turn.batches += 1
        if len(sample) < SAMPLED_BATCHES:
            sample.append(batch)
    turn.main_cpu = time.process_time() - main_cpu
    turn.wall, turn.cpu = time.perf_counter() - wall, family_cpu() - cpu
    framing, documents = shares_of(sample, request)
    turn.tokens, turn.documents = ids * (1 - framing), ids * documents
    return turn


def shares_of(batches: Sequence[Any], request: Request) -> tuple[float, float]:
    """Return the share of IDs that are bos or eos, and the share that is eos."""
    import numpy as np

    ids = np.concatenate([np.asarray(batch).ravel() for batch in batches])
    return float(np.isin(ids, request.specials).mean()), float((ids == request.eos).mean())
