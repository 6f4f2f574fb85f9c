"""Index JSON Lines files: count their records, and cut them into virtual shards.

    a.jsonl       0 ────── 64 MiB ────── 128 MiB ── 150 MiB        a shard has the lines that begin
                  └ unit ┘ └── unit ───┘ └─ unit ─┘                in such a range
    b.jsonl.gz    one unit, because it is read from its start. A shard has the lines that begin in
                  some of its members, such as the frames of zstd, with at least 64 MiB of text

    units ─► any engine ─► records, line ends, hash of each ─► first line of each ─► index

Each file is read once, also if the command was stopped and is run again (`line_journal`). The cuts
depend only on the files' bytes, so every engine makes the same index. With all columns, the records
are parsed, too, for the names of their fields.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
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
from cloudload.tools.convert.input_files import FilePart, InputFile, MemberCounter, Range
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
    keys = frozenset[str]().union(*(each.keys for _, several in counted for each in several))
    columns = _plan_columns(found, reading, keys)
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
) -> Iterator[list[CountedLines]]:
    """Yield the lines of the shards of each part. Parts that the journal has are not read."""
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
) -> list[CountedLines]:
    """Read a part of a file, and count the lines of its shards. Runs in a worker process."""
    members, keys, counts = MemberCounter(0), set[str](), [_Count(0)]
    for block in _read_blocks(part, members):
        data, offset, is_first = block.data, block.start.offset, block.start.offset == 0
        _check_block(part.file, block)
        if is_first:
            _check_first_records(part.file, data, None if choice.has_others else choice.key)
        if choice.has_others:
            keys |= _find_keys(data, choice.key, is_first=is_first)
        while (cut := _find_cut(members, counts[-1].cut, offset + len(data))) is not None:
            # the line that begins before a cut belongs to the shard before it
            end = data.find(b"\n", cut - 1 - offset) + 1 if cut > offset else 0
            end = end or (len(data) if cut > offset else 0)
            counts[-1].add(data[:end], offset)
            counts.append(_Count(cut))
            data, offset = data[end:], offset + end
        counts[-1].add(data, offset)
        on_bytes(block.input_bytes)
    found = [count for count in counts if count.size]
    places = [_locate(part, members, count, is_only=len(found) == 1) for count in found]
    return [
        CountedLines(*place, each.lines, each.records, each.size, each.digest, frozenset(keys))
        for place, each in zip(places, found, strict=True)
    ]


@dataclass
class _Count:
    """The lines of a shard that were read so far."""

    cut: int
    """The offset at which the shard was cut. Its first line begins there, or after it."""
    first: int = 0
    """The offset of the first line."""
    lines: int = 0
    records: int = 0
    size: int = 0
    running: Any = field(default_factory=partial(hashes.new_hash, shard_entries.LINES_HASH))

    def add(self, data: bytes, offset: int) -> None:
        """Count whole lines, which begin at an offset of the decompressed file."""
        if not self.size:
            self.first = offset
        self.running.update(data)
        self.lines += file_content.count_line_ends(data)
        self.records += json_records.count_records(data, is_first=offset == 0)
        self.size += len(data)

    @property
    def digest(self) -> str:
        return str(self.running.hexdigest())


def _read_blocks(part: FilePart, members: MemberCounter) -> Iterator[LinesBlock]:
    unit, start = LinesUnit(part.file, part.range), input_records.BlockStart()
    if part.range is None:
        yield from unit.whole_blocks(start, input_records.DEFAULT_BLOCK_BYTES, members)
        return
    for block in unit.blocks(start, input_records.DEFAULT_BLOCK_BYTES, _NO_FIELDS):
        assert isinstance(block, LinesBlock)
        yield block


def _find_cut(members: MemberCounter, last: int, stop: int) -> int | None:
    """The first start of a member, up to `stop`, that is far enough from the last cut, or None."""
    index = bisect.bisect_left(members.content, last + SHARD_BYTES)
    is_found = index < len(members.content) and members.content[index] <= stop
    return members.content[index] if is_found else None


def _locate(
    part: FilePart, members: MemberCounter, count: _Count, *, is_only: bool
) -> tuple[Range, Range | None]:
    """Return (the stored bytes that have lines, the range of the lines in their members)."""
    if part.range is not None:
        return (count.first, count.first + count.size), None
    size = part.file.bytes or 0
    if is_only:
        return (0, size), None
    start = members.content[bisect.bisect_right(members.content, count.first) - 1]
    first = members.stored[bisect.bisect_left(members.content, start)] if start else 0
    after = bisect.bisect_left(members.content, count.first + count.size)
    stop = members.stored[after] if after < len(members.stored) else size
    return (first, stop), (count.first - start, count.first - start + count.size)


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
    counted: Iterable[tuple[FilePart, Sequence[CountedLines]]],
    columns: tuple[shard_entries.Column, ...],
) -> Iterator[shard_entries.ShardInfo]:
    """Yield the shards that have records."""
    name, line = "", 1
    for (file, _), each in ((part, each) for part, several in counted for each in several):
        name, line = file.name, line if file.name == name else 1
        # a sample has an offset, and the size of each value
        raw_bytes = each.bytes + each.records * (4 + 4 * len(columns) + _ID_BYTES)
        if raw_bytes > shard_entries.MOST_SHARD_BYTES:
            raise DatasetError(
                f"{file.display_name} has {each.bytes:,} bytes of lines that cannot be cut, and a "
                "shard may have 4 GiB. Compress smaller files, store the file without compression, "
                "or convert it (cloudload convert)"
            )
        stored = shard_entries.LineRange(name, *each.stored, line, each.digest, file.tag, each.text)
        size = virtual_index.PartSize(each.records, raw_bytes, each.stored[1] - each.stored[0])
        if each.records:
            yield virtual_index.describe_shard(stored, size, columns)
        line += each.lines
