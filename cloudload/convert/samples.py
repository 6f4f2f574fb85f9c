"""Encode the records of a block as MDS samples, and report the bad ones.

{"text": "ab", "url": "u"} ─► encode_block ─► sizes of the columns, "ab", "u"
{"txt": "ab"}                             └─► BadRecord: no field "text"
"""

from __future__ import annotations

import contextlib
import json
import math
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from cloudload.arrays import Ints
from cloudload.convert.config import ConvertConfig
from cloudload.convert.output import Output
from cloudload.convert.records import (
    InputBlock,
    Record,
    Utf8,
    Utf8Block,
    find_field,
    list_fields,
    name_kind,
)
from cloudload.convert.rejects import encode_reject
from cloudload.convert.report import MAX_LISTED, Counts
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


class _BadRecordError(Exception):
    """A record cannot be converted. The message says why."""


class _NoFieldError(_BadRecordError):
    """A record has no field `text_key`."""


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
    own_id = _describe_id(_optional(record.fields, context.config.id_key))
    values = {"text": text, "id": record.name if own_id is None else own_id}
    for column in context.form.columns:
        if column.name not in values:
            values[column.name] = _kept_value(_optional(record.fields, column.name), column)
    return values, own_id


def _describe_id(value: Any) -> str | None:
    """Return the text of an ID, or None for a value that cannot be an ID.

    Bytes that are not text are in hex. A float that equals an integer is written as an integer,
    because tables with missing IDs store the others as floats.
    """
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            if (text := value.decode()).isprintable():
                return text or None
        return value.hex()
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value) if value.is_integer() else value)
    is_usable = isinstance(value, str | int | UUID) and not isinstance(value, bool)
    return str(value) or None if is_usable else None


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
        raise _NoFieldError(f"the record has no field {key!r}. Its fields are: {found}") from None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise _BadRecordError(
                f"the field {key!r} is not UTF-8 (byte 0x{value[error.start]:02x} at offset "
                f"{error.start})"
            ) from None
    if not isinstance(value, str):
        raise _BadRecordError(f"the field {key!r} is {name_kind(value)}, not text")
    return value


def _to_json(value: Any) -> Any:
    """Convert a value that JSON cannot express: dates, decimals and UUIDs to text, arrays to lists.

    Raises `TypeError` for any other value, such as bytes.
    """
    if isinstance(value, date | time | timedelta | Decimal | UUID):
        return str(value)
    if hasattr(value, "tolist"):  # of NumPy and torch
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes):
        raise TypeError("it contains bytes. To keep them, name their field, such as meta.raw:bytes")
    raise TypeError(f"it contains {name_kind(value)}")


def _kept_value(value: Any, column: Column) -> Any:
    if column.encoding == "json":
        is_plain = isinstance(value, str | int | float | None)
        try:
            return value if is_plain else json.loads(json.dumps(value, default=_to_json))
        except (TypeError, ValueError, RecursionError) as error:
            raise _BadRecordError(
                f"the field {column.name!r} is {shorten(value)}, which JSON cannot express "
                f"({error})"
            ) from error
    kinds: dict[str, tuple[type, ...]] = {"str": (str,), "bytes": (bytes,)}
    numbers = (int, float) if column.encoding.startswith("float") else (int,)
    if isinstance(value, bool) or not isinstance(value, kinds.get(column.encoding, numbers)):
        found = "missing or null" if value is None else name_kind(value)
        raise _BadRecordError(
            f"the field {column.name!r} is {found}, not {column.encoding}. To allow any value, "
            f"keep {column.name}:json"
        )
    return value
