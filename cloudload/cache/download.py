"""A shard's file, from the store or from the cache, against what the index says of it.

    stored bytes ── size, hash ──► decompressed ── size ──► raw shard ── head: count, offsets, columns ──► None, or what is wrong

Where the index has a hash of the stored file, that is checked, else the raw shard's.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from cloudload.errors import DatasetError
from cloudload.mds.codecs import decompress
from cloudload.mds.hashes import Hasher, fastest_hash
from cloudload.mds.index import FileInfo, ShardInfo
from cloudload.mds.shard import MEND, Shard
from cloudload.storage.base import Retry
from cloudload.storage.objects import download_object


def download_shard(
    url: str,
    info: ShardInfo,
    file: BinaryIO,
    retry: Retry,
    *,
    checks_hash: bool,
    count_bytes: Callable[[int], None],
) -> str | None:
    """Write a stored shard to `file` as raw bytes; returns what is wrong with it, or None. Either
    way, what came is counted."""
    file.seek(0)
    if info.zipped is None or info.compression is None:
        count_bytes(download_object(url, file, retry, info.raw.bytes))
        return _fault_of(file, info.raw, checks_hash)
    zipped = io.BytesIO()
    count_bytes(download_object(url, zipped, retry, info.zipped.bytes))
    if fault := _fault_of(zipped, info.zipped, checks_hash):
        return fault
    try:
        raw = decompress(info.compression, zipped.getvalue(), info.raw.bytes)
    except Exception as error:
        return f"cannot be decompressed ({error})"
    file.seek(0)
    file.write(raw)
    file.truncate()
    fault = _fault_of(file, info.raw, checks_hash and fastest_hash(info.zipped.hashes) is None)
    return fault and f"{fault}, decompressed"


def fault_of_head(path: Path, info: ShardInfo) -> str | None:
    """What is wrong with the head of a raw shard, or None."""
    try:
        Shard(path, info)
    except DatasetError as error:
        # the file may have a name for the moment only
        return str(error).removeprefix(f"{path} ").removesuffix(f". {MEND}")
    return None


def fault_of_hash(path: Path, info: ShardInfo) -> str | None:
    """What is wrong with the bytes of a raw shard, or None; also where the index has no hash of
    them."""
    with path.open("rb") as file:
        return _fault_of(file, info.raw, True)


def _fault_of(file: BinaryIO, expected: FileInfo, checks_hash: bool) -> str | None:
    size = file.seek(0, os.SEEK_END)
    if size != expected.bytes:
        return (
            f"has {'more than ' if size > expected.bytes else f'{size:,} of '}the "
            f"{expected.bytes:,} bytes that the index has"
        )
    algorithm = fastest_hash(expected.hashes) if checks_hash else None
    if algorithm is None:
        return None
    hasher = Hasher(algorithm)
    file.seek(0)
    while chunk := file.read(1 << 20):
        hasher.update(chunk)
    if hasher.hexdigest() == expected.hashes[algorithm]:
        return None
    return f"has {algorithm} {hasher.hexdigest()} where the index has {expected.hashes[algorithm]}"
