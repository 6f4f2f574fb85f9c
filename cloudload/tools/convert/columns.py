"""Choose the columns of the kept fields, whose encodings are given or inferred from records."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cloudload.data import shard_entries
from cloudload.errors import ConvertError
from cloudload.tools.convert import input_records
from cloudload.tools.convert.config import ConvertConfig
from cloudload.tools.convert.values import partition_fields

_BLOCKS_SEARCHED = 8


class PeekableBlocks:
    """An iterable of (unit index, block) whose next items can be peeked at."""

    def __init__(self, blocks: Iterator[tuple[int, input_records.InputBlock]]) -> None:
        self._blocks, self._peeked = blocks, deque[tuple[int, input_records.InputBlock]]()

    @property
    def is_begun(self) -> bool:
        """Whether an item was peeked at."""
        return bool(self._peeked)

    def peek(self, count: int) -> Iterator[input_records.InputBlock]:
        """Yield up to `count` of the next blocks without consuming them."""
        for number in range(count):
            if number == len(self._peeked):
                try:
                    self._peeked.append(next(self._blocks))
                except StopIteration:
                    return
            yield self._peeked[number][1]

    def __iter__(self) -> Iterator[tuple[int, input_records.InputBlock]]:
        while self._peeked:
            yield self._peeked.popleft()
        yield from self._blocks


def infer_columns(
    config: ConvertConfig, blocks: PeekableBlocks
) -> tuple[shard_entries.Column, ...]:
    """Return the columns of the kept fields.

    If the user gave no encoding for a field, and the format has encodings, the column has the same
    encoding as in the input. In other formats, it is `json`, which can hold null and values of any
    type, or `bytes` if the first value that is not null is bytes. Raises `ConvertError` if the
    first 8 blocks have no such value for a field, and the errors of readers.
    """
    encodings = dict(config.kept())
    missing = {name for name, encoding in encodings.items() if encoding is None}
    for found in _first_encodings(config, blocks, missing) if missing else ():
        encodings |= found
        missing -= found.keys()
        if not missing:
            break
    if missing:
        name = min(missing)
        raise ConvertError(
            f"cannot infer the encoding of the field {name!r}, because no record near the start of "
            "the input has a non-null value for it. Check the name in keep (--keep), or add an "
            f"encoding: {name}:json"
        )
    return tuple(
        shard_entries.Column.of(name, encoding or "json") for name, encoding in encodings.items()
    )


def _first_encodings(
    config: ConvertConfig, blocks: PeekableBlocks, missing: set[str]
) -> Iterator[dict[str, str]]:
    """Yield encodings of fields in `missing`, block by block and record by record."""
    for block in blocks.peek(_BLOCKS_SEARCHED):
        if isinstance(block, input_records.TypedBlock):
            given = block.column_encodings()
            yield {name: given[name] for name in given.keys() & missing}
        for record in block.records(config.text_field):
            if record.fields is not None:
                yield dict(_encodings_of(record, record.fields, sorted(missing)))


def _encodings_of(
    record: input_records.Record, fields: Mapping[str, Any], names: Iterable[str]
) -> Iterator[tuple[str, str]]:
    for name in names:
        try:
            value = input_records.find_field(fields, name)
        except KeyError:
            value = partition_fields(record).get(name)
        if value is not None:
            yield name, _encoding_of(value)


def _encoding_of(value: Any) -> str:
    return "bytes" if isinstance(value, bytes) else "json"
