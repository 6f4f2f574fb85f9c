"""Files named `.json`: an array of objects, or JSON Lines, depending on the first character.

    file     [{"text": "a"}, {"text": "b"}, {"text": "c"}]          block_bytes = 20
    blocks    {"text": "a"}, {"text": "b"} │ {"text": "c"}

A block of an array ends when its elements have at least `block_bytes`, or when the file ends. Its
offset is that of its first element, where a reader can restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from cloudload.config.choices import STRICT
from cloudload.tools.convert.input_files import (
    DamagedError,
    InputFile,
    StoredByteCounter,
    read_decompressed,
)
from cloudload.tools.convert.readers.json_elements import BrokenArrayError, split_array
from cloudload.tools.convert.readers.json_objects import parse_object
from cloudload.tools.convert.readers.lines import LinesUnit
from cloudload.tools.convert.records import (
    BYTE_ORDER_MARK,
    BlockStart,
    Fields,
    FileUnit,
    InputBlock,
    Record,
    make_utf8,
)


@dataclass(frozen=True, slots=True)
class JsonUnit(FileUnit):
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
        with suppress(DamagedError):  # the reader of the blocks reports the damage
            for chunk in read_decompressed(self.file):
                head = (head + chunk).removeprefix(BYTE_ORDER_MARK).lstrip()
                if head:
                    break
        return head.startswith(b"[")

    def _array_blocks(self, start: BlockStart, block_bytes: int) -> Iterator[InputBlock]:
        counter, first = StoredByteCounter(start.stored), start.offset
        chunks = read_decompressed(self.file, first, counter)
        elements, size, damage, place = list[bytes](), 0, None, 0
        try:
            for after, element in split_array(chunks, is_begun=start.offset > 0):
                if size >= block_bytes:
                    line = start.line + len(elements)
                    end = BlockStart(first + place, line, counter.bytes)
                    yield self._block(start, counter, elements)
                    elements, size, start = [], 0, end
                elements.append(element)
                size += len(element)
                place = after
        except (DamagedError, BrokenArrayError) as error:
            damage = str(error)
        if elements or damage:
            yield self._block(start, counter, elements, damage)

    def _block(
        self,
        start: BlockStart,
        counter: StoredByteCounter,
        elements: Sequence[bytes],
        damage: str | None = None,
    ) -> InputBlock:
        read = counter.bytes - start.stored
        return JsonArrayBlock(self.file, start, read, tuple(elements), damage)


@dataclass(frozen=True)
class JsonArrayBlock:
    """Consecutive elements of a JSON array, not parsed yet."""

    file: InputFile
    start: BlockStart
    input_bytes: int
    elements: tuple[bytes, ...]
    damage: str | None

    def records(self, text_key: str, errors: str = STRICT) -> Iterator[Record]:
        for number, element in enumerate(self.elements, self.start.line):
            data, is_replaced = make_utf8(element, errors)
            fields, problem = parse_object(data)
            place = str(number)
            yield Record(self.file, place, fields, problem, element, is_replaced=is_replaced)
        if self.damage:
            number = self.start.line + len(self.elements)
            yield Record(self.file, str(number), None, self.damage)
