"""Cut encoded samples into shards, or copy shards, store each one, and list it in the journal.

samples of consecutive blocks ─► ShardCutter ─┬─► ShardJob
shards of an index ────────────► ShardCopier ─┘

ShardJob ─ store_shard ─► compress, hash ─► count its tokens ─► entry of the journal ─► store
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from cloudload.data import Location, Shard, parse_index, shard_entries, writer
from cloudload.system import Ints
from cloudload.tools.convert import input_records
from cloudload.tools.convert.conversion_report import Counts
from cloudload.tools.convert.readers.mds import open_shard
from cloudload.tools.convert.sample_encoding import EncodedBlock, EncodedSamples, ShardContext
from cloudload.tools.convert.segment_journal import FinishedWork, InputPosition
from cloudload.tools.count.new_shards import measure_shard


@dataclass(frozen=True)
class ShardJob:
    """A shard to store.

    `index` is its index among the shards of its split, and `entry` that of its journal entry among
    those of all splits.
    `parts` are the encoded samples, to be joined in order. `sizes` is int64 [samples], in bytes.
    `next` is the position at which the next shard of the split begins, or None after the last one.
    `counts` covers the blocks before the one in which the next shard begins; for the last shard,
    all blocks. `original` is the shard of which this is a copy, or None.
    """

    entry: int
    split: str
    index: int
    parts: tuple[memoryview, ...]
    sizes: Ints
    next: InputPosition | None
    counts: Counts
    original: shard_entries.ShardInfo | None = None


class StoredShard(NamedTuple):
    """The result of storing a shard."""

    entry: dict[str, Any]
    """The shard's entry in the index."""
    lengths: list[str]
    """The shard's token lengths, as `ShardLengths` encodes them; empty if they are not counted."""


class ShardCutter:
    """Cuts samples into shards as `MDSWriter` does, and tracks the input position of each cut.

    A sample that would make a shard larger than `shard_bytes` begins the next shard of its split. A
    sample larger than that gets a shard to itself. No shard is empty.

    `done` describes the stored shards, whose samples are skipped. `counts` covers the blocks before
    the first one to cut, and later also the blocks that have been cut.
    """

    def __init__(self, form: writer.ShardFormat, done: FinishedWork, counts: Counts) -> None:
        self.counts, self._next_entry = counts, done.resumed
        self._splits = [
            _SplitCutter(form, split, len(done.entries[split]), position)
            for split, position in done.positions.items()
        ]

    def cut(self, blocks: Iterable[tuple[InputPosition, EncodedBlock]]) -> Iterator[ShardJob]:
        """Cut (position, samples) of consecutive blocks into shards, and yield them in order."""
        for position, block in blocks:
            start = replace(position, counts=self.counts)
            for cutter in self._splits:
                yield from map(self._assign_entry, cutter.cut(start, block.samples[cutter.split]))
            self.counts = self.counts.plus(block.counts)
        for cutter in self._splits:
            yield from map(self._assign_entry, cutter.finish(self.counts))

    def _assign_entry(self, job: ShardJob) -> ShardJob:
        self._next_entry += 1
        return replace(job, entry=self._next_entry - 1)


