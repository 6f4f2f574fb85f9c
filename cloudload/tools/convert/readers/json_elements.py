"""Find the elements of a JSON array, in bytes that arrive in pieces.

    bytes       [{"a": 1}, {"a": [2, 3]}]
    elements     {"a": 1}   {"a": [2, 3]}

The standard library's parser finds the end of an element. If the bytes read so far end within the
element, as many bytes again are read, and the element is parsed again. The bytes are decoded as
Latin-1, in which each byte is one character. This is safe because the structure of JSON is ASCII.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from cloudload.tools.convert.input_files import MOST_RECORD_BYTES
from cloudload.tools.convert.records import BYTE_ORDER_MARK, describe_not_json

_SPACE = re.compile(r"[ \t\r\n]*")
_MOST_TOKEN_CHARACTERS = 16  # an upper bound for literals and escapes, such as \ud83d\ude00
_AFTER_NUMBER = (" ", "\t", "\r", "\n", ",", "]")
_DECODER = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)


class BrokenArrayError(Exception):
    """The next element of an array cannot be found. The message says why."""


def split_array(chunks: Iterable[bytes], *, is_begun: bool) -> Iterator[tuple[int, bytes]]:
    """Yield (the offset after an element and its comma, the element's bytes).

    With `is_begun`, the bytes begin before an element. Otherwise, they begin before the array.
    Raises `BrokenArrayError` after the last whole element, and the errors of `chunks`.
    """
    scan = _Scan(iter(chunks))
    if not is_begun:
        scan.skip(BYTE_ORDER_MARK.decode("latin-1"))
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
    """A read position in bytes that arrive in pieces."""

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
        if len(left) > MOST_RECORD_BYTES:
            raise BrokenArrayError("an element is larger than the limit of 1 GiB")
        parts, read = [left], 0
        while read < max(1, size) and (chunk := next(self._chunks, b"")):
            parts.append(chunk.decode("latin-1"))
            read += len(chunk)
        self._before, self._start, self._text = self.offset, 0, "".join(parts)
        return read


def _describe(error: Exception) -> str:
    return describe_not_json(error) if isinstance(error, json.JSONDecodeError) else str(error)


def _may_be_cut(error: Exception, size: int) -> bool:
    """Whether an error in the first `size` characters may disappear when more of them arrive."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    is_at_end = error.pos >= size - _MOST_TOKEN_CHARACTERS
    return is_at_end or error.msg.startswith("Unterminated string")
