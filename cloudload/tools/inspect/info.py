"""Summarize an MDS dataset: counts, bytes and columns from the index, sizes from a few shards.

    index.json                        exact      samples, shards, bytes, columns, codecs, hashes
    offsets of some shards            sampled    the sizes of samples; exact if all shards are read
    convert-report.json, if any       exact      the writer, and the bytes of text

Sizes are summarized as minimum, median, mean and maximum, and a histogram with doubling bins:

    sizes   3 5 6 7 12 40        bins   [2, 4) 1   [4, 8) 3   [8, 16) 1   [16, 32) 0   [32, 64) 1
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from cloudload.config import Stream
from cloudload.data import (
    Dataset,
    Location,
    Retry,
    document_columns,
    list_warnings,
    open_corpus,
    open_shard_start,
    own_objects,
    redact,
    selections,
    shard_entries,
)
from cloudload.errors import StoreError
from cloudload.run import find_streams
from cloudload.system import (
    Ints,
    counted,
    escape,
    map_in_order,
    reports,
)

NO_COMPRESSION = "none"
_MOST_REPORT_BYTES = 1 << 26
_NUM_THREADS = 8
_BAR_WIDTH = 40
_FEWEST_DRAWN = 5
_MOST_DATASETS = 5

Item = TypeVar("Item")


@dataclass(frozen=True)
class Bin:
    """The number of values from `start` up to, but not including, `stop`."""

    start: int
    stop: int
    count: int


@dataclass(frozen=True)
class Distribution:
    """A summary of the distribution of non-negative integers."""

    count: int
    """Number of values."""
    least: int
    """The smallest value."""
    median: int
    """The lower median."""
    mean: float
    """The arithmetic mean."""
    most: int
    """The largest value."""
    bins: tuple[Bin, ...]
    """A histogram without gaps. A bin reaches from a power of 2 to the next one, or is [0, 1)."""

    def describe(self) -> Iterator[str]:
        """Yield the range, the median and the mean, and a bar for each bin."""
        if self.least == self.most:
            yield f"{self.most:,}" + (f" in each of {self.count:,}" if self.count > 1 else "")
            return
        yield f"{self.least:,} to {self.most:,}, median {self.median:,}, mean {self.mean:,.1f}"
        if len(self.bins) == 1 or self.count < _FEWEST_DRAWN:
            return
        ranges = [f"{each.start:,} to {each.stop - 1:,}" for each in self.bins]
        most = max(each.count for each in self.bins)
        width, digits = max(map(len, ranges)), len(f"{most:,}")
        for text, each in zip(ranges, self.bins, strict=True):
            bar = "█" * -(-_BAR_WIDTH * each.count // most)
            yield f"{text:>{width}}  {each.count:>{digits},}  {bar}".rstrip()

    @staticmethod
    def of(values: Ints) -> Distribution | None:
        """Compute the distribution of `values`, int64 [values]; None without values."""
        if not len(values):
            return None
        # frexp returns the bit length: 0 ─► 0, 1 ─► 1, 2 and 3 ─► 2, 4 to 7 ─► 3
        _, lengths = np.frexp(values.astype(np.float64))
        counts = np.bincount(lengths)
        first = int(lengths.min())
        bins = [
            Bin(_bin_start(length), 1 << length, count)
            for length, count in enumerate(counts[first:].tolist(), first)
        ]
        middle = (len(values) - 1) // 2
        return Distribution(
            count=len(values),
            least=int(values.min()),
            median=int(np.partition(values, middle)[middle]),
            mean=round(float(values.mean()), 1),
            most=int(values.max()),
            bins=tuple(bins),
        )


def _bin_start(length: int) -> int:
    return 1 << (length - 1) if length else 0


@dataclass(frozen=True)
class ColumnInfo:
    """A column of a dataset."""

    name: str
    """The column's name."""
    encoding: str
    """The MDS encoding, such as `str` or `ndarray:uint16:2048`."""
    bytes: int | None
    """Bytes per sample; None if they vary."""
    holds: str
    """`text`, `token IDs`, `text or token IDs`, `a number`, `JSON`, or `other` if cloudload does
    not read it."""
    shards: int
    """Number of shards that have the column with this encoding."""
    tokens: int | None
    """Number of token IDs in the column; None if the index does not determine it."""

    def describe(self, width: int, num_shards: int) -> str:
        """Describe the column; its name takes `width` cells, of a dataset of `num_shards`."""
        text = f"{escape(self.name):<{width}}  {self.encoding}"
        if self.holds not in (self.encoding, "JSON", "a number"):
            text += f"  {self.holds}"
        if self.tokens is not None:
            text += f" ({self.tokens:,})"
        if self.shards < num_shards:
            text += f"  in {self.shards:,} of {counted(num_shards, 'shard')}"
        return text


