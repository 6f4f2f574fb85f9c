"""Tar archives of text in the format of WebDataset, one document per sample.

    members    0001.txt  0001.json │ 0002.json                  │ doc/a.txt  doc/a.cls
    keys       0001                │ 0002                       │ doc/a
    text       0001.txt            │ the text field of the JSON │ doc/a.txt

Consecutive files belong to one sample if their paths are equal up to the first dot of the file
name. The `.txt` file of a sample is its text, and the object in its `.json` file has its fields. A
file with any other extension is a field of that name. Files are never unpacked to disk, and paths
are used only as IDs, so a malicious path does no harm. A block contains whole samples. The offset
of a block is that of its first tar header, so a reader can restart there.

Archives are read from front to back. The standard library's `tarfile` stops silently at a header
that it cannot read, and after the first of several concatenated archives. `read_members` raises an
error in both cases.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from cloudload.config import choices
from cloudload.data import file_content, file_kinds, record_values, urls
from cloudload.errors import ConvertError
from cloudload.tools.convert import input_records
from cloudload.tools.convert.input_files import ChunkReader
from cloudload.tools.convert.input_records import BlockStart, Fields, InputBlock, Record
from cloudload.tools.convert.values import parse_text

_NAME = re.compile(r"(?:\./)*(?P<key>(?:.*/)?[^./][^./]*)\.(?P<extension>[^/]*)", re.DOTALL)
_TEXT, _JSON = "txt", "json"
_SAMPLE_BYTES = 200  # overhead that each sample adds to the size of its block, besides its data

_HEADER_BYTES = 512
_READ_BYTES = 1 << 16


@dataclass
class _Sample:
    """The files of a sample by extension, with None for the data of files that are not read."""

    key: str
    offset: int
    files: dict[str, bytes | None] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class WebDatasetUnit(input_records.FileUnit):
    """A tar archive, cut into blocks of whole samples."""

    def blocks(self, start: BlockStart, block_bytes: int, fields: Fields) -> Iterator[InputBlock]:
        chunks, counter = self.open(start)
        found = _group(read_members(chunks, partial(_is_wanted, fields)), start.offset)
        samples = ((sample.offset, self._check(sample, fields), sample) for sample in found)
        for group in input_records.group_items(samples, start, block_bytes, counter):
            yield WebDatasetBlock(self.file, *group, fields.encodings)

    def _check(self, sample: _Sample, fields: Fields) -> int:
        """Return the size of a sample in bytes.

        Raises `ConvertError` if a file has many records, because it is not part of a sample.
        """
        size = _SAMPLE_BYTES + sum(len(data) for data in sample.files.values() if data)
        if {_TEXT, _JSON, fields[0]} & sample.files.keys():
            return size
        for extension in sample.files:
            kind, _ = file_kinds.split_name(f"a.{extension}")
            if kind in file_kinds.FORMATS_BY_EXTENSION and kind != f".{_JSON}":
                raise ConvertError(
                    f"{self.file.display_name} is not a WebDataset, because "
                    f"{sample.key}.{extension} is a file of many records "
                    f"({file_kinds.FORMATS_BY_EXTENSION[kind]}). Unpack the archive, and convert "
                    "the folder"
                )
        return size


def _is_wanted(fields: Fields, name: str) -> bool:
    match = _NAME.fullmatch(name)
    extension = match["extension"] if match else ""
    return extension in (_TEXT, _JSON) or input_records.is_read(extension, fields)


def _group(members: Iterator[Member], first: int) -> Iterator[_Sample]:
    """Group the files of an archive into samples. The members begin at the offset `first`.

    Hidden files are left out. If the archive is damaged, the unfinished sample before the damage is
    dropped.
    """
    sample: _Sample | None = None
    ending: MoreDataError | None = None
    try:
        for member in members:
            match = _NAME.fullmatch(member.name)
            if match is None and member.name.rpartition("/")[2].startswith("."):
                continue
            key = match["key"] if match else member.name
            if sample is None or key != sample.key:
                if sample is not None:
                    yield sample
                sample = _Sample(key, first + member.offset)
            _add(sample, match["extension"] if match else "", member)
    except MoreDataError as error:
        ending = error
    if sample is not None:
        yield sample
    if ending is not None:
        raise ending


def _add(sample: _Sample, extension: str, member: Member) -> None:
    if not extension:
        sample.problem = "the file name has no extension, so the file is not part of a sample"
    elif member.is_link:
        sample.problem = f"the file with the extension {extension!r} is a link. Links are not read"
    elif extension in sample.files:
        sample.problem = f"the sample has two files with the extension {extension!r}"
    elif member.data is None and member.size > file_content.MOST_RECORD_BYTES:
        sample.problem = (
            f"the file with the extension {extension!r} is larger than 1 GiB, the limit of a "
            f"record ({member.size:,} bytes)"
        )
    sample.files[extension] = member.data


@dataclass(frozen=True)
class WebDatasetBlock(input_records.FileBlock):
    """Consecutive samples of an archive."""

    samples: tuple[_Sample, ...]
    damage: str | None
    encodings: Mapping[str, str]

    def records(self, text_key: str, errors: str = choices.STRICT) -> Iterator[Record]:
        for sample in self.samples:
            raw = sample.files.get(_JSON) or sample.files.get(_TEXT)
            valid, is_replaced = _make_utf8(sample, self.encodings, errors)
            try:
                fields, problem = _read_fields(valid, text_key, self.encodings), None
            except ValueError as error:
                fields, problem = None, str(error)
            yield Record(self.file, sample.key, fields, problem, raw, sample.key, is_replaced)
        if self.damage:
            place = f"sample {self.start.line + len(self.samples)}"
            yield self.record(place, None, self.damage)


def _make_utf8(sample: _Sample, encodings: Mapping[str, str], errors: str) -> tuple[_Sample, bool]:
    """Return (the sample, whether bytes that are not UTF-8 were replaced in its files of text)."""
    files, replaced = dict(sample.files), False
    for extension, data in sample.files.items():
        if data is not None and encodings.get(extension) != "bytes":
            files[extension], is_replaced = input_records.make_utf8(data, errors)
            replaced = replaced or is_replaced
    return replace(sample, files=files), replaced


def _read_fields(sample: _Sample, text_key: str, encodings: Mapping[str, str]) -> dict[str, Any]:
    """Return a sample's fields. Raises a `ValueError` that describes the problem if it is bad."""
    if sample.problem:
        raise ValueError(sample.problem)
    fields: dict[str, Any] = {}
    if (data := sample.files.get(_JSON)) is not None:
        fields |= _parse_object(data)
    for extension, data in sample.files.items():
        if extension == _TEXT and data is not None and text_key not in sample.files:
            fields[text_key] = _decode(extension, data)
        if extension != _JSON:
            encoding = encodings.get(extension)
            fields[extension] = (
                data
                if data is None or encoding == "bytes"
                else parse_text(extension, _decode(extension, data), encoding)
            )
    return fields


