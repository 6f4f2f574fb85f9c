"""Count documents and tokens by the values of a column, such as the source of each document.

lengths of a shard, its column ─► Tally ─► merged over all shards and groups ─► ValueCount
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from cloudload.data import Dataset, Shard, decode_value
from cloudload.errors import DatasetError
from cloudload.system import Ints

MOST_VALUES = 10_000
"""Maximum number of distinct values of a column. The report lists all of them."""


@dataclass(frozen=True)
class ValueCount:
    """Counts of the documents that have one value of a column."""

    value: str
    """The value, as text."""
    documents: int
    """Number of samples with tokens."""
    tokens: int
    """Number of tokens in these samples, without bos and eos."""
    share: float
    """Share of all tokens that these samples contain, from 0 to 1."""


@dataclass
class Tally:
    """Counts of samples that have tokens, and of their tokens, by the values of a column."""

    column: str
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """(documents, tokens) by value; (0, 0) if only empty or filtered samples have the value."""

    def add_shard(self, shard: Shard, lengths: Ints) -> None:
        """Add all samples of a shard, whose lengths are int64 [samples].

        Raises `DatasetError` for more than 10,000 values, for a column that does not exist or
        cannot be read, and for a damaged sample.
        """
        number = shard.column_index(self.column)
        starts, stops = shard.find_values(np.arange(len(lengths)), number)
        data, found = shard.data, dict[bytes, int]()
        indices = [
            found.setdefault(bytes(data[start:stop]), len(found))
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        ]
        is_document = lengths > 0
        numbers = np.array(indices, np.int64)[is_document]
        documents = np.bincount(numbers, minlength=len(found))
        tokens = np.zeros(len(found), np.int64)
        np.add.at(tokens, numbers, lengths[is_document])
        encoding = shard.info.columns[number].encoding
        for value, index in found.items():
            self._add(_show(encoding, value, shard), int(documents[index]), int(tokens[index]))

    def merge(self, other: Tally) -> None:
        """Add the counts of another tally. Raises `DatasetError` for more than 10,000 values."""
        for value, (documents, tokens) in other.counts.items():
            self._add(value, documents, tokens)

    def list_values(self) -> tuple[ValueCount, ...]:
        """Return the count of each value, in descending order of tokens."""
        total = max(1, sum(tokens for _, tokens in self.counts.values()))
        return tuple(
            ValueCount(value, documents, tokens, tokens / total)
            for value, (documents, tokens) in sorted(
                self.counts.items(), key=lambda item: (-item[1][1], item[0])
            )
        )

    def _add(self, value: str, documents: int, tokens: int) -> None:
        before = self.counts.get(value, (0, 0))
        self.counts[value] = before[0] + documents, before[1] + tokens
        if len(self.counts) > MOST_VALUES:
            raise DatasetError(
                f"column {self.column!r} has more than {MOST_VALUES:,} different values, such as "
                f"{value[:100]!r}. Choose a column with fewer values, such as the source of the "
                "documents"
            )


def _show(encoding: str, value: bytes, shard: Shard) -> str:
    try:
        decoded = decode_value(encoding, value)
        return decoded.decode() if isinstance(decoded, bytes) else str(decoded)
    except (ValueError, RecursionError) as error:
        raise DatasetError(
            f"{shard.name} has a value {value[:100]!r} that is not {encoding}: {str(error)[:300]}. "
            "Convert the corpus again, or choose a different column"
        ) from error


def check_column(dataset: Dataset, column: str) -> None:
    """Raise `DatasetError` unless every shard of a dataset has the column."""
    for columns in dataset.table.column_sets():
        names = [each.name for each in columns]
        if column not in names:
            shard = next(each for each in dataset.shards if each.columns == columns)
            raise DatasetError(
                f"{dataset.location} has no column {column!r} in {shard.raw.name}. Its columns "
                f"are: {', '.join(names)}. Choose one of them, or convert again and add the column "
                "with --keep"
            )


def merge_tallies(column: str, tallies: Iterable[Tally | None]) -> Tally:
    """Merge the tallies of one column. Items that are None are ignored."""
    merged = Tally(column)
    for tally in tallies:
        if tally is not None:
            merged.merge(tally)
    return merged