@dataclass(frozen=True)
class DatasetInfo:
    """A summary of an MDS dataset. All values are exact, except `sample_bytes` if it is sampled."""

    dataset: str
    """The dataset's location, without secrets."""
    samples: int
    """Number of samples."""
    shards: int
    """Number of shards."""
    raw_bytes: int
    """Bytes of the shards before compression; an estimate for Parquet files."""
    stored_bytes: int
    """Bytes of the shards as stored."""
    columns: tuple[ColumnInfo, ...]
    """The columns. A column is listed once for each encoding that it has in a shard."""
    compression: Mapping[str, int]
    """Number of shards with each compression, such as `zstd` or `none`."""
    hashes: Mapping[str, int]
    """Number of shards whose stored file has a hash of each algorithm."""
    samples_per_shard: Distribution | None
    """Samples in each shard; None without shards."""
    shard_bytes: Distribution | None
    """Raw bytes of each shard; None without shards."""
    sample_bytes: Distribution | None
    """Bytes of each sample, all columns together; None if no shard was read."""
    shards_read: int
    """Number of shards read for `sample_bytes`, which is exact if all shards were read."""
    writer: str | None
    """The program that wrote the dataset; None if it wrote no report."""
    text_bytes: int | None
    """Bytes of UTF-8 text in the documents, from the writer's report; None without a report."""
    index_hash: str
    """SHA-256 of `index.json`, in hex digits; "" for a glob of datasets."""
    datasets: Mapping[str, int] = field(default_factory=dict)
    """Number of samples of each dataset of a glob, by its name; empty for a single dataset."""
    warnings: tuple[str, ...] = ()
    """Problems that a loader would also mention, such as large row groups."""
    selections: Mapping[str, int] = field(default_factory=dict)
    """Number of documents of each selection beside the dataset, by name."""

    def to_json(self) -> str:
        """Return the summary as indented JSON."""
        return reports.to_json(self)

    def describe(self) -> Iterator[str]:
        """Yield the summary as lines of text."""
        ratio = f" ({self.stored_bytes / self.raw_bytes:.0%})" if self.raw_bytes else ""
        yield self.dataset
        if self.datasets:
            order = sorted(self.datasets.items(), key=lambda each: -each[1])
            most = ", ".join(f"{name} {count:,}" for name, count in order[:_MOST_DATASETS])
            yield f"  datasets     {len(order):,}, the largest: {most}"
        yield f"  samples      {self.samples:,}"
        yield f"  shards       {self.shards:,}"
        about = "about " if any(form in self.compression for form in shard_entries.VIRTUAL) else ""
        yield f"  bytes        {about}{self.raw_bytes:,} raw, {self.stored_bytes:,} stored{ratio}"
        if self.text_bytes:
            yield f"  text         {counted(self.text_bytes, 'byte')} of UTF-8"
        width = max(len(escape(column.name)) for column in self.columns)
        first, *others = (column.describe(width, self.shards) for column in self.columns)
        yield f"  columns      {first}"
        yield from (f"               {column}" for column in others)
        yield f"  compression  {self._describe_shares(self.compression)}"
        yield f"  hashes       {self._describe_shares(self.hashes) or 'none'}"
        yield f"  written by   {self.writer or 'unknown'}"
        if self.index_hash:
            yield f"  index        sha256 {self.index_hash[:16]}"
        for name, selected in self.selections.items():
            yield f"  selection    {name}: {counted(selected, 'document')}"
        source = ""
        if self.sample_bytes is not None and self.sample_bytes.count < self.samples:
            samples = counted(self.sample_bytes.count, "sample")
            source = f" (sampled: {samples} of {counted(self.shards_read, 'shard')})"
        for title, found in (
            ("samples per shard", self.samples_per_shard),
            (f"bytes per sample, all columns{source}", self.sample_bytes),
        ):
            if found is not None:
                yield from ("", f"  {title}", *(f"    {line}" for line in found.describe()))
        if self.warnings:
            yield from ("", *(f"  warning: {text}" for text in self.warnings))

    def _describe_shares(self, shards_of: Mapping[str, int]) -> str:
        """List names, each with its number of shards, unless all shards have it."""
        return ", ".join(
            name if count == self.shards else f"{name} ({count:,} of {self.shards:,})"
            for name, count in shards_of.items()
        )


