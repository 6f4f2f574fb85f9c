"""What all targets share: decisions from bytes, and findings."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

MOST_SECONDS, MOST_GROWTH_MB, MOST_INPUT_BYTES = 10, 600, 4096


class Choices:
    """Decisions from bytes: the same bytes give the same decisions, and 0 when they run out."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    def __bool__(self) -> bool:
        return self._place < len(self._data)

    def take(self, number: int) -> bytes:
        """The next bytes, or as many as there are."""
        start, self._place = self._place, self._place + number
        return self._data[start : self._place]

    def number(self, below: int) -> int:
        """A number from 0 to `below` - 1."""
        return (
            int.from_bytes(self.take(max(1, (below - 1).bit_length() + 7 >> 3)), "little") % below
        )

    def pick(self, items: Sequence[T]) -> T:
        """One of them."""
        return items[self.number(len(items))]


class Finding(Exception):
    """What no input may cause."""


def expect(is_so: bool, what: str) -> None:
    """Raise a finding unless it is so."""
    if not is_so:
        raise Finding(what)


@dataclass(frozen=True)
class Target:
    """What reads hostile input, and inputs to begin with."""

    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    prepare: Callable[[], object] = list
    """Makes what is made once, so that no input is charged for it."""


def random_seeds() -> list[bytes]:
    """Choices at random: no bytes are better to begin with than others."""
    return [random.Random(seed).randbytes(40) for seed in range(64)]
