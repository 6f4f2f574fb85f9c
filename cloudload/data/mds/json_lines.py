"""Read lines of a JSON Lines file as the samples of a virtual shard.

    a.jsonl       bytes of some lines ─► one request ─────────────────┐
    a.jsonl.gz    some members ─► one request ─► decompressed chunks ─┴─► lines ─► samples

The samples are the same as after a conversion: `id` is the value of the record's field, or else the
file's name and the line's number, counted from 1. Blank lines are no records. A bad record keeps
its sample, whose values say what is wrong with it.

    {"text": "xy", "id": "a"}    1 2 a xy
    {"text": null, "id": "b"}    1 5 b NULL_TEXT
    {"text":                     9 … a.jsonl:3 BAD_RECORD the record is invalid JSON (…)
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cloudload.data import file_content, file_kinds
from cloudload.data.mds import json_records, record_values, shard_entries, writer
from cloudload.data.mds.encoded_rows import EncodedRows, FileFaultError, Transfer
from cloudload.data.mds.hashes import new_hash
from cloudload.data.mds.record_values import BadRecordError
from cloudload.data.mds.shard import BAD_RECORD, ID_KEY, NULL_TEXT
from cloudload.data.storage.locations import Location
from cloudload.system import Ints

_BLOCK_BYTES = 1 << 18  # fits in a processor's cache
_FIRST_BYTES, _GROWTH = 1 << 20, 8
_MOST_PROBLEM_CHARACTERS = 1_000
_TWO_SIZES = struct.Struct("<II")


def read_json_lines(
    folder: Location, info: shard_entries.ShardInfo, samples: Ints | None, transfer: Transfer
) -> Iterator[EncodedRows]:
    """Read and encode the records of a shard, or with `samples`, those up to the last of them.

    `folder` is the folder of the dataset's files. Raises `StoreError` if the file changed or cannot
    be read, and `FileFaultError` if it is damaged.
    """
    lines = info.part
    assert isinstance(lines, shard_entries.LineRange)
    for column in info.columns:
        if column.encoding not in ("str", "json"):
            raise FileFaultError(
                f"has the column {column.name!r} of {column.encoding} in its index, which lines "
                "cannot have"
            )
    location, encoder = folder.join(lines.file), LineEncoder(info.columns, lines.file)
    if samples is not None and samples[-1] + 1 < info.samples:
        yield _read_first(location, lines, encoder, int(samples[-1]) + 1, transfer)
        return
    data = location.read_range(lines.first, lines.stop, lines.tag, transfer.watch)
    transfer.count_bytes(len(data))
    running = new_hash(shard_entries.LINES_HASH)
    yield from _encode(data, lines, encoder, running)
    if transfer.checks_hash and running.hexdigest() != lines.digest:
        raise FileFaultError(
            f"has changed since it was indexed: the hash of its lines was {lines.digest}, and is "
            f"now {running.hexdigest()}"
        )


def _read_first(
    location: Location,
    lines: shard_entries.LineRange,
    encoder: LineEncoder,
    count: int,
    transfer: Transfer,
) -> EncodedRows:
    """Read as many bytes at the start of the lines as the first `count` records need."""
    size = _FIRST_BYTES
    while True:
        stop = min(lines.stop, lines.first + size)
        data = location.read_range(lines.first, stop, lines.tag, transfer.watch)
        is_whole, sizes, parts = stop == lines.stop, np.zeros(0, np.int64), list[bytes]()
        for rows in _encode(data, lines, encoder, is_whole=is_whole):
            parts.append(bytes(rows.data))
            sizes = np.concatenate([sizes, rows.sizes])
            if len(sizes) >= count:
                break
        if is_whole or len(sizes) >= count:
            transfer.count_bytes(len(data))
            sizes = sizes[:count]
            return EncodedRows(b"".join(parts)[: int(sizes.sum())], sizes)
        size *= _GROWTH


def _encode(
    data: bytes,
    lines: shard_entries.LineRange,
    encoder: LineEncoder,
    running: Any = None,
    *,
    is_whole: bool = True,
) -> Iterator[EncodedRows]:
    """Encode the records in stored bytes, and update the `running` hash with their lines.

    If the bytes are not whole, the last line is left out.
    """
    chunks = _unpack(_in_one_chunk(data, is_whole=is_whole), lines)
    line, is_first = lines.line, lines.first == 0
    for block, damage, _ in file_content.cut_at_line_ends(chunks, _BLOCK_BYTES):
        if running is not None:
            running.update(block)
        yield encoder.encode(block, line, is_first=is_first)
        if damage is not None and is_whole:
            raise FileFaultError(f"cannot be read as JSON Lines ({damage})")
        line, is_first = line + file_content.count_line_ends(block), False


def _unpack(stored: Iterator[bytes], lines: shard_entries.LineRange) -> Iterator[bytes]:
    """Yield the bytes of the lines, in chunks."""
    _, compression = file_kinds.split_name(lines.file)
    chunks = stored
    if lines.first == 0:
        chunks = file_content.unpack_file(stored, compression, is_text=True)
    elif compression is not None:
        chunks = file_content.unpack_members(stored, compression)
    if lines.text is None:
        yield from chunks
        return
    start, stop = lines.text
    for chunk in chunks:
        yield chunk[max(0, start) : stop]
        start, stop = start - len(chunk), stop - len(chunk)
        if stop <= 0:
            return


def _in_one_chunk(data: bytes, *, is_whole: bool) -> Iterator[bytes]:
    yield data
    if not is_whole:
        raise file_content.DamagedError("the other bytes are not read")


@dataclass(frozen=True)
class LineEncoder:
    """Encodes lines of a file as samples.

    The column of the documents is `str`, and JSON columns have the values of other fields, or null.
    """

    columns: tuple[shard_entries.Column, ...]
    file: str
    """The name of the file, from which records without an ID get one."""

    def encode(self, data: bytes, line: int, *, is_first: bool) -> EncodedRows:
        """Encode whole lines, the first of which has the number `line`.

        `is_first` says whether the file begins with them.
        """
        parts, sizes = list[bytes](), list[int]()
        for number, _, _, parsed in json_records.parse_lines(data, is_first=is_first):
            sample = self._encode_plain(parsed[0], line + number)
            sample = sample or (self._encode_record(parsed, f"{self.file}:{line + number}"),)
            parts += sample
            sizes.append(sum(map(len, sample)))
        return EncodedRows(b"".join(parts), np.array(sizes, np.int64))

    @cached_property
    def _plain_key(self) -> str | None:
        """The column of the documents, if there is no other one besides `id`."""
        others = [column for column in self.columns if column.name != ID_KEY]
        return others[0].name if len(others) == 1 and others[0].encoding == "str" else None

    def _encode_plain(
        self, fields: Mapping[str, Any] | None, number: int
    ) -> tuple[bytes, ...] | None:
        """Encode a good record that has only a text and an ID, in parts; None for another one."""
        if (key := self._plain_key) is None:
            return None
        if (found := record_values.encode_plain(fields, key, ID_KEY)) is None:
            return None
        text, own_id = found
        own_id = own_id or f"{self.file}:{number}".encode()
        first, second = (text, own_id) if key < ID_KEY else (own_id, text)
        return _TWO_SIZES.pack(len(first), len(second)), first, second

    def _encode_record(self, parsed: record_values.Parsed, name: str) -> bytes:
        """Encode a record, or what is wrong with it. `name` is its ID if it has none."""
        fields, problem = parsed
        try:
            if fields is None:
                raise BadRecordError(problem)
            if self._plain_key is not None:
                _require_field(fields, self._plain_key)
            values = [_encode_value(column, fields, name) for column in self.columns]
        except BadRecordError as error:
            bad = BAD_RECORD + str(error)[:_MOST_PROBLEM_CHARACTERS].encode("utf-8", "replace")
            known_id = record_values.describe_id((fields or {}).get(ID_KEY)) or name
            valid_id = known_id.encode("utf-8", "replace")
            values = [valid_id if column.name == ID_KEY else bad for column in self.columns]
        return writer.join_values(self.columns, values)


def _require_field(fields: Mapping[str, Any], key: str) -> None:
    """Raise `BadRecordError` if a record lacks the only field that is read."""
    try:
        record_values.find_field(fields, key)
    except KeyError:
        known = record_values.describe_fields(fields)
        raise BadRecordError(f"the record has no field {key!r}{known}") from None


def _encode_value(column: shard_entries.Column, fields: Mapping[str, Any], name: str) -> bytes:
    """Encode a record's value of a column, or null if the record lacks it.

    Raises `BadRecordError` if the value is not valid.
    """
    value = None
    with contextlib.suppress(KeyError):
        value = record_values.find_field(fields, column.name)
    if column.encoding == "json":
        return record_values.encode_json(value, column.name)[0].encode()
    if column.name == ID_KEY:
        value = record_values.describe_id(value) or name
    elif value is None:
        return NULL_TEXT
    try:
        return writer.encode_value(column, record_values.check_text(value, column.name))
    except ValueError as error:
        raise BadRecordError(str(error)) from error
