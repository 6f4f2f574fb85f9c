"""Read a run of row groups of a Parquet file as the samples of a virtual shard.

    footer ─► ranges of the columns' bytes ─► a few requests ─► batches of rows ─► samples
    index     neighbors are read together     Location          pyarrow            Arrow, no loop

Only the columns of the shard are read. The samples are the same as after a conversion: `id` is the
value of the file's column, or else the file's name and the row's number, counted from 1.
"""

from __future__ import annotations

import bisect
import contextlib
import io
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cloudload.data.mds import arrow_samples, footers, shard_entries
from cloudload.data.mds.encoded_rows import EncodedRows, FileFaultError, Transfer
from cloudload.data.mds.hashes import hash_bytes
from cloudload.data.storage.locations import Location
from cloudload.data.storage.retries import Watch
from cloudload.errors import StoreError
from cloudload.system import Ints

_FOOTER_HASH, _DIGITS = "sha256", 32

# one request for two ranges costs less than two requests if fewer bytes than these are between them
_MOST_GAP_BYTES = 1 << 18
# larger batches are slower, because their memory is returned to the kernel after each one
_BATCH_BYTES, _MOST_BATCH_ROWS = 1 << 22, 1 << 14
_MOST_FOOTERS = 8


def hash_footer(footer: bytes) -> str:
    """The hash of a footer in an index."""
    return hash_bytes(_FOOTER_HASH, footer)[:_DIGITS]


def read_row_groups(
    folder: Location, info: shard_entries.ShardInfo, samples: Ints | None, transfer: Transfer
) -> Iterator[EncodedRows]:
    """Read and encode the rows of a shard, or with `samples`, ascending int64 [n], only these rows.

    The other rows before the last one are then empty. Row groups without any of them are not read.
    `folder` is the folder of the dataset's files. Raises `StoreError` if the file changed or cannot
    be read, and `FileFaultError` if it is damaged.
    """
    groups, done = info.part, 0
    assert isinstance(groups, shard_entries.RowGroups)
    wanted = np.arange(info.samples) if samples is None else samples
    with _faults_of_arrow():
        source = _open_source(folder.join(groups.file), groups, info, wanted, transfer)
        for start, batch in source.batches:
            for first, stop in _find_runs(wanted, start, start + batch.num_rows):
                yield EncodedRows(b"", np.zeros(first - done, np.int64))
                row, part = source.first_row + first, batch.slice(first - start, stop - first)
                yield arrow_samples.encode_rows(part, info.columns, source.file, row)
                done = stop
            if done > wanted[-1]:
                return


def _find_runs(samples: Ints, start: int, stop: int) -> list[tuple[int, int]]:
    """The runs [first, stop) of consecutive numbers among those of `samples` in [start, stop).

    >>> _find_runs(np.array([1, 4, 5, 9]), 2, 10)
    [(4, 6), (9, 10)]
    """
    own = samples[slice(*np.searchsorted(samples, [start, stop]))]
    runs = np.split(own, np.flatnonzero(np.diff(own) != 1) + 1) if len(own) else []
    return [(int(run[0]), int(run[-1]) + 1) for run in runs]


