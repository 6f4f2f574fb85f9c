"""Encode blocks of records, cut them into shards, and store the shards.

encode_block: records ─► samples ─► ShardCutter ─► store_shard: compress, hash, store,
                                                   list in the journal
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from cloudload.arrays import Ints
from cloudload.convert.config import ConvertConfig
from cloudload.convert.journal import MAX_LISTED, Counts, InputPosition, record_shard
from cloudload.convert.records import InputBlock, Record, find_field, list_fields
from cloudload.count.group import CountWork
from cloudload.count.new_shards import measure_shard
from cloudload.mds.index import Column, parse_index
from cloudload.mds.writer import (
    PackedShard,
    ShardFormat,
    encode_index,
    encode_sample,
    pack_shard,
    shorten,
)
from cloudload.storage.objects import write_object
from cloudload.storage.urls import join_url

_MOST_NAMED = 20


@dataclass(frozen=True)
class ShardContext:
    """The config, the shard format, and the location of the shards."""

    config: ConvertConfig
    form: ShardFormat
    location: str
    work: CountWork | None = None
    """The count of the tokens, if they are counted."""


@dataclass(frozen=True)
class BadRecord:
    """The location and the problem of a bad record, and whether it has no field `text_key`."""

    where: str
    problem: str
    has_no_text: bool


@dataclass(frozen=True)
class EncodedSamples:
    """The samples of a block, concatenated. `sizes` is int64 [samples], in bytes."""

    data: bytes
    sizes: Ints
    counts: Counts
    first_bad: BadRecord | None


@dataclass(frozen=True)
class ShardJob:
    """A shard to store, with its index `number` and the position of the next shard.

    `parts` are the encoded samples, joined in order. `sizes` is int64 [samples], in bytes. `next`
    is None after the last shard. `counts` covers the blocks before the one in which the next shard
    begins; for the last shard, all blocks.
    """

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


def encode_block(context: ShardContext, block: InputBlock) -> EncodedSamples:
    """Encode the documents of a block, and count its empty and bad records, which are left out.

    Raises `StoreError` if an input file cannot be read.
    """
    columns = context.form.columns
    variable = [column.name for column in columns if column.bytes is None]
    text_place, text_size = 4 * variable.index("text"), struct.Struct("<I")
    samples: list[bytes] = []
    bad: list[str] = []
    first_bad: BadRecord | None = None
    empty = text_bytes = 0
    for record in block.records(context.config.text_key):
        try:
            sample = _encode_record(context, record)
        except _BadRecordError as error:
            bad.append(f"{record.where}: {error}")
            has_no_text = isinstance(error, _NoFieldError)
            first_bad = first_bad or BadRecord(record.where, str(error), has_no_text)
            continue
        size = text_size.unpack_from(sample, text_place)[0]
        text_bytes += size
        if size:
            samples.append(sample)
        else:
            empty += 1
    counts = Counts(
        len(samples), empty, len(bad), tuple(bad[:MAX_LISTED]), block.input_bytes, text_bytes
    )
    sizes = np.fromiter(map(len, samples), np.int64, len(samples))
    return EncodedSamples(b"".join(samples), sizes, counts, first_bad)


def _encode_record(context: ShardContext, record: Record) -> bytes:
    values = _values_of(context, record)
    try:
        return encode_sample(context.form.columns, values)
    except ValueError as error:
        raise _BadRecordError(str(error)) from error


def _values_of(context: ShardContext, record: Record) -> dict[str, Any]:
    if record.fields is None:
        raise _BadRecordError(record.problem)
    text = _text(record.fields, context.config.text_key)
    own_id = _optional(record.fields, context.config.id_key)
    is_usable = isinstance(own_id, str | int) and not isinstance(own_id, bool) and own_id != ""
    values = {"text": text, "id": str(own_id) if is_usable else record.name}
    for column in context.form.columns:
        if column.name not in values:
            values[column.name] = _kept_value(_optional(record.fields, column.name), column)
    return values


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


# ---------------------------------------------------------------- store


class StoredShard(NamedTuple):
    """A stored shard."""

    entry: dict[str, Any]
    """Its entry in the index."""
    lengths: list[str]
    """Its token lengths, as `ShardLengths` encodes them, if they are counted."""


def store_shard(context: ShardContext, job: ShardJob) -> StoredShard:
    """Build, compress, hash and store a shard, count its tokens, and list it in the journal.

    Raises `StoreError` if the shard or its journal entry cannot be written, and the errors of
    `measure_shard`.
    """
    shard = pack_shard(context.form, job.number, job.sizes, job.parts)
    lengths = _count(context, shard)
    write_object(join_url(context.location, shard.name), shard.data)
    record_shard(context.location, job.number, shard.entry, job.next, job.counts, lengths=lengths)
    return StoredShard(shard.entry, lengths)


def _count(context: ShardContext, shard: PackedShard) -> list[str]:
    if context.work is None:
        return []
    [info] = parse_index(encode_index([shard.entry]), context.location)
    return [measure_shard(context.work, context.location, info, shard.raw).encode()]


# ---------------------------------------------------------------- cut


class ShardCutter:
    """Cuts samples into shards as `MDSWriter` does, and tracks the input position of each cut.

    A sample that would make a shard larger than `shard_bytes` begins the next shard. A sample that
    does not fit even an empty shard gets its own. No shard is empty.

    `number` is the index of the first shard, and `position` is where it begins. `counts` covers the
    blocks cut so far.
    """

    def __init__(self, form: ShardFormat, number: int, position: InputPosition) -> None:
        self.counts, self._number, self._skip = position.counts, number, position.sample
        self._limit, self._empty_bytes = form.shard_bytes, form.empty_bytes()
        self._reset()

    def _reset(self) -> None:
        self._parts: list[memoryview] = []
        self._sizes: list[Ints] = []
        self._bytes = self._empty_bytes

    def cut(self, blocks: Iterable[tuple[InputPosition, EncodedSamples]]) -> Iterator[ShardJob]:
        """Cut (position, samples) of consecutive blocks into shards, and yield them in order."""
        for position, samples in blocks:
            yield from self._cut_block(replace(position, counts=self.counts), samples)
            self.counts = self.counts.plus(samples.counts)
        if self._parts:
            yield self._flush(None)

    def _cut_block(self, position: InputPosition, samples: EncodedSamples) -> Iterator[ShardJob]:
        ends = np.concatenate([[0], np.cumsum(samples.sizes)])
        costs = ends + 4 * np.arange(len(ends))  # each sample has a 4-byte offset
        data = memoryview(samples.data)
        first, self._skip = self._skip, 0
        while first < len(samples.sizes):
            room = self._limit - self._bytes
            last = int(np.searchsorted(costs, costs[first] + room, side="right")) - 1
            if last <= first and self._parts:
                yield self._flush(replace(position, sample=first))
                continue
            last = max(last, first + 1)
            self._parts.append(data[int(ends[first]) : int(ends[last])])
            self._sizes.append(samples.sizes[first:last])
            self._bytes += int(costs[last] - costs[first])
            first = last

    def _flush(self, following: InputPosition | None) -> ShardJob:
        sizes = np.concatenate(self._sizes)
        job = ShardJob(self._number, tuple(self._parts), sizes, following, self.counts)
        self._number += 1
        self._reset()
        return job
