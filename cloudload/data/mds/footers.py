"""Footers of Parquet files, and the ranges of bytes that they describe.

    PAR1 │ row group 0: a column's bytes, … │ row group 1 … │ footer │ size of the footer │ PAR1

A footer is untrusted. pyarrow parses it, and the ranges must be in front of it.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from cloudload.data.storage.locations import Location

logger = logging.getLogger("cloudload.data")

Span = tuple[int, int]
"""(start, stop): a range of bytes of a file."""

_MARK, _ENCRYPTED = b"PAR1", b"PARE"
_END_BYTES = 8  # the size of the footer, and the mark
_SIGNATURE_BYTES = 28  # of a footer that is not encrypted itself
_PIECE_BYTES = 1 << 22
TAIL_BYTES = 1 << 16
"""More bytes than most footers have, so that one request is enough."""


class FooterError(ValueError):
    """A file is not a Parquet file that can be read. The message is a clause about the file."""


def read_metadata(
    location: Location, size: int, tag: str = "", tail_bytes: int = TAIL_BYTES
) -> tuple[bytes, Any]:
    """Read and parse the footer of a file. Returns the bytes of `read_footer`, and the metadata.

    A damaged footer is read a second time, because its transfer may have damaged it. Raises the
    errors of `read_footer` and `parse_footer`.
    """
    try:
        return _read_metadata(location, size, tag, tail_bytes)
    except FooterError as error:
        logger.warning("%s cannot be read as Parquet: %s. Reading it again", location, error)
        return _read_metadata(location, size, tag, tail_bytes)


def _read_metadata(location: Location, size: int, tag: str, tail_bytes: int) -> tuple[bytes, Any]:
    footer = read_footer(location, size, tag, tail_bytes)
    metadata = parse_footer(footer)
    _refuse_joined(location, tag, size - len(footer), metadata)
    return footer, metadata


def _refuse_joined(location: Location, tag: str, stop: int, metadata: Any) -> None:
    """Raise `FooterError` if the file whose footer is at `stop` follows another Parquet file.

    The offsets in the footer would then lead to the rows of the first file.
    """
    groups = map(metadata.row_group, range(metadata.num_row_groups)[-1:])
    columns = (group.column(index) for group in groups for index in range(group.num_columns))
    end = max([len(_MARK), *(find_span(column)[1] for column in columns)])
    # the first file has as many bytes as the offsets are too small, or fewer if the last file has
    # indexes of pages between its rows and its footer
    high = stop - end + len(_MARK)
    while high >= end + 2 * len(_MARK):
        low = max(end, high - _PIECE_BYTES)
        if _MARK + _MARK in location.read_range(low, high, tag):
            raise FooterError(
                "it consists of several Parquet files that were joined. Use each one separately"
            )
        high = low + 2 * len(_MARK) - 1


def read_footer(
    location: Location, size: int, tag: str = "", tail_bytes: int = TAIL_BYTES
) -> bytes:
    """Read the footer of a file of `size` bytes, including the 8 bytes after it.

    `tag` is the file's tag in a listing. The first request reads the last `tail_bytes`, and a
    second one the rest of a larger footer. Raises `FooterError` if there is no footer, and
    `StoreError` if the file changed or cannot be read.
    """
    if size < _END_BYTES + len(_MARK):
        raise FooterError(f"it has only {size:,} bytes, so it is not a Parquet file, or is cut off")
    start = max(0, size - tail_bytes)
    tail = location.read_range(start, size, tag)
    if tail[-4:] == _ENCRYPTED:
        raise FooterError("its footer is encrypted. Write it without encryption")
    if tail[-4:] != _MARK:
        raise FooterError("it does not end like a Parquet file, so it is cut off or damaged")
    needed = struct.unpack("<I", tail[-8:-4])[0] + _END_BYTES
    if needed + len(_MARK) > size:
        raise FooterError(
            f"its last bytes announce a footer of {needed:,} bytes, but it has {size:,}"
        )
    if needed > len(tail):
        tail = location.read_range(size - needed, start, tag) + tail
    return tail[-needed:]


def parse_footer(footer: bytes) -> Any:
    """Parse a footer. Returns pyarrow's `FileMetaData`. Raises `FooterError` if it is damaged."""
    import pyarrow
    import pyarrow.parquet

    try:
        metadata = pyarrow.parquet.read_metadata(pyarrow.BufferReader(_MARK + footer))
    except (pyarrow.ArrowException, OSError, MemoryError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise FooterError(f"its footer is damaged ({reason[:300]})") from error
    # pyarrow aborts the process when it is asked for a column that is encrypted
    if metadata.serialized_size + _SIGNATURE_BYTES + _END_BYTES == len(footer):
        raise FooterError("it has encrypted columns. Write it without encryption")
    return metadata


class GroupColumns(NamedTuple):
    """Some columns of a row group."""

    rows: int
    """The number of rows of the group."""
    spans: list[Span]
    """The range of bytes of each column in the file."""
    raw_bytes: int
    """The decompressed size of the columns."""


def measure_group(metadata: Any, index: int, leaves: Iterable[int], stop: int) -> GroupColumns:
    """Measure some leaves of the row group with index `index`.

    `metadata` is a parsed footer, and `leaves` are indices in its schema. Raises `FooterError` if
    a leaf is not in front of the footer, at `stop`. A group without rows has no bytes, whatever its
    writer recorded.
    """
    group = metadata.row_group(index)
    if not group.num_rows:
        return GroupColumns(0, [], 0)
    columns = list(map(group.column, leaves))
    spans, raw_bytes = [find_span(column) for column in columns], 0
    for span, column in zip(spans, columns, strict=True):
        size = int(column.total_uncompressed_size)
        if not len(_MARK) <= span[0] <= span[1] <= stop or size < 0 or group.num_rows < 0:
            raise FooterError(
                f"its footer says that row group {index} has {group.num_rows:,} rows, and "
                f"{size:,} bytes of the column {column.path_in_schema!r} at bytes {span[0]:,} to "
                f"{span[1]:,}, but the footer begins at byte {stop:,}"
            )
        raw_bytes += size
    return GroupColumns(int(group.num_rows), spans, raw_bytes)


def find_leaves(metadata: Any, wanted: Iterable[str]) -> dict[int, str]:
    """Find the leaves of columns in a file's schema. Returns a dict from their indices to paths.

    A leaf is a column, or a field in one, such as `meta.text` or `ids.list.element`. The `wanted`
    names may be those of columns or of fields. Names that the file does not have are ignored.
    """
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    starts = tuple(f"{name}." for name in wanted)
    return {index: path for index, path in enumerate(paths) if f"{path}.".startswith(starts)}


def find_span(column: Any) -> Span:
    """The range of bytes of a row group's column, including its dictionary if it has one.

    Writers record a missing dictionary as 0 or None.
    """
    places = [column.data_page_offset, column.dictionary_page_offset or column.data_page_offset]
    return min(places), min(places) + column.total_compressed_size
