"""The built-in engine, which mutates inputs and checks each for errors, time and memory."""

from __future__ import annotations

import contextlib
import random
import resource
import signal
import time
from collections.abc import Iterator

from cloudload.errors import CloudloadError
from stress.fuzz.target import (
    MOST_GROWTH_MB,
    MOST_INPUT_BYTES,
    MOST_SECONDS,
    Finding,
    Target,
    expect,
)


def check(target: Target, data: bytes) -> None:
    """Run an input. Any exception that this function raises is a finding."""
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(CloudloadError):
        target.run(data)
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) >> 10
    expect(
        grown_mb <= MOST_GROWTH_MB,
        f"memory grew by {grown_mb:,} MB, over the limit of {MOST_GROWTH_MB} MB",
    )


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise `Finding` if the `with` block takes longer than `seconds`."""

    def stop(*_: object) -> None:
        raise Finding(f"did not finish within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


_TOKENS = (
    b"[",
    b"]",
    b'"',
    b",",
    b"{",
    b"0",
    b"-",
    b"9" * 30,
    b"../",
    b"\0",
    b"\xff\xff\xff\xff",
    b"null",
)


def mutations(seeds: list[bytes], rng: random.Random) -> Iterator[bytes]:
    """Yield the seeds, and then endless mutations of the seeds and of earlier inputs."""
    yield from seeds
    pool = list(seeds)
    while True:
        data = bytearray(rng.choice(pool))
        for _ in range(rng.choice((1, 1, 2, 4, 8))):
            _mutate(data, pool, rng)
        del data[MOST_INPUT_BYTES:]
        pool[rng.randrange(len(seeds), len(pool) + 1) :] = (
            [bytes(data)] if len(pool) < 4 * len(seeds) else []
        )
        yield bytes(data)


def _mutate(data: bytearray, pool: list[bytes], rng: random.Random) -> None:
    place = rng.randrange(len(data) + 1)
    kind = rng.randrange(6)
    if kind == 0:
        data[place:place] = rng.randbytes(rng.choice((1, 2, 8)))
    elif kind == 1:
        del data[place : place + rng.choice((1, 2, 8, 64))]
    elif kind == 2:
        data[place:place] = rng.choice(_TOKENS)
    elif kind == 3:
        other = rng.choice(pool)
        start = rng.randrange(len(other) + 1)
        data[place:place] = other[start : start + rng.choice((4, 16, 64))]
    elif place < len(data):
        data[place] = rng.randrange(256) if kind == 4 else data[place] ^ 1 << rng.randrange(8)


def fuzz(
    target: Target, *, seconds: float, inputs: int | None = None, seed: int = 0
) -> tuple[int, bytes | None, str]:
    """Fuzz a target until `seconds` have passed, `inputs` have run, or there is a finding.

    Returns the number of inputs that ran, the input of the finding or None, and its reason or "".
    """
    tried, stop = 0, time.monotonic() + seconds
    with time_limit(300):
        seeds = target.seeds()
        target.prepare()
    for data in mutations(seeds, random.Random(seed)):
        try:
            with time_limit(MOST_SECONDS):
                check(target, data)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return tried + 1, data, f"{type(error).__name__}: {error}"
        tried += 1
        if time.monotonic() > stop or tried == inputs:
            break
    return tried, None, ""
