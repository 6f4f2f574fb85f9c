"""Encode the records of a block as MDS samples, and the bad ones as rejects, in JSON Lines.

    {"text": "ab", "url": "u"} ─► encode_block ─► sizes of the columns, "ab", "u"
    {"txt": "ab"}                             └─► BadRecord: no field "text"
                                              └─► {"file": "a.jsonl", "place": "12",
                                                   "error": "…", "record": "{txt: …}"}

    .convert/00003.rejects.jsonl   of segment 3 ─┐
    .convert/00007.rejects.jsonl   of segment 7 ─┴─► one file, in the order of the segments

Rejects are a pure function of the plan and the segment, like shards. `record` has the bytes of the
record as text, or, if the format does not store records as bytes, the fields as JSON. Records are
cut off after 65,536 characters. A record that is not UTF-8 is in `record_base64`.
"""

from __future__ import annotations

import base64
import json
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cloudload.data import JOURNAL_FOLDER, Location, record_values, shard_entries, writer
from cloudload.system import Ints, temp_files
from cloudload.tools.convert import input_records
from cloudload.tools.convert.config import ConvertConfig
from cloudload.tools.convert.conversion_report import MAX_LISTED, Counts, cause_of, merge_causes
from cloudload.tools.convert.segment_journal import SegmentJournal
from cloudload.tools.convert.values import NoTextError, Values, values_of
from cloudload.tools.count.group import CountWork

_SIZE, _TWO_SIZES = struct.Struct("<I"), struct.Struct("<II")

MOST_CHARACTERS = 1 << 16


@dataclass(frozen=True)
class ShardContext:
    """The settings that all shards share: config, format, and the journal that lists them."""

    config: ConvertConfig
    form: writer.ShardFormat
    journal: SegmentJournal
    keeps_rejects: bool = False
    work: CountWork | None = None
    """How to count tokens, or None if they are not counted."""


@dataclass(frozen=True)
class BadRecord:
    """The location and problem of a bad record.

    `advice` is what to do if all records are like it, or "" if that is not known.
    """

    where: str
    problem: str
    advice: str


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


@dataclass
class _BadRecords:
    """The bad records of a block. With `keeps_rejects`, also their lines in the rejects."""

    keeps_rejects: bool
    described: list[str] = field(default_factory=list)
    files: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    rejects: list[bytes] = field(default_factory=list)
    first: BadRecord | None = None

    def add(self, record: input_records.Record, error: record_values.BadRecordError) -> None:
        problem = str(error)
        self.described.append(f"{record.where}: {problem}")
        advice = error.advice if isinstance(error, NoTextError) else ""
        self.first = self.first or BadRecord(record.where, problem, advice)
        self.files[record.source.name] += 1
        self.causes[cause_of(problem)] += 1
        if self.keeps_rejects:
            self.rejects.append(encode_reject(record, problem))


def encode_block(context: ShardContext, block: input_records.InputBlock) -> EncodedBlock:
    """Encode the documents of a block, and count its empty and bad records, which are left out.

    Raises `StoreError` if an input file cannot be read.
    """
    columns, config, shares = context.form.columns, context.config, context.config.shares
    size_offset = _find_size(columns) if config.has_text else None
    # most conversions have only an ID and a text, which take a faster way
    is_plain = config.has_text and len(columns) == 2 and not shares and not config.is_json_text
    samples: dict[str, list[bytes]] = {name: [] for name in config.split_names}
    split_bytes = dict.fromkeys(samples, 0)
    bad, empty, replaced = _BadRecords(context.keeps_rejects), 0, 0
    for record in _read_records(block, config, is_plain=is_plain):
        if is_plain and (quick := _encode_plain(record, config.document_field, config.id_key)):
            samples[""].append(quick[0])
            split_bytes[""] += quick[1]
            replaced += record.is_replaced
            continue
        try:
            found = values_of(config, columns, record)
            sample = _encode_sample(columns, found.by_column)
        except record_values.BadRecordError as error:
            bad.add(record, error)
            continue
        # a document whose text is empty is no sample, but it is counted
        size = 0
        if size_offset is not None:
            [size] = _SIZE.unpack_from(sample, size_offset)
            if not size:
                empty += 1
                continue
        # a document's split depends only on its ID or content, so all processes agree on it
        split = shares.choose(found.own_id, _content(found, config)) if shares else ""
        samples[split].append(sample)
        split_bytes[split] += size
        replaced += found.is_replaced
    counts = Counts(
        documents=sum(map(len, samples.values())),
        empty=empty,
        bad=len(bad.described),
        bad_records=tuple(bad.described[:MAX_LISTED]),
        input_bytes=block.input_bytes,
        text_bytes=sum(split_bytes.values()),
        bad_files=dict(bad.files),
        split_bytes=split_bytes if shares else {},
        causes=merge_causes([bad.causes]),
        replaced=replaced,
    )
    return EncodedBlock(
        {name: _join_samples(several) for name, several in samples.items()},
        counts,
        bad.first,
        b"".join(bad.rejects),
    )


