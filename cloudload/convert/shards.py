"""Encode blocks of records, and cut them into shards.

encode_block: records ─► samples ─► ShardCutter ─► jobs, which `store_shard` stores
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cloudload.arrays import Ints
from cloudload.convert.config import ConvertConfig
from cloudload.convert.output import Output
from cloudload.convert.records import InputBlock, Record, Utf8, Utf8Block, find_field, list_fields
from cloudload.convert.rejects import encode_reject
from cloudload.convert.report import MAX_LISTED, Counts
from cloudload.convert.work import FinishedWork, InputPosition
from cloudload.count.group import CountWork
from cloudload.mds.index import Column
from cloudload.mds.writer import (
    MAX_SAMPLE_BYTES,
    ShardFormat,
    encode_sample,
    join_bytes,
    shorten,
)

_MOST_NAMED = 20
_TWO_SIZES = struct.Struct("<II")


@dataclass(frozen=True)
class ShardContext:
    """The settings that all shards share: config, format, and the locations to write to."""

    config: ConvertConfig
    form: ShardFormat
    output: Output
    keeps_rejects: bool = False
    work: CountWork | None = None
    """How to count tokens, or None if they are not counted."""


@dataclass(frozen=True)
class BadRecord:
    """The location and problem of a bad record, and whether it lacks the field `text_key`."""

    where: str
    problem: str
    has_no_text: bool


@dataclass(frozen=True)
class EncodedSamples:
    """Encoded samples, concatenated in `data`. `sizes` is int64 [samples], in bytes."""

    data: memoryview
    sizes: Ints


@dataclass(frozen=True)
class EncodedBlock:
    """The encoded samples of a block by split, and the counts of its records."""

    samples: Mapping[str, EncodedSamples]
    counts: Counts
    first_bad: BadRecord | None
    rejects: bytes = b""
    """The lines of the bad records, if they are kept."""


@dataclass(frozen=True)
class ShardJob:
    """A shard to store.

    `number` is its index among the shards of its split, and `place` among those of all splits.
    `parts` are the encoded samples, to be joined in order. `sizes` is int64 [samples], in bytes.
    `next` is the position at which the next shard of the split begins, or None after the last one.
    `counts` covers the blocks before the one in which the next shard begins; for the last shard,
    all blocks.
    """

    place: int
    split: str
    number: int
    parts: tuple[memoryview, ...]
    sizes: Ints
    next: InputPosition | None
    counts: Counts


class _BadRecordError(Exception):
    """A record cannot be converted. The message says why."""


class _NoFieldError(_BadRecordError):
    """A record has no field `text_key`."""


# ---------------------------------------------------------------- encode


def encode_block(context: ShardContext, block: InputBlock) -> EncodedBlock:
    """Encode the documents of a block, and count its empty and bad records, which are left out.

    Raises `StoreError` if an input file cannot be read.
    """
    columns = context.form.columns
    variable = [column.name for column in columns if column.bytes is None]
    text_place, text_size = 4 * variable.index("text"), struct.Struct("<I")
    shares, config = context.config.shares, context.config
    is_plain = len(columns) == 2 and not shares
    records = block.records(config.text_key)
    # if the text is also the ID, it must be a string, because an ID is not read from bytes
    if is_plain and config.id_key != config.text_key and isinstance(block, Utf8Block):
        records = block.utf8_records(config.text_key)
    samples: dict[str, list[bytes]] = {name: [] for name in context.config.split_names}
    split_bytes = dict.fromkeys(samples, 0)
    bad: list[str] = []
    rejects: list[bytes] = []
    bad_files = Counter[str]()
    first_bad: BadRecord | None = None
    empty = 0
    for record in records:
        if is_plain and (quick := _encode_plain(record, config.text_key, config.id_key)):
            samples[""].append(quick[0])
            split_bytes[""] += quick[1]
            continue
        try:
            values, own_id = _values_of(context, record)
            sample = _encode_sample(context, values)
        except _BadRecordError as error:
            bad.append(f"{record.where}: {error}")
            has_no_text = isinstance(error, _NoFieldError)
            first_bad = first_bad or BadRecord(record.where, str(error), has_no_text)
            bad_files[record.source.name] += 1
            if context.keeps_rejects:
                rejects.append(encode_reject(record, str(error)))
            continue
        size = text_size.unpack_from(sample, text_place)[0]
        if not size:
            empty += 1
            continue
        split = shares.choose(own_id, values["text"]) if shares else ""
        samples[split].append(sample)
        split_bytes[split] += size
    counts = Counts(
        sum(map(len, samples.values())),
        empty,
        len(bad),
        tuple(bad[:MAX_LISTED]),
        block.input_bytes,
        sum(split_bytes.values()),
        dict(bad_files),
        split_bytes if shares else {},
    )
    joined = {name: _join_samples(several) for name, several in samples.items()}
    return EncodedBlock(joined, counts, first_bad, b"".join(rejects))


def _join_samples(samples: Sequence[bytes]) -> EncodedSamples:
    sizes = np.fromiter(map(len, samples), np.int64, len(samples))
    return EncodedSamples(join_bytes(samples, np.empty(int(sizes.sum()), np.uint8)), sizes)


def _encode_plain(record: Record, text_key: str, id_key: str) -> tuple[bytes, int] | None:
    """Encode a sample that has only the columns `id` and `text`, faster than `encode_sample`.

    Returns the sample and the size of its text in bytes. Returns None if `encode_sample` must
    encode the record, or if the record is bad or empty.
    """
    fields = record.fields
    if type(fields) is not dict:
        return None
    text, own_id = fields.get(text_key), fields.get(id_key)
    if type(own_id) is not str and (own_id is not None or "." in id_key):
        return None
    try:
        data = text if type(text) is Utf8 else text.encode() if type(text) is str else b""
        name = (own_id or record.name).encode()
    except UnicodeEncodeError:
        return None
    if not data or len(name) + len(data) > MAX_SAMPLE_BYTES:
        return None
    return b"".join((_TWO_SIZES.pack(len(name), len(data)), name, data)), len(data)


def _encode_sample(context: ShardContext, values: Mapping[str, Any]) -> bytes:
    try:
        return encode_sample(context.form.columns, values)
    except ValueError as error:
        raise _BadRecordError(str(error)) from error


def _values_of(context: ShardContext, record: Record) -> tuple[dict[str, Any], str | None]:
    """Return the values of a sample by column, and the record's own ID, or None if it has none."""
    if record.fields is None:
        raise _BadRecordError(record.problem)
    text = _text(record.fields, context.config.text_key)
    found = _optional(record.fields, context.config.id_key)
    is_usable = isinstance(found, str | int) and not isinstance(found, bool) and found != ""
    own_id = str(found) if is_usable else None
    values = {"text": text, "id": record.name if own_id is None else own_id}
    for column in context.form.columns:
        if column.name not in values:
            values[column.name] = _kept_value(_optional(record.fields, column.name), column)
    return values, own_id