def _decode(extension: str, data: bytes) -> str:
    try:
        return data.removeprefix(file_content.BYTE_ORDER_MARK).decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"the .{extension} file is {file_kinds.describe_not_utf8(error)}"
        ) from None


def _parse_object(data: bytes) -> dict[str, Any]:
    text = _decode(_JSON, data)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the .{_JSON} file is invalid JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"the .{_JSON} file is {record_values.name_kind(value)}, not an object")
    return value


class MoreDataError(file_content.DamagedError):
    """The file continues after the end of the archive."""


class Member(NamedTuple):
    """A file or link in an archive."""

    offset: int
    """Offset of the file's first header in the bytes that were read."""
    name: str
    size: int
    """The size of the file in bytes."""
    data: bytes | None
    """The file's bytes, or None for a link, an unwanted file, or a file larger than 1 GiB."""
    is_link: bool


def read_members(chunks: Iterator[bytes], is_wanted: Callable[[str], bool]) -> Iterator[Member]:
    """Yield the files and links of an archive, with data for files whose name `is_wanted`.

    After the last readable file, raises `DamagedError` if the archive is damaged, or
    `MoreDataError` if data follows a complete archive.
    """
    source = _RecentBytes(chunks)
    try:
        tar: Any = tarfile.open(fileobj=source, mode="r|", bufsize=_READ_BYTES)
        while member := tar.next():
            tar.members = []  # otherwise, tarfile would keep all members in memory
            is_link = member.issym() or member.islnk()
            if member.isfile() or is_link:
                is_small = member.size <= file_content.MOST_RECORD_BYTES
                is_read = is_small and not is_link and is_wanted(member.name)
                data = tar.extractfile(member).read() if is_read else None
                yield Member(member.offset, urls.utf8_name(member.name), member.size, data, is_link)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise file_content.DamagedError(
            f"the tar archive is damaged or incomplete ({error})"
        ) from error
    rest = source.since(tar.offset)
    if not rest:
        raise file_content.DamagedError(
            "the tar archive has no end marker, so it may be incomplete"
        )
    if rest[:_HEADER_BYTES].strip(b"\0"):
        raise file_content.DamagedError(
            "the tar archive is damaged from this point on (invalid header)"
        )
    if rest.strip(b"\0") or any(chunk.strip(b"\0") for chunk in iter(source.read_chunk, b"")):
        raise MoreDataError(
            "the tar archive ends here, but more data follows. If several archives were joined, "
            "convert each one separately"
        )


class _RecentBytes(io.BufferedReader):
    """A file that reads from chunks, and keeps the data of the last two reads for `since`."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        super().__init__(ChunkReader(chunks), _READ_BYTES)
        self._recent, self._end = (b"", b""), 0
        self._reads_past_end = 0

    def read(self, size: int | None = -1, /) -> bytes:
        """Read `size` bytes, or fewer at the end."""
        data = super().read(size)
        self._reads_past_end = 0 if data else self._reads_past_end + 1
        if self._reads_past_end > 2:
            # at the end of the data, tarfile keeps reading if a header declares a larger size
            raise file_content.DamagedError(
                "the tar archive is damaged or incomplete (unexpected end of data)"
            )
        self._recent = (self._recent[1], data)
        self._end += len(data)
        return data

    def read_chunk(self) -> bytes:
        """Read up to 64 KiB that `since` does not return; no bytes at the end."""
        return super().read(_READ_BYTES)

    def since(self, offset: int) -> bytes:
        """Return the bytes read from `offset` on, which must be in one of the last two reads."""
        recent = b"".join(self._recent)
        return recent[len(recent) - (self._end - offset) :] if offset < self._end else b""
