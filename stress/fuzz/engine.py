"""What a target is, and the built-in engine, which mutates inputs and checks each of them.

Target       a function that runs an input, and its first inputs
Choices      decisions that a target takes from the bytes of an input
Finding      an effect that no input may have; any error that is not cloudload's is one, too
"""

from __future__ import annotations

import contextlib
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cloudload.errors import CloudloadError

T = TypeVar("T")

MAX_SECONDS, MAX_GROWTH_MB, MAX_INPUT_BYTES = 10, 600, 4096
_TOKENS = (b"[", b"]", b'"', b",", b"{", b"0", b"-", b"9" * 30, b"../", b"\0", b"\xff" * 4, b"null")


class Choices:
    """A source of decisions that only depend on bytes. Once the bytes run out, decisions are 0."""

    def __init__(self, data: bytes) -> None:
        self._data, self._offset = data, 0

    def __bool__(self) -> bool:
        return self._offset < len(self._data)

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes, or as many as are left."""
        start, self._offset = self._offset, self._offset + count
        return self._data[start : self._offset]

    def number(self, below: int) -> int:
        """Return a number from 0 to `below` - 1."""
        taken = self.take(max(1, (below - 1).bit_length() + 7 >> 3))
        return int.from_bytes(taken, "little") % below

    def pick(self, items: Sequence[T]) -> T:
        """Return one of `items`."""
        return items[self.number(len(items))]


class Finding(Exception):
    """An input had an effect that no input may have."""


def expect(is_so: bool, what: str) -> None:
    """Raise `Finding(what)` unless `is_so`."""
    if not is_so:
        raise Finding(what)


def random_seeds() -> list[bytes]:
    """Return random bytes, for targets that use their input only for `Choices`."""
    return [random.Random(seed).randbytes(40) for seed in range(64)]


@dataclass(frozen=True)
class Target:
    """A function to fuzz, and its first inputs."""

    run: Callable[[bytes], None]
    """Runs an input, and may raise only `CloudloadError`."""
    seeds: Callable[[], list[bytes]] = random_seeds
    """Returns the inputs that an engine runs first, and then mutates."""
    prepare: Callable[[], object] = list
    """Fills caches, so that their time and memory are not attributed to an input."""


def check(target: Target, data: bytes) -> None:
    """Run an input. Any exception that this function raises is a finding."""
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(CloudloadError):
        target.run(data)
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) >> 10
    expect(
        grown_mb <= MAX_GROWTH_MB,
        f"memory grew by {grown_mb:,} MB, over the limit of {MAX_GROWTH_MB} MB",
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


def mutations(seeds: list[bytes], rng: random.Random) -> Iterator[bytes]:
    """Yield the seeds, and then endless mutations of the seeds and of earlier inputs."""
    yield from seeds
    pool = list(seeds)
    while True:
        data = bytearray(rng.choice(pool))
        for _ in range(rng.choice((1, 1, 2, 4, 8))):
            _mutate(data, pool, rng)
        del data[MAX_INPUT_BYTES:]
        kept = [bytes(data)] if len(pool) < 4 * len(seeds) else []
        pool[rng.randrange(len(seeds), len(pool) + 1) :] = kept
        yield bytes(data)


def _mutate(data: bytearray, pool: list[bytes], rng: random.Random) -> None:
    at, kind = rng.randrange(len(data) + 1), rng.randrange(6)
    if kind == 0:
        data[at:at] = rng.randbytes(rng.choice((1, 2, 8)))
    elif kind == 1:
        del data[at : at + rng.choice((1, 2, 8, 64))]
    elif kind == 2:
        data[at:at] = rng.choice(_TOKENS)
    elif kind == 3:
        other = rng.choice(pool)
        start = rng.randrange(len(other) + 1)
        data[at:at] = other[start : start + rng.choice((4, 16, 64))]
    elif at < len(data):
        data[at] = rng.randrange(256) if kind == 4 else data[at] ^ 1 << rng.randrange(8)


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
            with time_limit(MAX_SECONDS):
                check(target, data)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return tried + 1, data, f"{type(error).__name__}: {error}"
        tried += 1
        if time.monotonic() > stop or tried == inputs:
            break
    return tried, None, ""
