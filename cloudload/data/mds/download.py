"""Download a shard, and check its file against its index entry.

    stored bytes ─ size, hash ─► decompressed ─ size ─► raw shard ─ header: count, offsets, columns
    part of file ─ hash, tag ──► decoded ─ rows ──────► raw shard      ─► None, or the fault

If the index has a hash of the stored file that Python can compute, it is checked. Otherwise, the
raw shard's hash is checked. A fault is text to append to the file's name, such as "has 10 of the 20
bytes that the index lists".
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from cloudload.data.mds import shard_entries
from cloudload.data.mds.codecs import decompress, decompress_into
from cloudload.data.mds.encoded_rows import Resize, Transfer
from cloudload.data.mds.hashes import fastest_hash, new_hash
from cloudload.data.mds.shard import REPAIR_ADVICE, Shard
from cloudload.data.mds.virtual_shards import write_virtual_shard
from cloudload.data.storage.locations import Location
from cloudload.data.storage.retries import Watch
from cloudload.data.storage.versions import UNKNOWN, Version
from cloudload.errors import DatasetError


class Download(NamedTuple):
    """The result of a download: the fault of the shard, or None, and the object's version."""

    fault: str | None
    version: Version


def download_shard(
    location: Location,
    info: shard_entries.ShardInfo,
    file: BinaryIO,
    *,
    checks_hash: bool,
    count_bytes: Callable[[int], None],
    watch: Watch | None = None,
    resize: Resize = lambda _: None,
) -> Download:
    """Download a shard, and write its raw bytes to `file`.

    Checks the sizes, and the hash if `checks_hash` is True, but not the header. Passes the number
    of downloaded bytes to `count_bytes`, even if there is a fault. A caller that passes `watch`
    reports its own waits; see `storage.retries`. Passes the size of a virtual shard to `resize`, if
    it is not the one in the index. Raises `StoreError` if the download fails.
    """
    file.seek(0)
    if info.is_virtual:
        folder = location.at(location.url.removesuffix(f"/{info.stored.name}"))
        transfer = Transfer(count_bytes, resize, watch, checks_hash)
        return Download(write_virtual_shard(folder, info, file, transfer), UNKNOWN)
    target = file if info.zipped is None else io.BytesIO()
    version = location.download(target, info.stored.bytes, watch)
    count_bytes(target.tell())
    if isinstance(target, io.BytesIO):
        data = target.getvalue()
        fault = check_data(data, info.stored, checks_hash) or _decompress(
            data, info, file, checks_hash=checks_hash
        )
    else:
        fault = _check_file(target, info.stored, checks_hash)
    return Download(fault, version)


def decompress_checked(
    data: bytes, info: shard_entries.ShardInfo, target: memoryview, *, checks_hash: bool
) -> str | None:
    """Decompress a stored shard to `target`, and return the fault of the raw shard, or None.

    `target` is one byte larger than the raw shard in the index, so that extra data is detected. If
    `checks_hash` is True and the index has no hash of the stored shard, this checks the hash of the
    raw shard.
    """
    assert info.compression is not None
    try:
        size = decompress_into(info.compression, data, target)
    except Exception as error:
        return f"cannot be decompressed ({error})"
    fault = check_data(target[:size], info.raw, checks_hash and not info.has_stored_hash)
    return fault and f"{fault}, after decompression"


def describe_second_fault(location: Location, info: shard_entries.ShardInfo, fault: str) -> str:
    """The message about a shard whose first and second downloads were invalid."""
    repair = "convert or copy the shard again"
    if info.is_virtual:
        repair = "restore the file, or index it again to another location (cloudload index)"
    return (
        f"{location} {fault}. This was the second invalid download. If the dataset was "
        f"republished during the run, restart to read its new index. Otherwise, {repair}"
    )


def _decompress(
    data: bytes, info: shard_entries.ShardInfo, file: BinaryIO, *, checks_hash: bool
) -> str | None:
    """Write the raw bytes of a compressed shard to `file`, and return its fault or None."""
    assert info.compression is not None
    try:
        raw = decompress(info.compression, data, info.raw.bytes)
    except Exception as error:
        return f"cannot be decompressed ({error})"
    fault = check_data(raw, info.raw, checks_hash and not info.has_stored_hash)
    if fault is not None:
        return f"{fault}, after decompression"
    file.seek(0)
    file.write(raw)
    file.truncate()
    return None


def check_header(
    path: Path, info: shard_entries.ShardInfo, *, checks_samples: bool = False
) -> str | None:
    """Check a raw shard's size, sample count, offsets and columns; return the fault or None.

    With `checks_samples`, also checks the samples of a virtual shard, whose header has their hash.
    Raises `FileNotFoundError` if there is no file.
    """
    try:
        shard = Shard(path, info)
    except DatasetError as error:
        # drop the path, which may be temporary, and the advice
        return str(error).removeprefix(f"{path} ").removesuffix(f". {REPAIR_ADVICE}")
    return _check_samples(shard) if checks_samples else None


def check_raw_shard(path: Path, info: shard_entries.ShardInfo) -> str | None:
    """Check a raw shard's hash and header; return the fault or None.

    A virtual shard is checked with the hash in its own header. Raises `FileNotFoundError` if there
    is no file.
    """
    if info.is_virtual:
        return check_header(path, info, checks_samples=True)
    return check_hash(path, info) or check_header(path, info)


def check_hash(path: Path, info: shard_entries.ShardInfo) -> str | None:
    """Check a raw shard's size, and its hash if the index has one; return the fault or None.

    Raises `FileNotFoundError` if there is no file.
    """
    with path.open("rb") as file:
        return _check_file(file, info.raw, True)


def _check_samples(shard: Shard) -> str | None:
    found, expected = shard.samples_hash, shard.listed_samples_hash
    if found == expected:
        return None
    return f"has samples with the hash {found}, but its header says {expected}"


def check_data(
    data: bytes | memoryview, expected: shard_entries.FileInfo, checks_hash: bool
) -> str | None:
    """Check the size of a file's bytes, and their hash if the index has one; return any fault."""
    return _check(len(data), [data], expected, checks_hash)


def _check_file(file: BinaryIO, expected: shard_entries.FileInfo, checks_hash: bool) -> str | None:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return _check(size, iter(partial(file.read, 1 << 20), b""), expected, checks_hash)


def _check(
    size: int,
    parts: Iterable[bytes | memoryview],
    expected: shard_entries.FileInfo,
    checks_hash: bool,
) -> str | None:
    if size != expected.bytes:
        found = "more than" if size > expected.bytes else f"{size:,} of"
        return f"has {found} the {expected.bytes:,} bytes that the index lists"
    algorithm = fastest_hash(expected.hashes) if checks_hash else None
    if algorithm is None:
        return None
    running = new_hash(algorithm)
    for part in parts:
        running.update(part)
    if running.hexdigest() == expected.hashes[algorithm]:
        return None
    found = f"{algorithm} {running.hexdigest()}"
    return f"has the hash {found}, but the index says {expected.hashes[algorithm]}"