def _content(values: Values, config: ConvertConfig) -> str:
    """The text of a document, or of its first kept field."""
    value = values.by_column["text" if config.has_text else config.document_field]
    return value.hex() if isinstance(value, bytes) else str(value)


def _find_size(columns: Sequence[shard_entries.Column]) -> int:
    """The offset of the text's size in a sample, which begins with its variable sizes, in order."""
    variable = [column.name for column in columns if column.bytes is None]
    return _SIZE.size * variable.index("text")


def _read_records(
    block: input_records.InputBlock, config: ConvertConfig, *, is_plain: bool
) -> Iterator[input_records.Record]:
    # if the text is also the ID, it must be a string, because an ID is not read from bytes
    if (
        is_plain
        and config.id_key != config.document_field
        and isinstance(block, input_records.Utf8Block)
    ):
        return block.utf8_records(config.document_field, config.errors)
    return block.records(config.document_field, config.errors)


def _join_samples(samples: Sequence[bytes]) -> EncodedSamples:
    sizes = np.fromiter(map(len, samples), np.int64, len(samples))
    return EncodedSamples(writer.join_bytes(samples, np.empty(int(sizes.sum()), np.uint8)), sizes)


def _encode_plain(
    record: input_records.Record, text_key: str, id_key: str
) -> tuple[bytes, int] | None:
    """Encode a sample that has only the columns `id` and `text`, faster than `encode_sample`.

    Returns the sample and the size of its text in bytes. Returns None if `encode_sample` must
    encode the record, or if the record is bad or empty.
    """
    if (found := record_values.encode_plain(record.fields, text_key, id_key)) is None:
        return None
    data, own_id = found
    name = own_id or record.name.encode()
    if len(name) + len(data) > writer.MAX_SAMPLE_BYTES:
        return None
    return b"".join((_TWO_SIZES.pack(len(name), len(data)), name, data)), len(data)


def _encode_sample(columns: Sequence[shard_entries.Column], values: Mapping[str, Any]) -> bytes:
    try:
        return writer.encode_sample(columns, values)
    except ValueError as error:
        raise record_values.BadRecordError(str(error)) from error


def encode_reject(record: input_records.Record, error: str) -> bytes:
    """Encode a bad record as one line, including the newline."""
    line = {"file": record.source.name, "place": record.place, "error": error}
    raw = record.raw if record.raw is not None else _encode_fields(record.fields)
    if raw is not None:
        line |= _describe(raw)
    return json.dumps(line).encode() + b"\n"


def _describe(raw: bytes) -> dict[str, Any]:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        shown = base64.b64encode(raw[:MOST_CHARACTERS]).decode()
        return {"record_base64": shown, **_note_size(len(raw), "bytes")}
    return {"record": text[:MOST_CHARACTERS], **_note_size(len(text), "characters")}


def _note_size(size: int, unit: str) -> dict[str, int]:
    """Return a field with the full size of a record that is cut off. The unit is its name."""
    return {unit: size} if size > MOST_CHARACTERS else {}


def _encode_fields(fields: Mapping[str, Any] | None) -> bytes | None:
    try:
        return None if fields is None else json.dumps(dict(fields), default=str).encode()
    except (TypeError, ValueError, RecursionError):  # keys or cycles that JSON cannot express
        return None


def rejects_name(segment: int) -> str:
    """Return the name of the object that stores a segment's rejects."""
    return f"{JOURNAL_FOLDER}/{segment:05}.rejects.jsonl"


def store_rejects(file: BinaryIO, location: Location) -> None:
    """Store a scratch file of rejects as an object."""
    file.flush()
    location.upload(Path(file.name))


def join_rejects(location: Location, segments: Iterable[int], target: Location) -> None:
    """Concatenate the rejects of segments, in order, and store them as one object.

    Raises `StoreError` if a segment's rejects are missing.
    """
    with temp_files.scratch_file() as file:
        for segment in segments:
            location.join(rejects_name(segment)).download(file)
        store_rejects(file, target)
