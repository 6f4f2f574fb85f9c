"""Write a virtual shard, which is stored as a part of a file, as a raw MDS shard.

    row groups of a Parquet file ─► row_groups ─┐
                                                ├─► samples ─► count │ offsets │ header │ samples
    lines of a JSON Lines file   ─► json_lines ─┘

The size of the shard and the hash of its samples are unknown until it was written. The shard's
header has the hash, from which a cached shard is checked.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from typing import BinaryIO

import numpy as np

from cloudload.data.mds import json_lines, row_groups, shard_entries, writer
from cloudload.data.mds.encoded_rows import EncodedRows, FileFaultError, Resize, Transfer
from cloudload.data.mds.hashes import hash_samples
from cloudload.data.storage.locations import Location
from cloudload.errors import DatasetError
from cloudload.system import Ints

ReadRows = Callable[
    [Location, shard_entries.ShardInfo, Ints | None, Transfer], Iterator[EncodedRows]
]
"""Reads a shard, given the folder of the files, or only some of its samples, as
`write_virtual_shard` does."""

_READERS: dict[str, ReadRows] = {
    shard_entries.PARQUET: row_groups.read_row_groups,
    shard_entries.JSON_LINES: json_lines.read_json_lines,
}
_HASH_DIGITS = 32
_GROWTH = 5 / 4  # the room for a shard grows in steps, because each one takes a lock


def write_virtual_shard(
    folder: Location,
    info: shard_entries.ShardInfo,
    file: BinaryIO,
    transfer: Transfer,
    samples: Ints | None = None,
) -> str | None:
    """Read the part of a file that is a shard, and write it raw to `file`. Returns a fault or None.

    `folder` is the folder of the dataset's files. With `samples`, ascending int64 [n], the shard
    ends after the last one, and other samples may be empty, because their rows need not be read.
    Raises `StoreError` if the file changed or cannot be read, `DatasetError` if the raw shard would
    be too large, and `OSError` if it cannot be written.
    """
    count = info.samples if samples is None else int(samples[-1]) + 1
    assert info.compression is not None
    try:
        rows = _READERS[info.compression](folder, info, samples, transfer)
        _write_samples(rows, info, count, file, transfer.resize)
    except FileFaultError as fault:
        return str(fault)
    return None


def _write_samples(
    rows: Iterator[EncodedRows],
    info: shard_entries.ShardInfo,
    count: int,
    file: BinaryIO,
    resize: Resize,
) -> None:
    """Write the first `count` samples as a raw shard. Its head comes last, as it has their hash."""
    form = writer.ShardFormat(info.columns, compression=None, hashes=())
    start = end = len(writer.encode_shard_head(form, np.zeros(count, np.int64), "0" * _HASH_DIGITS))
    room, sizes = info.raw.bytes, np.zeros(0, np.int64)
    file.seek(start)
    found: list[Ints] = []
    for each in rows:
        end += len(each.data)
        if end > shard_entries.MOST_SHARD_BYTES:
            raise DatasetError(
                f"{info.stored.name} has more than 4 GiB of values, which is the limit of a shard. "
                "Write smaller files or row groups, or convert the file (cloudload convert)"
            )
        if end > room:
            resize(room := int(end * _GROWTH))
        file.write(each.data)
        found.append(each.sizes)
    sizes = np.concatenate([sizes, *found])
    if len(sizes) != count:
        raise FileFaultError(f"has {len(sizes):,} of the {count:,} samples that the index lists")
    file.truncate(end)
    resize(end)
    file.flush()
    with mmap.mmap(file.fileno(), end, access=mmap.ACCESS_READ) as written:
        digest = hash_samples(sizes, memoryview(written)[start:])
    file.seek(0)
    file.write(writer.encode_shard_head(form, sizes, digest))
    file.flush()