class _SplitCutter:
    """Cuts the samples of one split.

    `index` is that of the first shard to cut, and `position` is where that shard begins, or
    None if all shards of the split are stored.
    """

    def __init__(
        self, form: writer.ShardFormat, split: str, index: int, position: InputPosition | None
    ) -> None:
        self.split, self._next, self._position = split, index, position
        # from the block of `position` on, also if blocks are shorter than when it was stored
        self._left_to_skip = position.sample if position else 0
        self._limit, self._empty_bytes = form.shard_bytes, form.empty_bytes()
        self._reset()

    def _reset(self) -> None:
        self._parts: list[memoryview] = []
        self._sizes: list[Ints] = []
        self._bytes = self._empty_bytes

    def cut(self, block: InputPosition, samples: EncodedSamples) -> Iterator[ShardJob]:
        """Add the samples of a block, and yield the shards that are full."""
        ends = np.concatenate([[0], np.cumsum(samples.sizes)])
        costs = ends + 4 * np.arange(len(ends))  # a shard stores a 4-byte offset per sample
        data = samples.data
        first = self._count_stored(block, samples)
        while first < len(samples.sizes):
            room = self._limit - self._bytes
            last = int(np.searchsorted(costs, costs[first] + room, side="right")) - 1
            if last <= first and self._parts:
                yield self._flush(replace(block, sample=first), block.counts)
                continue
            last = max(last, first + 1)
            self._parts.append(data[int(ends[first]) : int(ends[last])])
            self._sizes.append(samples.sizes[first:last])
            self._bytes += int(costs[last] - costs[first])
            first = last

    def finish(self, counts: Counts) -> Iterator[ShardJob]:
        """Yield the last shard, if any. `counts` covers all blocks."""
        if self._parts:
            yield self._flush(None, counts)

    def _count_stored(self, block: InputPosition, samples: EncodedSamples) -> int:
        """Return the number of a block's samples that are already in stored shards."""
        following = self._position
        if following is None or block.block < following.block:
            return len(samples.sizes)
        first = min(self._left_to_skip, len(samples.sizes))
        self._left_to_skip -= first
        return first

    def _flush(self, following: InputPosition | None, counts: Counts) -> ShardJob:
        sizes, parts = np.concatenate(self._sizes), tuple(self._parts)
        job = ShardJob(0, self.split, self._next, parts, sizes, following, counts)
        self._next += 1
        self._reset()
        return job


class ShardCopier:
    """Copies each of the `units`, which are shards, to a shard with the same samples.

    `counts` covers the shards before the first one to copy, and later also those that were copied.
    Bytes of text are those of the column `text_key`.
    """

    def __init__(
        self, units: Sequence[input_records.InputUnit], counts: Counts, text_key: str | None
    ) -> None:
        self.counts, self._units, self._text_key = counts, units, text_key

    def copy(self, first: int, on_bytes: Callable[[int], object]) -> Iterator[ShardJob]:
        """Yield the shards from the unit with index `first` on.

        Raises the errors of `open_shard`.
        """
        for index, unit in enumerate(self._units[first:], first):
            [file] = unit.files
            assert file.shard is not None
            with open_shard(file, file.shard) as shard:
                self.counts = self.counts.plus(self._count(shard, file.bytes or 0))
                more = index + 1 < len(self._units)
                following = InputPosition(index + 1, counts=self.counts) if more else None
                parts, sizes = (shard.samples,), shard.sample_bytes()
                yield ShardJob(index, "", index, parts, sizes, following, self.counts, file.shard)
            on_bytes(file.bytes or 0)

    def _count(self, shard: Shard, stored_bytes: int) -> Counts:
        text_bytes, names = 0, [column.name for column in shard.info.columns]
        if self._text_key in names:
            every = np.arange(shard.info.samples)
            starts, stops = shard.find_values(every, names.index(self._text_key))
            text_bytes = int((stops - starts).sum())
        return Counts(shard.info.samples, input_bytes=stored_bytes, text_bytes=text_bytes)


def build_shard(
    context: ShardContext, buffer: writer.ShardBuffer, job: ShardJob
) -> writer.PackedShard:
    """Build, compress, and hash a shard. A copy has the columns and identity of its original."""
    form, identity = context.form, ""
    if job.original is not None:
        form, identity = replace(form, columns=job.original.columns), job.original.identity
    return writer.pack_shard(form, job.index, job.sizes, job.parts, buffer, original=identity)


def store_shard(context: ShardContext, buffer: writer.ShardBuffer, job: ShardJob) -> StoredShard:
    """Build a shard, count its tokens, list it in the journal, and store it.

    `buffer` may be used again after the call. Raises `StoreError` if the shard or its journal entry
    cannot be written, `ConvertError` if another conversion wrote another shard, and the errors of
    `measure_shard`.
    """
    shard = build_shard(context, buffer, job)
    location = context.journal.output.shards(job.split)
    lengths = _count(context, location, shard)
    context.journal.record(
        job.entry,
        job.split,
        shard.entry,
        following=job.next,
        counts=job.counts,
        lengths=lengths,
    )
    location.join(shard.name).write(shard.data)
    return StoredShard(shard.entry, lengths)


def _count(context: ShardContext, location: Location, shard: writer.PackedShard) -> list[str]:
    if context.work is None:
        return []
    [info] = parse_index(writer.encode_index([shard.entry]), str(location))
    return [measure_shard(context.work, location, info, shard.raw).encode()]
