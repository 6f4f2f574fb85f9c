"""Read the first samples of a shard, or some of a virtual one, without fetching the whole shard.

    stored bytes   ▓▓▓▓▓▓▓▓░░░░░░░░░░░░     the first bytes, decompressed as far as they reach
    temporary file count offsets header sample sample ░░░░     sparse, as large as the raw shard

The temporary file has the raw shard's size, so `Shard` can open it with all of its checks. The
shard's hash cannot be checked, because not all bytes are read.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from cloudload.data.mds import shard_entries
from cloudload.data.mds.codecs import decompress
from cloudload.data.mds.dataset import Dataset, is_in_place
from cloudload.data.mds.encoded_rows import Transfer
from cloudload.data.mds.shard import REPAIR_ADVICE, Shard
from cloudload.data.mds.virtual_shards import write_virtual_shard
from cloudload.data.storage import urls
from cloudload.data.storage.base import CHUNK_BYTES
from cloudload.data.storage.locations import Location
from cloudload.errors import DatasetError
from cloudload.system import Ints, temp_files

_USUAL_HEADER_BYTES = 2_048
_GROWTH = 4


@contextlib.contextmanager
def open_shard_start(
    dataset: Dataset, info: shard_entries.ShardInfo, num_samples: int
) -> Iterator[Shard]:
    """Open a shard to read its first `num_samples` samples, or all samples if it has fewer.

    An uncompressed shard of a local dataset is mapped in place. A virtual shard has only the
    samples asked for, and at least one. Raises `DatasetError` if the shard
    is damaged, and `StoreError` if it cannot be read.
    """
    location = dataset.locate(info)
    if info.is_virtual:
        samples = np.arange(min(max(1, num_samples), info.samples))
        yield open_samples(dataset, info, samples, Transfer(lambda _: None))
        return
    if is_in_place(dataset, info):
        path = urls.local_path(location.url)
        if not path.is_file():
            raise DatasetError(
                f"{path} is missing, but the index lists it. Copy the shard again, or run the same "
                "cloudload convert again"
            )
        yield Shard(path, info)
        return
    with (
        temp_files.explained_full_disk(),
        tempfile.NamedTemporaryFile(prefix="cloudload-head-") as file,
    ):
        file.write(_read_samples(location, info, min(num_samples, info.samples)))
        file.truncate(info.raw.bytes)
        file.flush()
        yield open_temporary(Path(file.name), info, location)


def open_samples(
    dataset: Dataset, info: shard_entries.ShardInfo, samples: Ints, transfer: Transfer
) -> Shard:
    """Open a virtual shard to read only its `samples`, ascending int64 [n].

    The shard ends after the last of them. Raises `DatasetError` if the file is damaged, and
    `StoreError` if it changed or cannot be read.
    """
    location, folder = dataset.locate(info), dataset.files or dataset.location
    with (
        temp_files.explained_full_disk(),
        tempfile.NamedTemporaryFile(prefix="cloudload-head-") as file,
    ):
        target = cast("BinaryIO", file)
        if fault := write_virtual_shard(folder, info, target, transfer, samples):
            raise DatasetError(f"{location} {fault}. Repair the file, or leave it out")
        info = replace(info, samples=int(samples[-1]) + 1)
        return open_temporary(Path(file.name), info, location)


def open_temporary(path: Path, info: shard_entries.ShardInfo, location: Location) -> Shard:
    """Open a temporary file as the shard at `location`. Each `DatasetError` names its URL."""
    try:
        shard = Shard(path, info)
    except DatasetError as error:
        fault = str(error).replace(str(path), str(location)).removesuffix(f" {REPAIR_ADVICE}")
        raise DatasetError(f"{fault} Convert or copy the shard again") from None
    shard.url = str(location)
    return shard


def _read_samples(location: Location, info: shard_entries.ShardInfo, num_samples: int) -> bytes:
    """The raw bytes of a shard, at least up to the end of its first `num_samples` samples."""
    stop = 4 * (num_samples + 2)
    raw = _read_raw(location, info, 4 * (info.samples + 2) + _USUAL_HEADER_BYTES)
    if len(raw) >= stop:
        stop = int(np.frombuffer(raw, "<u4", 1, stop - 4)[0])
    return raw if len(raw) >= stop else _read_raw(location, info, stop)


def _read_raw(location: Location, info: shard_entries.ShardInfo, num_bytes: int) -> bytes:
    """At least the first `num_bytes` bytes of a raw shard, or all bytes if it has fewer.

    Raises `DatasetError` if the stored shard has fewer bytes than the index says.
    """
    num_bytes = min(num_bytes, info.raw.bytes)
    raw = (
        location.read(num_bytes - 1)
        if info.zipped is None or info.compression is None
        else _read_decompressed(location, info, info.compression, num_bytes)
    )
    if len(raw) < num_bytes:
        raise DatasetError(
            f"{location} ends after {len(raw):,} raw bytes, but the index says "
            f"{info.raw.bytes:,}. Convert or copy the shard again"
        )
    return raw[: info.raw.bytes]


def _read_decompressed(
    location: Location, info: shard_entries.ShardInfo, compression: str, num_bytes: int
) -> bytes:
    """At least the first `num_bytes` bytes of a decompressed object, or all if it has fewer."""
    size = max(CHUNK_BYTES, num_bytes // 8)
    while True:
        stored = location.read(size - 1)
        is_whole = len(stored) < size
        try:
            # snappy cannot decompress only the first bytes
            raw = decompress(compression, stored, info.raw.bytes if is_whole else num_bytes)
        except Exception as error:
            if is_whole:
                raise DatasetError(
                    f"{location} cannot be decompressed ({error}). Convert or copy the shard again"
                ) from error
            raw = b""  # the codec needs the whole object
        if is_whole or len(raw) >= num_bytes:
            return raw
        size *= _GROWTH
