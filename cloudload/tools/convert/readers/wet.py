"""WET files of Common Crawl: the text of web pages, one document per page.

    WARC/1.0 ⏎ WARC-Type: warcinfo ⏎ …            left out, because it describes the file
    WARC/1.0 ⏎ WARC-Type: conversion ⏎
    WARC-Record-ID: <urn:uuid:1f…> ⏎              its ID
    Content-Length: 5 ⏎ ⏎ hello ⏎ ⏎               its text

The headers of a record are its fields, such as `WARC-Target-URI`. A block contains whole records.
Its offset is that of its first record in the decompressed file, where a reader can restart.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, NamedTuple

from cloudload.config import choices
from cloudload.data import file_content, file_kinds, record_values
from cloudload.tools.convert import input_records
from cloudload.tools.convert.input_files import ChunkReader
from cloudload.tools.convert.input_records import BlockStart, Fields, InputBlock, Record

_MOST_LINE_BYTES, _MOST_HEADERS = 1 << 20, 1000
_SIZE = re.compile("[0-9]{1,15}")
_ID, _TYPE, _LENGTH = "WARC-Record-ID", "WARC-Type", "Content-Length"


class _Page(NamedTuple):
    """A record: the bytes that it takes, its headers, and its content, which may be too large."""

    size: int
    headers: Mapping[str, str]
    content: bytes | None


@dataclass(frozen=True, slots=True)
class WetUnit(input_records.FileUnit):
    """A WET file, cut into blocks of whole records."""

    def blocks(self, start: BlockStart, block_bytes: int, fields: Fields) -> Iterator[InputBlock]:
        chunks, counter = self.open(start)
        source = io.BufferedReader(ChunkReader(chunks), 1 << 16)
        pages = _read_pages(source, start.offset)
        for group in input_records.group_items(pages, start, block_bytes, counter):
            yield WetBlock(self.file, *group)


def _read_pages(source: BinaryIO, offset: int) -> Iterator[tuple[int, int, _Page]]:
    """Yield (offset, size, record) of each record, of which the first is at `offset`."""
    while page := _read_page(source):
        yield offset, page.size, page
        offset += page.size


def _read_page(source: BinaryIO) -> _Page | None:
    """Read the next record; None at the end of the file. Raises `DamagedError` if it is damaged."""
    size, line = 0, b"\n"
    while line and not line.strip():
        line = source.readline(_MOST_LINE_BYTES)
        size += len(line)
    if not line:
        return None
    if not line.startswith(b"WARC/"):
        raise file_content.DamagedError("the file has no record of WARC from this point on")
    headers: dict[str, str] = {}
    for _ in range(_MOST_HEADERS):
        line = source.readline(_MOST_LINE_BYTES)
        size += len(line)
        if not line.strip():
            break
        name, _, value = line.decode("utf-8", "replace").partition(":")
        headers[name.strip()] = value.strip()
    if not _SIZE.fullmatch(length := headers.get(_LENGTH, "")):
        raise file_content.DamagedError("the record has no valid Content-Length")
    content = _read_content(source, int(length))
    return _Page(size + int(length), headers, content)


def _read_content(source: BinaryIO, length: int) -> bytes | None:
    """Read the content of a record; None if it is larger than the limit."""
    if length <= file_content.MOST_RECORD_BYTES:
        content = source.read(length)
        read = len(content)
    else:
        content, read = None, 0
        while read < length and (piece := source.read(min(1 << 20, length - read))):
            read += len(piece)
    if read < length:
        raise file_content.DamagedError("the file ends within a record, so it is incomplete")
    return content


@dataclass(frozen=True)
class WetBlock(input_records.FileBlock):
    """Consecutive records of a file."""

    pages: tuple[_Page, ...]
    damage: str | None

    def records(self, text_key: str, errors: str = choices.STRICT) -> Iterator[Record]:
        for line, page in enumerate(self.pages, self.start.line):
            kind = page.headers.get(_TYPE)
            if kind == "warcinfo":
                continue
            if kind != "conversion":
                problem = f"the type of the record is {kind}, and only conversion has text"
                yield self.record(line, None, problem)
            elif page.content is None:
                problem = "the record is larger than 1 GiB, the limit of a record"
                yield self.record(line, None, problem)
            else:
                parse = partial(_parse, text_key, page.headers)
                yield self.parse(line, page.content, errors, parse)
        if self.damage:
            yield self.record(self.start.line + len(self.pages), None, self.damage)


def _parse(text_key: str, headers: Mapping[str, str], content: bytes) -> record_values.Parsed:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        return None, f"the record is {file_kinds.describe_not_utf8(error)}"
    return {"id": headers.get(_ID, "").strip("<>"), **headers, text_key: text}, None