def _optional(fields: Mapping[str, Any], name: str) -> Any:
    with contextlib.suppress(KeyError):
        return find_field(fields, name)
    return None


def _text(fields: Mapping[str, Any], key: str) -> str:
    try:
        value = find_field(fields, key)
    except KeyError:
        names = sorted(set(list_fields(fields)))
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        found = f"{', '.join(names[:_MOST_NAMED])}{more}" if names else "none"
        raise _NoFieldError(f"no field {key!r}. The fields are: {found}") from None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise _BadRecordError(
                f"not UTF-8 (byte 0x{value[error.start]:02x} at offset {error.start} of {key!r})"
            ) from None
    if not isinstance(value, str):
        raise _BadRecordError(f"{key!r} is {type(value).__name__}, not a string")
    return value


def _kept_value(value: Any, column: Column) -> Any:
    if column.encoding == "json":
        is_plain = isinstance(value, str | int | float | None)
        try:
            # values that JSON cannot express, such as dates, become strings
            return value if is_plain else json.loads(json.dumps(value, default=str))
        except (TypeError, ValueError, RecursionError) as error:
            raise _BadRecordError(
                f"the field {column.name!r} is {shorten(value)}, which JSON cannot express "
                f"({error})"
            ) from error
    kinds: dict[str, tuple[type, ...]] = {"str": (str,), "bytes": (bytes,)}
    numbers = (int, float) if column.encoding.startswith("float") else (int,)
    if isinstance(value, bool) or not isinstance(value, kinds.get(column.encoding, numbers)):
        found = "missing or null" if value is None else type(value).__name__
        raise _BadRecordError(
            f"the field {column.name!r} is {found}, not {column.encoding}; keep "
            f"{column.name}:json to allow any value"
        )
    return value


# ---------------------------------------------------------------- cut


class ShardCutter:
    """Cuts samples into shards as `MDSWriter` does, and tracks the input position of each cut.

    A sample that would make a shard larger than `shard_bytes` begins the next shard of its split. A
    sample larger than that gets a shard to itself. No shard is empty.

    `done` describes the stored shards, whose samples are skipped. `counts` covers the blocks before
    the first one to cut, and later also the blocks that have been cut.
    """

    def __init__(self, form: ShardFormat, done: FinishedWork, counts: Counts) -> None:
        self.counts, self._place = counts, done.resumed
        self._splits = [
            _SplitCutter(form, split, len(done.entries[split]), position)
            for split, position in done.positions.items()
        ]

    def cut(self, blocks: Iterable[tuple[InputPosition, EncodedBlock]]) -> Iterator[ShardJob]:
        """Cut (position, samples) of consecutive blocks into shards, and yield them in order."""
        for position, block in blocks:
            start = replace(position, counts=self.counts)
            for cutter in self._splits:
                yield from map(self._number, cutter.cut(start, block.samples[cutter.split]))
            self.counts = self.counts.plus(block.counts)
        for cutter in self._splits:
            yield from map(self._number, cutter.finish(self.counts))

    def _number(self, job: ShardJob) -> ShardJob:
        self._place += 1
        return replace(job, place=self._place - 1)


class _SplitCutter:
    """Cuts the samples of one split.

    `number` is the index of the first shard to cut, and `position` is where that shard begins, or
    None if all shards of the split are stored.
    """

    def __init__(
        self, form: ShardFormat, split: str, number: int, position: InputPosition | None
    ) -> None:
        self.split, self._next, self._position = split, number, position
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
        return following.sample if block.block == following.block else 0

    def _flush(self, following: InputPosition | None, counts: Counts) -> ShardJob:
        sizes, parts = np.concatenate(self._sizes), tuple(self._parts)
        job = ShardJob(0, self.split, self._next, parts, sizes, following, counts)
        self._next += 1
        self._reset()
        return job
