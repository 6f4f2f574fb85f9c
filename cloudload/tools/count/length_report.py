"""The report of a count: totals, percentiles, a histogram, and how many documents fit a row."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from cloudload.system import Ints, reports
from cloudload.tools.count.tally import ValueCount

PERCENTILES = (1, 5, 25, 50, 75, 90, 95, 99, 99.9)
ROW_SIZES = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


@dataclass(frozen=True)
class LengthBin:
    """A bar of the histogram: documents with `low ≤ length < high` tokens."""

    low: int
    high: int
    documents: int
    tokens: int


@dataclass(frozen=True)
class Fit:
    """The shares of documents and tokens that fit in rows of `seq_len` tokens.

    Bos and eos are not counted.
    """

    seq_len: int
    documents: float
    """The share of the documents that fit in one row, from 0 to 1."""
    tokens: float
    """The share of the tokens that are in documents that fit in one row, from 0 to 1."""


@dataclass(frozen=True)
class LengthStats:
    """The distribution of the lengths of nonempty documents, without bos and eos."""

    mean: float
    longest: int
    percentiles: Mapping[str, int]
    """Maps percentiles, such as `50` or `99.9`, to lengths: the shortest length that at least this
    percentage of the documents does not exceed."""
    histogram: tuple[LengthBin, ...]
    """One bin for each power of 2."""
    fits: tuple[Fit, ...]


@dataclass(frozen=True)
class CountReport:
    """The result of counting a dataset."""

    dataset: str
    """The dataset's location, without secrets."""
    lengths: str
    """The location of the index of the lengths, without secrets."""
    tokenizer: str
    """The fingerprint of the tokenizer."""
    samples: int
    """Number of samples."""
    documents: int
    """Number of samples with tokens."""
    empty: int
    """Number of samples without tokens."""
    filtered: int
    """Number of samples that the transform filtered out."""
    failed: int
    """Number of bad documents that on_error="skip" left out."""
    tokens: int
    """Number of tokens, without bos and eos."""
    text_bytes: int
    """Bytes of UTF-8 text; 4 for each token, if the data is pre-tokenized."""
    tokens_per_byte: float
    """Tokens per byte of text."""
    stats: LengthStats
    groups: int
    """Number of groups of shards. The lengths of each group are in one file."""
    length_bytes: int
    """Total size of the files of lengths, in bytes."""
    by: str | None = None
    """The column by whose values documents were tallied, or None."""
    values: tuple[ValueCount, ...] = ()
    """Documents and tokens by the values of the column `by`, in descending order of tokens."""
    counted_groups: int = 0
    """Number of groups that this run counted. Earlier runs counted the other groups."""
    seconds: float = 0.0
    """Duration of this run in seconds."""

    def to_json(self) -> str:
        """Return the report as indented JSON."""
        return reports.to_json(self)


class LengthCounter:
    """Counts the documents of each length."""

    def __init__(self) -> None:
        self._short = np.zeros(1 << 16, np.int64)
        self._long: list[Ints] = []

    def add(self, lengths: Ints) -> None:
        """Add the lengths of samples: int64 [samples]. Only samples with tokens are counted."""
        is_short = lengths < len(self._short)
        self._short += np.bincount(lengths[is_short & (lengths > 0)], minlength=len(self._short))
        self._long.append(lengths[~is_short])

    def summarize(self) -> LengthStats:
        """Compute the exact percentiles, histogram and fits of the lengths added so far."""
        long, of_long = np.unique(
            np.concatenate([np.empty(0, np.int64), *self._long]), return_counts=True
        )
        short = np.flatnonzero(self._short)
        lengths = np.concatenate([short, long])
        numbers = np.concatenate([self._short[short], of_long])
        ends, tokens = np.cumsum(numbers), np.cumsum(numbers * lengths)
        total, all_tokens = (int(ends[-1]), int(tokens[-1])) if len(ends) else (0, 0)

        def below(length: int) -> tuple[int, int]:
            index = int(np.searchsorted(lengths, length)) - 1
            return (int(ends[index]), int(tokens[index])) if index >= 0 else (0, 0)

        ranks = [math.ceil(total * each / 100) for each in PERCENTILES]
        return LengthStats(
            mean=all_tokens / max(1, total),
            longest=int(lengths[-1]) if total else 0,
            percentiles={
                f"{each:g}": int(lengths[np.searchsorted(ends, max(1, rank))]) if total else 0
                for each, rank in zip(PERCENTILES, ranks, strict=True)
            },
            histogram=_list_bins(lengths, below),
            fits=tuple(_fit(size, *below(size + 1), total, all_tokens) for size in ROW_SIZES),
        )


def _fit(seq_len: int, documents: int, tokens: int, total: int, all_tokens: int) -> Fit:
    return Fit(seq_len, documents / max(1, total), tokens / max(1, all_tokens))


def _list_bins(lengths: Ints, below: Callable[[int], tuple[int, int]]) -> tuple[LengthBin, ...]:
    """List bins from the shortest to the longest length. Each is twice as wide as the previous."""
    if not len(lengths):
        return ()
    first, last = int(lengths[0]).bit_length() - 1, int(lengths[-1]).bit_length()
    edges = [1 << power for power in range(first, last + 1)]
    return tuple(
        LengthBin(
            low,
            high,
            *(after - before for before, after in zip(below(low), below(high), strict=True)),
        )
        for low, high in itertools.pairwise(edges)
    )
