"""The classes that all targets share, to make decisions from bytes and to report findings."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

MOST_SECONDS, MOST_GROWTH_MB, MOST_INPUT_BYTES = 10, 600, 4096


class Choices:
    """A source of decisions that only depend on bytes. Once the bytes run out, decisions are 0."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    def __bool__(self) -> bool:
        return self._place < len(self._data)

    def take(self, number: int) -> bytes:
        """Return the next `number` bytes, or as many as are left."""
        start, self._place = self._place, self._place + number
        return self._data[start : self._place]

    def number(self, below: int) -> int:
        """Return a number from 0 to `below` - 1."""
        return (
            int.from_bytes(self.take(max(1, (below - 1).bit_length() + 7 >> 3)), "little") % below
        )

    def pick(self, items: Sequence[T]) -> T:
        """Return one of `items`."""
        return items[self.number(len(items))]


class Finding(Exception):
    """An input had an effect that no input may have."""


def expect(is_so: bool, what: str) -> None:
    """Raise `Finding(what)` unless `is_so`."""
    if not is_so:
        raise Finding(what)


@dataclass(frozen=True)
class Target:
    """A function to fuzz, and its first inputs."""

    run: Callable[[bytes], None]
    """Runs an input, and may raise only `CloudloadError`."""
    seeds: Callable[[], list[bytes]]
    """Returns the inputs that an engine runs first, and then mutates."""
    prepare: Callable[[], object] = list
    """Fills caches, so that their time and memory are not attributed to an input."""


def random_seeds() -> list[bytes]:
    """Return random bytes, for targets that use their input only for `Choices`."""
    return [random.Random(seed).randbytes(40) for seed in range(64)]
