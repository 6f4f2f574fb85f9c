"""Index JSON Lines files: count their records, and cut them into virtual shards.

    a.jsonl       0 ────── 64 MiB ────── 128 MiB ── 150 MiB        a shard has the lines that begin
                  └ unit ┘ └── unit ───┘ └─ unit ─┘                in such a range
    b.jsonl.gz    one unit, because it can only be read from its start

    units ─► any engine ─► records, line ends, hash of each ─► first line of each ─► index

Each file is read once, also if the command was stopped and is run again (`line_journal`). The cuts
depend only on the files' bytes, so every engine makes the same index. With all columns, the records
are parsed, too, for the names of their fields.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

from cloudload.config import choices
from cloudload.data import (
    ColumnChoice,
    Location,
    file_content,
    file_records,
    hashes,
    json_records,
    record_values,
    shard_entries,
    virtual_index,
    writer,
)
from cloudload.errors import DatasetError
from cloudload.system import open_progress_bar
from cloudload.tools.convert import input_records
from cloudload.tools.convert.input_files import FilePart, InputFile
from cloudload.tools.convert.inputs import with_format
from cloudload.tools.convert.line_journal import CountedLines, LineJournal
from cloudload.tools.convert.readers.lines import LinesBlock, LinesUnit
from cloudload.tools.engines.units import choose_engine, count_processes, run_units

SHARD_BYTES = writer.DEFAULT_SHARD_BYTES
"""The size of the ranges of an uncompressed file that become shards."""
_MOST_COLUMNS, _RECORDS_CHECKED = 1_000, 100
_ID_BYTES = 40
"""An estimate. It does not depend on the file's name, and so the identity of the data does not."""
_NO_FIELDS = input_records.Fields([])


@dataclass(frozen=True)
class LineReading:
    """How to read files for an index: with which columns, and where."""

    choice: ColumnChoice
    is_json: bool = False
    """Whether the key has JSON values, such as lists of token IDs, not text."""
    processes: int | None = None
    executor: Executor | None = None
    progress: bool = True


def build_line_index(
    found: virtual_index.ListedFiles, reading: LineReading, folder: str, target: Location
) -> tuple[bytes, LineJournal]:
    """Read JSON Lines files once, and return their `index.json`, and the journal to remove.

    `folder` is as in `virtual_index.build_index`, and `target` has the journal. Raises
    `DatasetError` if a file is damaged, is no JSON Lines file, or has more lines than a shard may
    have, `StoreError` if a file cannot be read, or changed since it was listed, or the journal
    cannot be read or written, and `WorkerError` if a process died.
    """
    parts = list(_list_parts(found))
    journal = LineJournal(target, parts, reading.choice)
    counted = list(zip(parts, _count_all(parts, reading, journal), strict=True))
    columns = _plan_columns(found, reading, frozenset().union(*(each.keys for _, each in counted)))
    shards = _describe_shards(counted, columns)
    index = file_records.encode_index_of_files(shards, shard_entries.JSON_LINES, folder)
    return index, journal


def _list_parts(found: virtual_index.ListedFiles) -> Iterator[FilePart]:
    """Yield the parts that are read separately: compressed files, and ranges of others."""
    for each in found.files:
        name = found.name_of(each)
        if fault := shard_entries.fault_of_name(name):
            raise DatasetError(f"the name of {found.folder.at(each.url)} {fault}. Rename the file")
        listed = InputFile(each.url, name, each.bytes, tag=each.tag, retry=found.location.retry)
        file = with_format(listed, choices.AUTO)
        if file.compression is not None:
            yield FilePart(file)
            continue
        for start in range(0, each.bytes, SHARD_BYTES):
            yield FilePart(file, (start, min(start + SHARD_BYTES, each.bytes)))


def _count_all(
    parts: Sequence[FilePart], reading: LineReading, journal: LineJournal
) -> Iterator[CountedLines]:
    """Yield the lines of each part. Parts that the journal has are not read."""
    counted = journal.read()
    left = [index for index in range(len(parts)) if index not in counted]
    done_bytes = sum(parts[index].stored_bytes for index in counted)
    total = sum(part.stored_bytes for part in parts)
    count = partial(_count_part, choice=reading.choice)
    processes = min(count_processes(reading.processes), max(1, len(left)))
    with (
        choose_engine(reading.executor, processes) as engine,
        open_progress_bar("index", total, done_bytes=done_bytes, shown=reading.progress) as bar,
    ):
        units = [parts[index] for index in left]
        for place, found in run_units(count, units, engine, on_bytes=bar.update):
            counted[left[place]] = found
            journal.store(left[place], counted)
    yield from (counted[index] for index in range(len(parts)))


def _count_part(
    part: FilePart, on_bytes: Callable[[int], object], *, choice: ColumnChoice
) -> CountedLines:
    """Read a part of a file, and count its lines. Runs in a worker process."""
    unit, running = LinesUnit(part.file, part.range), hashes.new_hash(shard_entries.LINES_HASH)
    first, lines, records, size, keys = 0, 0, 0, 0, set[str]()
    for block in unit.blocks(
        input_records.BlockStart(), input_records.DEFAULT_BLOCK_BYTES, _NO_FIELDS
    ):
        assert isinstance(block, LinesBlock)
        data, is_first = block.data, block.start.offset == 0
        _check_block(part.file, block)
        if not size:
            first = block.start.offset
        running.update(data)
        lines += file_content.count_line_ends(data)
        records += json_records.count_records(data, is_first=is_first)
        size += len(data)
        if is_first:
            _check_first_records(part.file, data, None if choice.has_others else choice.key)
        if choice.has_others:
            keys |= _find_keys(data, choice.key, is_first=is_first)
        on_bytes(block.input_bytes)
    return CountedLines(first, lines, records, size, running.hexdigest(), frozenset(keys))


