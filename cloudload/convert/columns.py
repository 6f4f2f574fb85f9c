"""The columns of a conversion's output: what was asked for, or what the first records have."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from cloudload.convert.config import ConvertConfig
from cloudload.convert.records import InputBlock
from cloudload.errors import ConvertError
from cloudload.mds.index import Column

_BLOCKS_SEARCHED = 8

# ---------------------------------------------------------------- columns


class Peekable:
    """An iterator whose first items can be looked at without being taken."""

    def __init__(self, items: Iterator[tuple[int, InputBlock]]) -> None:
        self._items, self._seen = items, deque[tuple[int, InputBlock]]()

    def peek(self, count: int) -> Iterator[tuple[int, InputBlock]]:
        """The next `count` items, which stay."""
        for number in range(count):
            if number == len(self._seen):
                try:
                    self._seen.append(next(self._items))
                except StopIteration:
                    return
            yield self._seen[number]

    def __iter__(self) -> Iterator[tuple[int, InputBlock]]:
        while self._seen:
            yield self._seen.popleft()
        yield from self._items


def infer_columns(config: ConvertConfig, blocks: Peekable) -> tuple[Column, ...]:
    """The kept columns; an encoding that is not given is that of the first record that has the
    field."""
    encodings = {name: encoding for name, encoding in config.kept() if encoding}
    missing = {name for name, encoding in config.kept() if not encoding}
    for _, block in blocks.peek(_BLOCKS_SEARCHED if missing else 0):
        for record in block.records(config.text_key):
            for name in [name for name in missing if (record.fields or {}).get(name) is not None]:
                encodings[name] = _encoding_of((record.fields or {})[name])
                missing.remove(name)
            if not missing:
                break
        if not missing:
            break
    if missing:
        name = min(missing)
        raise ConvertError(
            f"no record near the start of the input has a field {name!r}; check the name, or say "
            f"what it is: {name}:json"
        )
    return tuple(Column.of(name, encodings[name]) for name, _ in config.kept())


def _encoding_of(value: Any) -> str:
    return {str: "str", int: "int", float: "float64", bytes: "bytes"}.get(type(value), "json")
