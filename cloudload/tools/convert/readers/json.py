"""Files named `.json`: an array of objects, or JSON Lines, depending on the first character.

    file        [{"text": "a"}, {"text": "b"}, {"text": "c"}]          block_bytes = 20
    elements     {"text": "a"} │ {"text": "b"} │ {"text": "c"}
    blocks       {"text": "a"}, {"text": "b"} │ {"text": "c"}

A block of an array ends when its elements have at least `block_bytes`, or when the file ends. Its
offset is that of its first element, where a reader can restart. `split_array` finds the elements in
bytes that arrive in pieces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from cloudload.config import choices
from cloudload.data import file_content, json_records
from cloudload.tools.convert import input_files, input_records
from cloudload.tools.convert.input_records import BlockStart, Fields, InputBlock, Record
from cloudload.tools.convert.readers.lines import LinesUnit

_SPACE = re.compile(r"[ \t\r\n]*")
_MOST_TOKEN_CHARACTERS = 16  # an upper bound for literals and escapes, such as \ud83d\ude00
_AFTER_NUMBER = (" ", "\t", "\r", "\n", ",", "]")
_DECODER = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)


@dataclass(frozen=True, slots=True)
class JsonUnit(input_records.FileUnit):
    """A file that contains a JSON array or JSON lines. Stdin must be an array."""

    def blocks(self, start: BlockStart, block_bytes: int, fields: Fields) -> Iterator[InputBlock]:
        if self._is_array():
            yield from self._array_blocks(start, block_bytes)
        else:
            yield from LinesUnit(self.file).blocks(start, block_bytes, fields)

    def _is_array(self) -> bool:
        if self.file.url == "-":
            return True
        head = b""
        with suppress(file_content.DamagedError):  # the reader of the blocks reports the damage
            for chunk in input_files.read_decompressed(self.file):
                head = (head + chunk).removeprefix(file_content.BYTE_ORDER_MARK).lstrip()
                if head:
                    break
        return head.startswith(b"[")

    def _array_blocks(self, start: BlockStart, block_bytes: int) -> Iterator[InputBlock]:
        chunks, counter = self.open(start)
        elements = _locate_elements(chunks, start.offset)
        for group in input_records.group_items(elements, start, block_bytes, counter):
            yield JsonArrayBlock(self.file, *group)


def _locate_elements(chunks: Iterable[bytes], first: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield (offset, size, element) of each element; the chunks begin at offset `first`."""
    offset = first
    for after, element in split_array(chunks, is_begun=first > 0):
        yield offset, len(element), element
        offset = first + after


@dataclass(frozen=True)
class JsonArrayBlock(input_records.FileBlock):
    """Consecutive elements of a JSON array, not parsed yet."""

    elements: tuple[bytes, ...]
    damage: str | None

    def records(self, text_key: str, errors: str = choices.STRICT) -> Iterator[Record]:
        for line, element in enumerate(self.elements, self.start.line):
            yield self.parse(line, element, errors, json_records.parse_object)
        if self.damage:
            yield self.record(self.start.line + len(self.elements), None, self.damage)


class BrokenArrayError(file_content.DamagedError):
    """The next element of an array cannot be found. The message says why."""


def split_array(chunks: Iterable[bytes], *, is_begun: bool) -> Iterator[tuple[int, bytes]]:
    """Yield (the offset after an element and its comma, the element's bytes).

    With `is_begun`, the bytes begin before an element. Otherwise, they begin before the array.
    Raises `BrokenArrayError` after the last whole element, and the errors of `chunks`.
    """
    scan = _Scan(iter(chunks))
    if not is_begun:
        scan.skip(file_content.BYTE_ORDER_MARK.decode("latin-1"))
        if not scan.skip("["):
            raise BrokenArrayError("the file does not begin with an array")
    has_more = is_begun or not scan.skip("]")
    while has_more:
        element = scan.take_element()
        has_more = scan.skip(",")
        is_broken = not has_more and not scan.skip("]")
        yield scan.offset, element
        if is_broken:
            found = "the file ends" if scan.is_at_end() else "the array has no comma"
            raise BrokenArrayError(f"{found} after the previous element")
    if not scan.is_at_end():
        raise BrokenArrayError("the file has more data after the array")


class _Scan:
    """A read position in bytes that arrive in pieces.

    The standard library's parser finds the end of an element. If the bytes read so far end within
    the element, as many bytes again are read, and the element is parsed again. The bytes are
    decoded as Latin-1, in which each byte is one character. This is safe because the structure of
    JSON is ASCII.
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._text, self._start = chunks, "", 0
        self._before = 0  # number of bytes dropped from the start

    @property
    def offset(self) -> int:
        """The offset of the read position, in bytes."""
        return self._before + self._start

    def skip(self, sign: str) -> bool:
        """Skip white space, then `sign` if it follows. Return whether `sign` followed."""
        while True:
            if found := _SPACE.match(self._text, self._start):
                self._start = found.end()
            if len(self._text) - self._start >= len(sign) or not self._read(1):
                break
        is_found = self._text.startswith(sign, self._start)
        self._start += len(sign) if is_found else 0
        return is_found

    def is_at_end(self) -> bool:
        """Whether only white space remains."""
        self.skip("\0")
        return self._start == len(self._text)

    def take_element(self) -> bytes:
        """Return the bytes of the next element, and move the read position after it."""
        self.skip("\0")
        while True:
            size = len(self._text) - self._start
            try:
                _, end = _DECODER.raw_decode(self._text, self._start)
            except (ValueError, RecursionError) as error:
                if not _may_be_cut(error, len(self._text)) or not self._read(size):
                    problem = f"the file has invalid JSON ({_describe(error)})"
                    raise BrokenArrayError(problem) from None
                continue
            is_whole = self._text[end - 1] in '}]"' or self._text[end : end + 1] in _AFTER_NUMBER
            is_cut = not is_whole and len(self._text) - end < _MOST_TOKEN_CHARACTERS
            if not is_cut or not self._read(size):
                element = self._text[self._start : end].encode("latin-1")
                self._start = end
                return element

    def _read(self, size: int) -> int:
        """Read at least `size` more bytes, or up to the end. Return the number of bytes read."""
        left = self._text[self._start :]
        if len(left) > file_content.MOST_RECORD_BYTES:
            raise BrokenArrayError("an element is larger than the limit of 1 GiB")
        parts, read = [left], 0
        while read < max(1, size) and (chunk := next(self._chunks, b"")):
            parts.append(chunk.decode("latin-1"))
            read += len(chunk)
        self._before, self._start, self._text = self.offset, 0, "".join(parts)
        return read


def _describe(error: Exception) -> str:
    return (
        json_records.describe_not_json(error)
        if isinstance(error, json.JSONDecodeError)
        else str(error)
    )


def _may_be_cut(error: Exception, size: int) -> bool:
    """Whether an error in the first `size` characters may disappear when more of them arrive."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    is_at_end = error.pos >= size - _MOST_TOKEN_CHARACTERS
    return is_at_end or error.msg.startswith("Unterminated string")