def read_info(
    dataset: str | os.PathLike[str],
    *,
    split: str | None = None,
    sample: int = 8,
    retry: Retry | None = None,
) -> DatasetInfo:
    """Summarize an MDS dataset.

    Reads the index, the first bytes of a few shards, and the report that `convert` wrote.

    Args:
        dataset: the folder or URL that contains `index.json`, or that contains the folder `split`;
            or a glob of several datasets.
        split: the subfolder to summarize, such as `train`.
        sample: number of shards whose offsets are read for the sizes of samples, spread evenly over
            the dataset. With 0, no shard is read. If the dataset has at most this number of shards,
            the sizes are exact.
        retry: how long to retry a request to the store.

    Raises:
        ValueError: an argument is invalid.
        DatasetError: the index or a shard is damaged, or the dataset has no samples.
        StoreError: the index or a shard cannot be read.
    """
    if sample < 0:
        raise ValueError(f"sample is {sample}. Use an integer of at least 0")
    stream, retry = Stream(os.fspath(dataset), split=split), retry or Retry()
    streams = find_streams([stream], retry).streams
    found = open_corpus([each.locate(retry) for each in streams]).datasets
    pairs = [(each, shard) for each in found for shard in each.shards]
    shards = tuple(shard for _, shard in pairs)
    # the offsets of a virtual shard are only known once it was written
    stored = [pair for pair in pairs if pair[1].samples and not pair[1].is_virtual]
    chosen = spread_items(stored, sample)
    samples = sum(shard.samples for shard in shards)
    is_one = len(found) == 1
    report = _read_report(found[0].location, samples) if is_one else None
    return DatasetInfo(
        dataset=str(found[0].location) if is_one else redact(stream.url),
        samples=samples,
        shards=len(shards),
        raw_bytes=sum(shard.raw.bytes for shard in shards),
        stored_bytes=sum(shard.stored.bytes for shard in shards),
        columns=_list_columns(shards),
        compression=dict(Counter(shard.compression or NO_COMPRESSION for shard in shards)),
        hashes=dict(Counter(name for shard in shards for name in shard.stored.hashes)),
        samples_per_shard=_distribute(shards, lambda shard: shard.samples),
        shard_bytes=_distribute(shards, lambda shard: shard.raw.bytes),
        sample_bytes=Distribution.of(_read_sizes(chosen)),
        shards_read=len(chosen),
        writer="cloudload convert" if report is not None else None,
        text_bytes=(report or {}).get("text_bytes"),
        index_hash=found[0].index_hash if is_one else "",
        datasets={}
        if is_one
        else {
            stream.label: int(each.table.samples.sum())
            for stream, each in zip(streams, found, strict=True)
        },
        warnings=tuple(text for each in found for text in list_warnings(each)),
        selections=_count_selected(found[0]) if is_one else {},
    )


