"""A loader as a side of the race: it makes batches when it has its turn, and reports their cost.

    request     {"data": ..., "tokenizer": ..., ...}
    question    {"seconds": 1.0}
    answer      {"tokens": ..., "documents": ..., "batches": ..., "wall": ..., "cpu": ..., ...}

It needs only the standard library and numpy, so that it runs in any peer's environment.
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
"""A turn ends after a multiple of it, because some loaders deliver several batches at a time."""
SAMPLED_BATCHES = 32


@dataclass(frozen=True)
class Request:
    """What a side is to read, and how."""

    data: Path
    """Has mds/ and texts/*.jsonl: the same documents twice."""
    ids: Path
    """Has their ids: tokens.npy, and offsets.npy between documents."""
    scratch: Path
    """A folder for this side alone."""
    tokenizer: Path
    eos: int
    specials: tuple[int, ...]
    """Ids that frame documents, which are not text."""
    seq_len: int
    batch_size: int
    num_workers: int
    options: dict[str, Any]


@dataclass
class Turn:
    """What a side did in its turn."""

    tokens: float = 0.0
    """Tokens of text: those that frame documents are left out."""
    documents: float = 0.0
    batches: int = 0
    wall: float = 0.0
    cpu: float = 0.0
    """CPU seconds of the process and all its descendants."""
    main_cpu: float = 0.0
    """CPU seconds of the process alone: in a training run, the training process."""


def serve_turns(
    start: Callable[[Request], Callable[[float], Turn]], packages: Sequence[str]
) -> None:
    """Serve turns of some seconds each."""

    def answer(fields: Message) -> Take:
        paths = {name: Path(fields[name]) for name in ("data", "ids", "scratch", "tokenizer")}
        take = start(Request(**fields | paths | {"specials": tuple(fields["specials"])}))
        return lambda question: asdict(take(question["seconds"]))

    serve(answer, packages)


def serve_batches(
    make_batches: Callable[[Request], Iterator[Any]], packages: Sequence[str]
) -> None:
    """Serve turns of a loader: `make_batches` yields the ids of one batch after another, without
    end."""

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
    """Take batches for some seconds. The first ones are looked at, after the clocks have
    stopped."""
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
    """The share of ids that frame documents, and of ids that end one."""
    import numpy as np

    ids = np.concatenate([np.asarray(batch).ravel() for batch in batches])
    return float(np.isin(ids, request.specials).mean()), float((ids == request.eos).mean())