@contextlib.contextmanager
def _faults_of_arrow() -> Iterator[None]:
    """Raise the errors of pyarrow as `FileFaultError`."""
    import pyarrow

    known = (pyarrow.ArrowException, footers.FooterError, arrow_samples.BadColumnError)
    try:
        yield
    except StoreError:
        raise
    except (*known, OSError, ValueError, MemoryError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise FileFaultError(f"cannot be read as Parquet ({reason[:500]})") from error


# ---------------------------------------------------------------- read


@dataclass(frozen=True)
class _Source:
    """The batches of a shard's rows, and where they are in their file."""

    file: str
    first_row: int
    """The number of the first row in the file, from 1."""
    batches: Iterator[tuple[int, Any]]
    """The row of the shard at which each `pyarrow.RecordBatch` starts, from 0, and the batch."""


def _open_source(
    location: Location,
    groups: shard_entries.RowGroups,
    info: shard_entries.ShardInfo,
    wanted: Ints,
    transfer: Transfer,
) -> _Source:
    """Read the bytes of the columns of the row groups with the rows `wanted` of the shard, which
    ascend, and begin to decode them."""
    import pyarrow.parquet

    metadata = _find_footer(location, groups, transfer.watch)
    if metadata.num_row_groups < groups.stop:
        raise footers.FooterError(f"it has only {metadata.num_row_groups:,} row groups")
    rows = [metadata.row_group(index).num_rows for index in range(groups.stop)]
    bounds = np.cumsum([0, *rows[groups.first :]])
    is_chosen = np.diff(np.searchsorted(wanted, bounds)) > 0
    chosen = [
        _Group(groups.first + at, int(bounds[at])) for at in np.flatnonzero(is_chosen).tolist()
    ]
    leaves = footers.find_leaves(metadata, (column.name for column in info.columns))
    stop = groups.footer[0]
    found = [footers.measure_group(metadata, group, leaves, stop) for group, _ in chosen]
    spans = sorted(span for each in found for span in each.spans)
    parts = _read_spans(location, groups.tag, spans, transfer)
    parquet = pyarrow.parquet.ParquetFile(
        _Parts(parts, groups.footer[1]),
        metadata=metadata,
        pre_buffer=False,
        page_checksum_verification=True,
    )
    row_bytes = sum(each.raw_bytes for each in found) // max(1, sum(each.rows for each in found))
    most_rows = max(1, _BATCH_BYTES // max(1, row_bytes))
    most_rows = min(most_rows, _MOST_BATCH_ROWS, int(wanted[-1]) + 1)

    def read() -> Iterator[tuple[int, Any]]:
        for group, start in chosen:
            at = start
            for batch in parquet.iter_batches(
                most_rows, row_groups=[group], columns=list(leaves.values()), use_threads=False
            ):
                yield at, batch
                at += batch.num_rows
            if at != start + rows[group]:
                raise footers.FooterError(
                    f"row group {group} has {at - start:,} of the {rows[group]:,} rows that its "
                    "footer lists"
                )

    return _Source(groups.file, 1 + sum(rows[: groups.first]), read())


class _Group(NamedTuple):
    """A row group that is read: its index in the file, and the row of the shard at which it
    starts."""

    group: int
    start: int


_footers: OrderedDict[tuple[str, str, str], Any] = OrderedDict()
"""The footers that this process parsed last, by URL, hash, and tag."""


def _find_footer(location: Location, groups: shard_entries.RowGroups, watch: Watch | None) -> Any:
    key = location.url, groups.digest, groups.tag
    if (found := _footers.get(key)) is None:
        data = location.read_range(*groups.footer, groups.tag, watch)
        if (digest := hash_footer(data)) != groups.digest:
            if groups.tag:  # the store says that the file is the same, so the bytes are damaged
                raise footers.FooterError(
                    f"its footer has the hash {digest}, but the index says {groups.digest}"
                )
            raise StoreError(
                f"{location} changed since the run began: its footer had the hash {groups.digest}, "
                f"and now has {digest}. Restore the file, or start a new run"
            )
        found = _footers[key] = footers.parse_footer(data)
    while len(_footers) > _MOST_FOOTERS:
        _footers.popitem(last=False)
    return found


def join_spans(spans: Iterable[footers.Span], most_gap_bytes: int) -> list[footers.Span]:
    """Join ascending ranges with few bytes between them, so that one request reads them."""
    joined: list[footers.Span] = []
    for start, stop in spans:
        if joined and start - joined[-1][1] <= most_gap_bytes:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    return joined


def _read_spans(
    location: Location, tag: str, spans: list[footers.Span], transfer: Transfer
) -> list[tuple[int, bytes]]:
    """Read ranges of a file. Returns (start, bytes) of each request."""
    parts = [
        (start, location.read_range(start, stop, tag, transfer.watch))
        for start, stop in join_spans(spans, _MOST_GAP_BYTES)
        if start < stop
    ]
    transfer.count_bytes(sum(len(data) for _, data in parts))
    return parts


class _Parts(io.RawIOBase):
    """A file of which only some parts can be read, for pyarrow."""

    def __init__(self, parts: list[tuple[int, bytes]], size: int) -> None:
        self._parts = [(start, memoryview(data)) for start, data in parts]
        self._size, self._at = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1) -> memoryview:
        """Return a view, because pyarrow does not copy it."""
        place = bisect.bisect_right(self._parts, self._at, key=lambda part: part[0]) - 1
        start, data = self._parts[place] if place >= 0 else (0, memoryview(b""))
        found = data[self._at - start : self._at - start + size]
        if len(found) < size:
            raise ValueError("a column's data is outside the bytes that the footer lists for it")
        self._at += size
        return found
