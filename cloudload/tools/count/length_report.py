"""The report of a count: totals, percentiles, a histogram, and how many documents fit a row.

Documents and tokens are also counted by the values of a column, such as their source:

    lengths of a shard, its column ─► Tally ─► merged over all shards and groups ─► ValueCount
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cloudload.data import Dataset, Shard, decode_value
from cloudload.errors import DatasetError
from cloudload.system import Ints, counted, escape, reports

PERCENTILES = (1, 5, 25, 50, 75, 90, 95, 99, 99.9)
ROW_SIZES = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)

_BAR = 19
_PERCENTILES_PER_LINE = 5
_MOST_SHOWN, _MOST_CHARACTERS, _MOST_TITLE_CHARACTERS = 50, 80, 50
_MOST_WIDE_LABELS = 16
_MOST_DATASETS = 10
_UNITS = (("M", 1 << 20), ("k", 1 << 10))

MOST_VALUES = 10_000
"""Maximum number of distinct values of a column. The report lists all of them."""


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

    def describe(self) -> Iterator[str]:
        """Yield the distribution as lines of text."""
        yield "tokens per document, without bos and eos"
        yield f"  mean {self.mean:,.1f}  longest {self.longest:,}"
        percentiles = [f"p{name} {length:,}" for name, length in self.percentiles.items()]
        for start in range(0, len(percentiles), _PERCENTILES_PER_LINE):
            yield "  " + "  ".join(percentiles[start : start + _PERCENTILES_PER_LINE])
        yield from ("", f"  {'tokens':>21}  {'documents':>14}  {'tokens':>18}")
        most = max(each.documents for each in self.histogram)
        for each in self.histogram:
            span = f"{each.low:,} to {each.high - 1:,}"
            bar = "█" * -(-each.documents * _BAR // most)
            yield f"  {span:>21}  {each.documents:>14,}  {each.tokens:>18,}  {bar}"
        yield from ("", "documents that fit in one row")
        for fit in self.fits:
            if fit.documents > 0:
                yield (
                    f"  seq_len {fit.seq_len:>7,}  {fit.documents:>7.2%} of documents, "
                    f"{fit.tokens:>7.2%} of tokens"
                )


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
    datasets: Mapping[str, int] = field(default_factory=dict)
    """Number of tokens of each dataset by its location; empty for a single dataset."""
    counted_groups: int = 0
    """Number of groups that this run counted. Earlier runs counted the other groups."""
    seconds: float = 0.0
    """Duration of this run in seconds."""

    def to_json(self) -> str:
        """Return the report as indented JSON."""
        return reports.to_json(self)

    def describe(self) -> Iterator[str]:
        """Yield the report as lines of text."""
        absent = {"empty": self.empty, "filtered": self.filtered, "bad": self.failed}
        left_out = ", ".join(f"{count:,} {what}" for what, count in absent.items() if count)
        more = f" ({left_out} left out)" if left_out else ""
        yield f"{self.dataset}: {counted(self.tokens, 'token')}"
        yield f"  documents  {self.documents:,}{more}"
        text = counted(self.text_bytes, "byte")
        yield f"  text       {text}, {self.tokens_per_byte:.4f} tokens per byte"
        yield f"  lengths    {self.lengths} ({counted(self.length_bytes, 'byte')})"
        if self.datasets:
            most = sorted(self.datasets.items(), key=lambda each: -each[1])[:_MOST_DATASETS]
            yield f"  datasets   {len(self.datasets):,}, the largest:"
            yield from (f"             {name} {tokens:,}" for name, tokens in most)
        yield f"  seconds    {self.seconds:.1f}"
        if self.by is not None:
            yield from ("", *self._describe_values())
        if self.documents:
            yield from ("", *self.stats.describe())

    def _describe_values(self) -> Iterator[str]:
        shown, more = self.values[:_MOST_SHOWN], self.values[_MOST_SHOWN:]
        yield from (f"by {self.by}", f"  {'documents':>14}  {'tokens':>18}  {'share':>7}")
        yield from (each.describe(each.value[:_MOST_CHARACTERS] or '""') for each in shown)
        if more:
            rest = ValueCount(
                f"({len(more):,} other values, in --json)",
                sum(each.documents for each in more),
                sum(each.tokens for each in more),
                sum(each.share for each in more),
            )
            yield rest.describe(rest.value)


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

    def merge(self, other: LengthCounter) -> None:
        """Add the lengths that another counter has counted."""
        self._short += other._short
        self._long += other._long

    def summarize(self) -> LengthStats:
        """Compute the exact percentiles, histogram and fits of the lengths added so far."""
        # short lengths are counted as they are added, and long ones only now
        long, of_long = np.unique(
            np.concatenate([np.empty(0, np.int64), *self._long]), return_counts=True
        )
        short = np.flatnonzero(self._short)
        lengths = np.concatenate([short, long])
        counts = np.concatenate([self._short[short], of_long])
        # documents and tokens up to each length, so percentiles, bins and fits are lookups
        ends, tokens = np.cumsum(counts), np.cumsum(counts * lengths)
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


def plot_lengths(stats: LengthStats, tokens: int, dataset: str, path: Path) -> None:
    """Draw the shares of documents and of tokens by length; see `draw_picture`.

    `tokens` and `dataset` are named above the histogram.
    """
    bins, name = stats.histogram, escape(dataset)
    if len(name) > _MOST_TITLE_CHARACTERS:
        name = f"…{name[-_MOST_TITLE_CHARACTERS:]}"
    name = name.replace("$", r"\$")  # matplotlib would start a formula at $
    title = f"{tokens:,} tokens in {name}"
    edges = [each.low for each in bins] + [each.high for each in bins[-1:]]
    size = 10 if len(edges) <= _MOST_WIDE_LABELS else 8
    with reports.draw_picture(path, title, _summarize(stats)) as axes:
        for shift, values, color, name in (
            (0.27, [each.documents for each in bins], reports.BLUE, "share of documents"),
            (0.73, [each.tokens for each in bins], reports.ORANGE, "share of tokens"),
        ):
            shares = [100 * value / max(1, sum(values)) for value in values]
            centers = [index + shift for index in range(len(bins))]
            axes.bar(centers, shares, 0.44, color=color, label=name)
        axes.set_xticks(range(len(edges)), [_shorten(edge) for edge in edges], fontsize=size)
        axes.set_xlabel("tokens per document, without bos and eos")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:g}%")
        axes.legend(frameon=False)


def _summarize(stats: LengthStats) -> str:
    shown = [f"p{name} {stats.percentiles[name]:,}" for name in ("5", "50", "95", "99")]
    return "    ".join([f"mean {stats.mean:,.1f}", *shown, f"longest {stats.longest:,}"])


def _shorten(length: int) -> str:
    """Format a power of 2 as a label, such as 512 or 4k."""
    for unit, size in _UNITS:
        if length >= size:
            return f"{length // size}{unit}"
    return str(length)


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

    def describe(self, name: str) -> str:
        """Describe the counts as a row of a table that ends with a name of the value."""
        return f"  {self.documents:>14,}  {self.tokens:>18,}  {self.share:>7.2%}  {name}"


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
        column = shard.column_index(self.column)
        starts, stops = shard.find_values(np.arange(len(lengths)), column)
        data, found = shard.data, dict[bytes, int]()
        indices = [
            found.setdefault(bytes(data[start:stop]), len(found))
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        ]
        is_document = lengths > 0
        of_documents = np.array(indices, np.int64)[is_document]
        documents = np.bincount(of_documents, minlength=len(found))
        tokens = np.zeros(len(found), np.int64)
        np.add.at(tokens, of_documents, lengths[is_document])
        encoding = shard.info.columns[column].encoding
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
