"""A side's half of a race: it makes batches when it is its turn, and says what they cost.

    harness                                   side, a process of its own
    {"data": ..., "tokenizer": ..., ...}  ->  builds its loader and warms it up
                                          <-  {"ready": true, "versions": {...}}
    {"seconds": 1.0}                      ->  makes batches for that long
                                          <-  {"tokens": ..., "documents": ..., "batches": ..., "wall": ..., "cpu": ..., ...}
    end of stdin                          ->  closes its loader and ends

One JSON object a line, over stdin and stdout; whatever a library prints goes to stderr. A side that
cannot run answers {"unavailable": "why"}. Needs nothing but the standard library, so that it runs
in any peer's environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

WARM_UP_S, WARM_UP_BATCHES = 2.0, 16
BATCHES_AT_ONCE = (
    4  # a turn ends after a multiple of it, for some loaders deliver several batches at a time
)
SAMPLED_BATCHES = 32


class UnavailableError(Exception):
    """This side cannot run here; the message says why."""


@dataclass(frozen=True)
class Request:
    """What a side is to read, and how."""

    data: Path
    """Has mds/ and texts/*.jsonl: the same documents twice."""
    ids: Path
    """Has their ids: tokens.npy, and offsets.npy between documents."""
    scratch: Path
    """A folder of this side's own."""
    tokenizer: Path
    eos: int
    specials: tuple[int, ...]
    """Ids that frame documents, which are no text."""
    seq_len: int
    batch_size: int
    num_workers: int
    options: dict[str, Any]


@dataclass
class Turn:
    """What a side did in its turn."""

    tokens: float = 0.0
    """Of text: those that frame documents are left out."""
    documents: float = 0.0
    batches: int = 0
    wall: float = 0.0
    cpu: float = 0.0
    """CPU seconds of the process and all its descendants."""
    main_cpu: float = 0.0
    """CPU seconds of the process alone, which in a training run is the one that trains."""


def serve_batches(
    make_batches: Callable[[Request], Iterator[Any]], packages: Sequence[str]
) -> None:
    """Serve turns of a loader: `make_batches` gives the ids of one batch after another, without an
    end."""

    def start(request: Request) -> Callable[[float], Turn]:
        batches = make_batches(request)
        warm = time.perf_counter() + WARM_UP_S
        count = 0
        while count < WARM_UP_BATCHES or time.perf_counter() < warm:
            next(batches)
            count += 1
        return lambda seconds: take_batches(batches, seconds, request)

    serve(start, packages)


def take_batches(batches: Iterator[Any], seconds: float, request: Request) -> Turn:
    """Take batches for some seconds. What they hold is looked at when the clocks have stopped, and
    of the first ones only."""
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
    """The share of ids that frame documents, and that of ids that end one."""
    import numpy as np

    ids = np.concatenate([np.asarray(batch).ravel() for batch in batches])
    return float(np.isin(ids, request.specials).mean()), float((ids == request.eos).mean())


def serve(start: Callable[[Request], Callable[[float], Turn]], packages: Sequence[str]) -> None:
    """Read the request, get ready, and take a turn whenever asked to."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # the kernel kills it when the harness dies
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    try:
        fields = json.loads(sys.stdin.readline())
        paths = {name: Path(fields[name]) for name in ("data", "ids", "scratch", "tokenizer")}
        take = start(Request(**fields | paths | {"specials": tuple(fields["specials"])}))
        print(
            json.dumps(
                {"ready": True, "versions": {name: metadata.version(name) for name in packages}}
            ),
            file=answers,
        )
        for line in sys.stdin:
            print(json.dumps(asdict(take(json.loads(line)["seconds"]))), file=answers)
    except UnavailableError as error:
        print(json.dumps({"unavailable": str(error)}), file=answers)
    # loaders that wait for their own end keep nobody waiting
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.alarm(10)


def family_cpu() -> float:
    """CPU seconds of this process and all its descendants; those that have ended count, too."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        time.process_time()
        + ended.ru_utime
        + ended.ru_stime
        + sum(map(cpu_of, descendants(os.getpid())))
    )


def cpu_of(pid: int) -> float:
    """CPU seconds of another process; 0 if it has just ended."""
    try:
        return time.clock_gettime(
            (~pid << 3) | 2
        )  # its CPU clock, as clock_getcpuclockid(3) numbers it
    except OSError:
        return 0.0


def descendants(pid: int) -> list[int]:
    """The living descendants of a process."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # threads and processes end meanwhile
            for child in map(int, file.read_text().split()):
                found += [child, *descendants(child)]
    return found