def _check_block(file: InputFile, block: LinesBlock) -> None:
    """Raise `DatasetError` if lines cannot be read, or if the file is an array."""
    if block.damage is not None:
        raise DatasetError(
            f"{file.display_name} cannot be read as JSON Lines: {block.damage}. Repair the file, "
            "or leave it out"
        )
    if file.format == "json" and not block.start.offset and _starts_list(block.data):
        raise _array(file)


def _starts_list(data: bytes) -> bool:
    return data.removeprefix(file_content.BYTE_ORDER_MARK).lstrip().startswith(b"[")


def _array(file: InputFile) -> DatasetError:
    return DatasetError(
        f"{file.display_name} is a JSON array, not JSON Lines. Write one object per line, or "
        "convert the file (cloudload convert)"
    )


def _check_first_records(file: InputFile, data: bytes, key: str | None) -> None:
    """Raise `DatasetError` if none of a file's first records can be read, or has the field `key`.

    With None, the records need not have a field of the documents.
    """
    known: Mapping[str, Any] | None = None
    first_problem: str | None = None
    lines = (line for _, line in json_records.split_lines(data, is_first=True) if line.strip())
    for line in itertools.islice(lines, _RECORDS_CHECKED):
        fields, problem = json_records.parse_line(line)
        if fields is not None and (key is None or _has_field(fields, key)):
            return
        known, first_problem = fields or known, first_problem or problem
    if known is not None:
        chat = virtual_index.find_chat(known)
        advice = f". If {chat!r} has conversations, set all_columns (--all-columns)" if chat else ""
        raise DatasetError(
            f"{file.display_name}: the first records have no field {key!r}"
            f"{record_values.describe_fields(known)}. Set text_key (--text-key) to the field that "
            f"has the text, or tokens_key (--tokens-key){advice}"
        )
    if first_problem is not None and _starts_list(data):
        raise _array(file)
    if first_problem is not None:
        raise DatasetError(
            f"{file.display_name} cannot be read as JSON Lines, because all of its first records "
            f"are bad: {first_problem}. Repair the file, or leave it out"
        )


def _has_field(fields: Mapping[str, Any], name: str) -> bool:
    with contextlib.suppress(KeyError):
        record_values.find_field(fields, name)
        return True
    return False


def _find_keys(data: bytes, key: str | None, *, is_first: bool) -> set[str]:
    """The names of the fields of all records, and `key` if a record has it. Bad records have none.

    The field `key` may be nested.
    """
    keys = set[str]()
    for _, line in json_records.split_lines(data, is_first=is_first):
        fields, _ = json_records.parse_line(line)
        if fields is None:
            continue
        if not keys >= fields.keys():
            keys |= fields.keys()
        if key is not None and key not in keys and _has_field(fields, key):
            keys.add(key)
    return keys


def _plan_columns(
    found: virtual_index.ListedFiles, reading: LineReading, keys: Iterable[str]
) -> tuple[shard_entries.Column, ...]:
    """The columns of all shards, sorted by name: `id`, the documents, and JSON of other fields.

    With all columns, that of the documents exists if a record has it: conversations have no text.
    """
    key = reading.choice.key
    encodings = dict.fromkeys(keys, "json") | {"id": "str"}
    if len(encodings) > _MOST_COLUMNS:
        raise DatasetError(
            f"the records in {found.location} have {len(encodings):,} different fields, and an "
            f"index has at most {_MOST_COLUMNS:,} columns. Omit all_columns (--all-columns), or "
            "convert the files, keeping some fields (cloudload convert --keep)"
        )
    if key is not None and key != "id" and (key in encodings or not reading.choice.has_others):
        encodings[key] = "json" if reading.is_json else "str"
    return tuple(
        shard_entries.Column.of(name, encoding) for name, encoding in sorted(encodings.items())
    )


def _describe_shards(
    counted: Iterable[tuple[FilePart, CountedLines]],
    columns: tuple[shard_entries.Column, ...],
) -> Iterator[shard_entries.ShardInfo]:
    """Yield the shard of each part that has records."""
    name, line = "", 1
    for (file, span), each in counted:
        name, line = file.name, line if file.name == name else 1
        # a sample has an offset, and the size of each value
        raw_bytes = each.bytes + each.records * (4 + 4 * len(columns) + _ID_BYTES)
        if raw_bytes > shard_entries.MOST_SHARD_BYTES:
            raise DatasetError(
                f"{file.display_name} has {each.bytes:,} bytes of lines that cannot be cut, and a "
                "shard may have 4 GiB. Compress smaller files, store the file without compression, "
                "or convert it (cloudload convert)"
            )
        stop = each.first + each.bytes if span else file.bytes or 0
        stored = shard_entries.LineRange(name, each.first, stop, line, each.digest, file.tag)
        size = virtual_index.PartSize(each.records, raw_bytes, stop - each.first)
        if each.records:
            yield virtual_index.describe_shard(stored, size, columns)
        line += each.lines
