"""The file format of a loss log: a header, then chunks that are appended.

    file     magic | chunk of the header | chunk of records | chunk of records | …
    chunk    size and CRC-32 | zlib: the header's JSON, or records
    records  count | each column as differences, with bytes of equal significance grouped
    columns  the table's columns | times | sums

If a process is killed during a write, readers ignore the incomplete last chunk. About half of the
compressed bytes are sums, because the last bits of sums are random.
"""

from __future__ import annotations

import json
import logging
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from cloudload.errors import DatasetError
from cloudload.system import Flags, Floats, Ints

COLUMNS = ("step", "row", "stream", "epoch", "sample", "start", "stop", "tokens")
STEP, ROW, STREAM, EPOCH, SAMPLE, START, STOP, TOKENS = range(len(COLUMNS))
"""Columns of records, int64 [records, 8]: tokens [start, stop) of a sample in a row of the run, and
the number of its tokens that have a loss."""
SUFFIX = ".losses"

logger = logging.getLogger("cloudload.losses")

_MAGIC = b"cloudload losses 1\n"
_HEAD = struct.Struct("<QI")
_FEWEST_BYTES, _MOST_RATIO = 1 << 26, 100
"""How large a file may be uncompressed: 64 MiB, or 100 times its size if that is more."""
_DELTA = (STEP, ROW, STREAM, EPOCH)
"""The columns that are stored as differences, because they change little between records."""


class Records(NamedTuple):
    """A table of records, int64 [records, 8], and the sum of losses of each, float64 [records]."""

    table: Ints
    sums: Floats

    def take(self, which: Any) -> Records:
        """Return the records that an index array, a mask or a slice selects."""
        return Records(self.table[which], self.sums[which])

    @staticmethod
    def concatenate(parts: list[Records]) -> Records:
        """Concatenate records, in order."""
        tables = [part.table for part in parts] or [np.empty((0, len(COLUMNS)), np.int64)]
        sums = [part.sums for part in parts] or [np.empty(0)]
        return Records(np.concatenate(tables), np.concatenate(sums))


@dataclass(frozen=True)
class MeanLoss:
    """The mean loss of a source over some steps."""

    tokens: int
    """Number of tokens that have a loss."""
    sum: float
    """The sum of the tokens' losses."""

    @property
    def mean(self) -> float:
        """The mean loss; NaN without tokens."""
        return self.sum / self.tokens if self.tokens else float("nan")


def find_last(rows: Ints, times: Ints) -> Flags:
    """Return which records are the latest of their rows: bool [records].

    `rows` and `times` are int64 [records]. Records that are added together have the same time.
    """
    _, indices = np.unique(rows, return_inverse=True)
    last = np.zeros(len(rows), np.int64)
    np.maximum.at(last, indices, times)
    found: Flags = times == last[indices]
    return found


def start_file(file: BinaryIO, header: Mapping[str, Any]) -> None:
    """Write the magic number and the header of a loss log. `header` must be JSON-serializable."""
    file.write(_MAGIC)
    _write_chunk(file, json.dumps(header).encode())


def write_records(file: BinaryIO, records: Records, times: Ints) -> None:
    """Append a chunk of records, and when each was added: int64 [records], in μs since 1970."""
    table = records.table.copy()
    table[1:, _DELTA] -= records.table[:-1, _DELTA]
    table[:, STOP] -= records.table[:, START]
    table[:, TOKENS] -= table[:, STOP]
    columns = [*table.T, np.diff(times, prepend=0), records.sums.view(np.int64)]
    count = np.array([len(table)], np.int64).tobytes()
    _write_chunk(file, count + b"".join(map(_shuffle, columns)))


def read_file(path: Path) -> tuple[dict[str, Any], list[tuple[Records, Ints]]]:
    """Read the header of a file, and its chunks of records with their times.

    Raises `DatasetError` if it is not a loss log or it is damaged, and `OSError` if it cannot be
    read.
    """
    content = path.read_bytes()
    try:
        if not content.startswith(_MAGIC):
            raise ValueError("it does not begin like one")
        chunks = _read_chunks(content, path)
        header = _parse_header(next(chunks, b""))
        return header, [_parse_records(chunk, len(header["streams"])) for chunk in chunks]
    except (ValueError, RecursionError, zlib.error) as error:
        raise DatasetError(
            f"{path} is not a loss log, or it is damaged ({error}). Pass the folder that LossLog "
            "wrote, or remove this file from it"
        ) from None


def _write_chunk(file: BinaryIO, payload: bytes) -> None:
    packed = zlib.compress(payload, 6)
    file.write(_HEAD.pack(len(packed), zlib.crc32(packed)) + packed)


def _read_chunks(content: bytes, path: Path) -> Iterator[bytes]:
    """Yield the chunks of a file, except for an incomplete last one.

    Raises `ValueError` if they would be too large.
    """
    index, left = len(_MAGIC), max(_FEWEST_BYTES, _MOST_RATIO * len(content))
    while index + _HEAD.size <= len(content):
        size, crc = _HEAD.unpack_from(content, index)
        packed = content[index + _HEAD.size : index + _HEAD.size + size]
        end = index + _HEAD.size + size
        if len(packed) < size or zlib.crc32(packed) != crc:
            if end < len(content):
                logger.warning(
                    "%s is damaged at byte %s. Its losses after that are ignored",
                    path,
                    f"{index:,}",
                )
            return
        payload = zlib.decompressobj().decompress(packed, left + 1)
        left -= len(payload)
        if left < 0:
            raise ValueError(f"it would be more than {_MOST_RATIO} times as large uncompressed")
        yield payload
        index = end


def _parse_header(payload: bytes) -> dict[str, Any]:
    header = json.loads(payload)
    if not isinstance(header, dict) or not {"streams", "state"} <= header.keys():
        raise ValueError("its header lacks streams or state")
    streams, state = header["streams"], header["state"]
    if not isinstance(streams, list) or not all(isinstance(each, str) for each in streams):
        raise ValueError("its streams are not a list of names")
    if not isinstance(state, dict | None):
        raise ValueError("its state is not a mapping")
    return header


def _parse_records(payload: bytes, num_streams: int) -> tuple[Records, Ints]:
    """Parse a chunk of records. Raises `ValueError` if it is damaged."""
    [count] = np.frombuffer(payload, np.int64, 1).tolist()
    if count < 0:
        raise ValueError(f"a chunk has {count} records")
    columns = np.frombuffer(payload, np.uint8, offset=8).reshape(len(COLUMNS) + 2, 8, count)
    numbers = np.ascontiguousarray(columns.transpose(0, 2, 1)).view(np.int64)[..., 0]
    table, sums = numbers[:-2].T.copy(), numbers[-1].copy().view(np.float64)
    table[:, _DELTA] = np.cumsum(table[:, _DELTA], axis=0)
    table[:, TOKENS] += table[:, STOP]
    table[:, STOP] += table[:, START]
    if count and not 0 <= table[:, STREAM].min() <= table[:, STREAM].max() < num_streams:
        raise ValueError(f"a record is of another stream than the {num_streams} of the header")
    return Records(table, sums), np.cumsum(numbers[-2])


def _shuffle(column: Ints) -> bytes:
    """Return the bytes of a column by significance: first the lowest byte of every value."""
    return np.ascontiguousarray(column).view(np.uint8).reshape(-1, 8).T.tobytes()