def _count_selected(dataset: Dataset) -> dict[str, int]:
    """The number of documents of each selection; none if the store does not list them."""
    try:
        found = selections.files.list_selections(dataset)
    except StoreError:
        return {}
    return {name: index.selected for name, index in found.items()}


def spread_items(items: Sequence[Item], most: int | None) -> Sequence[Item]:
    """Choose at most `most` items, spread evenly, or all items if `most` is None."""
    if most is None or most >= len(items):
        return items
    return [items[index * len(items) // most] for index in range(most)]


def _distribute(
    shards: Sequence[shard_entries.ShardInfo], value: Callable[[shard_entries.ShardInfo], int]
) -> Distribution | None:
    return Distribution.of(np.fromiter(map(value, shards), np.int64, len(shards)))


def _list_columns(shards: Iterable[shard_entries.ShardInfo]) -> tuple[ColumnInfo, ...]:
    num_shards: Counter[shard_entries.Column] = Counter()
    num_samples: Counter[shard_entries.Column] = Counter()
    # group shards first, because in most datasets all of them share one tuple of columns
    for columns, group in _group_by_columns(shards).items():
        for column in columns:
            num_shards[column] += len(group)
            num_samples[column] += sum(shard.samples for shard in group)
    return tuple(
        ColumnInfo(
            column.name,
            column.encoding,
            column.bytes,
            _describe_content(column.encoding),
            number,
            _count_tokens(column, num_samples[column]),
        )
        for column, number in num_shards.items()
    )


def _group_by_columns(
    shards: Iterable[shard_entries.ShardInfo],
) -> dict[tuple[shard_entries.Column, ...], list[shard_entries.ShardInfo]]:
    groups: dict[tuple[shard_entries.Column, ...], list[shard_entries.ShardInfo]] = {}
    for shard in shards:
        groups.setdefault(shard.columns, []).append(shard)
    return groups


def _describe_content(encoding: str) -> str:
    if document_columns.is_token_array(encoding):
        return "token IDs"
    if encoding in shard_entries.FIXED_FORMATS:
        return "a number"
    return {"str": "text", "bytes": "text or token IDs", "json": "JSON"}.get(encoding, "other")


def _count_tokens(column: shard_entries.Column, num_samples: int) -> int | None:
    """Count the token IDs in a column of arrays with a fixed shape; None for other columns."""
    if column.bytes is None or not document_columns.is_token_array(column.encoding):
        return None
    _, dtype, _ = column.encoding.split(":")
    return num_samples * column.bytes // np.dtype(dtype).itemsize


def _read_sizes(shards: Sequence[tuple[Dataset, shard_entries.ShardInfo]]) -> Ints:
    """Return the size in bytes of every sample in shards: int64 [samples]."""

    def read(pair: tuple[Dataset, shard_entries.ShardInfo]) -> Ints:
        with open_shard_start(*pair, 0) as shard:
            return shard.sample_bytes()

    sizes = map_in_order(read, shards, _NUM_THREADS, "cloudload-info")
    return np.concatenate([np.empty(0, np.int64), *sizes])


def _read_report(location: Location, samples: int) -> dict[str, Any] | None:
    """Read the report that `convert` wrote beside the index.

    None without a valid report of a dataset with that many samples. Another program may have
    replaced the dataset, and not the report.
    """
    try:
        data = location.join(own_objects.REPORT_NAME).read(_MOST_REPORT_BYTES)
        report = json.loads(data)["report"]
    except StoreError as error:
        # a store may deny access to an object that does not exist
        if error.kind.is_transient:
            raise
        return None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    is_report = (
        isinstance(report, dict)
        and isinstance(report.get("text_bytes"), int)
        and report.get("documents") == samples
    )
    return report if is_report else None
