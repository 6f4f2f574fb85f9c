"""Datasets with token lengths whose mixtures end, and an oracle that assigns rows from the lengths.

data = Mixtures.write(folder, [["aaa", "bb"], ["cccc"]])
make_loader(data.streams((1.0, 3.0)), epochs=1, local=data.cache)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cloudload import Stream
from testkit.awkward import tokenize
from testkit.best_fit_oracle import choose_stream
from testkit.counted import write_counted

Weights = Sequence[float]


@dataclass(frozen=True)
class Mixtures:
    cache: Path
    folders: list[str]
    documents: list[list[str]]

    @classmethod
    def write(cls, root: Path, documents: list[list[str]]) -> Mixtures:
        """Write one dataset for each list of documents."""
        folders = [
            write_counted(root / str(number), texts, shard_bytes=3_000)
            for number, texts in enumerate(documents)
        ]
        return cls(root / "cache", folders, documents)

    def streams(
        self,
        weights: Weights,
        caps: Sequence[int | None] = (),
        numbers: Sequence[int] | None = None,
    ) -> list[Stream]:
        """A mixture of the first datasets, or of those with the given numbers."""
        chosen = range(len(weights)) if numbers is None else numbers
        caps = caps or [None] * len(weights)
        return [
            Stream(self.folders[number], proportion=weight, max_epochs=cap, name=f"s{number}")
            for number, weight, cap in zip(chosen, weights, caps, strict=False)
        ]

    def sizes(self, min_tokens: int = 0) -> list[list[int]]:
        """The number of tokens of each document by stream, with eos; 0 if it is filtered out."""
        whole = [[len(tokenize(text)) + 1 for text in texts] for texts in self.documents]
        return [[size if size >= min_tokens else 0 for size in sizes] for sizes in whole]


def units(packing: str, sizes: list[int], seq_len: int) -> int:
    """The number of units in one epoch of a stream. `Oracle` explains units."""
    if packing == "concat":
        return sum(sizes)
    return sum(min(1, size) if packing == "cut" else -(-size // seq_len) for size in sizes)


@dataclass
class Oracle:
    """A model of a mixture that counts the units left in each stream.

    With `concat`, a unit is a token. With `one_per_row`, it is a row.
    """

    left: list[int | None]
    num_lanes: int
    row: int = 0
    streams: list[int] = field(default_factory=list)
    """The stream of each row so far; -1 for padding."""
    fills: list[int] = field(default_factory=list)
    """The number of units of each row so far."""

    def take(self, number: int, weights: Weights, first: bool, per_row: int) -> bool:
        """Assign the next `number` rows; after the end, pad. Returns whether the run has ended."""
        is_over = self._is_over(weights, first)
        for _ in range(number):
            stream = -1 if is_over else self._choose(weights)
            self.streams.append(stream)
            self.fills.append(0 if is_over else self._use(stream, per_row))
            self.row += 1
            is_over = is_over or self._is_over(weights, first)
        return is_over

    def _is_over(self, weights: Weights, first: bool) -> bool:
        over = [left == 0 for weight, left in zip(weights, self.left, strict=True) if weight]
        return any(over) if first else all(over)

    def _choose(self, weights: Weights) -> int:
        live = [w if left != 0 else 0 for w, left in zip(weights, self.left, strict=True)]
        return choose_stream(self.row, self.num_lanes, live)

    def _use(self, stream: int, per_row: int) -> int:
        left = self.left[stream]
        used = per_row if left is None else min(per_row, left)
        if left is not None:
            self.left[stream] = left - used
        return used
