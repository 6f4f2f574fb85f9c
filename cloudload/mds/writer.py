"""Write shards, byte for byte as Streaming's `MDSWriter` does."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloudload.mds.codecs import compress
from cloudload.mds.hashes import hash_bytes
from cloudload.mds.index import FIXED_FORMATS, Column

DEFAULT_SHARD_BYTES = 1 << 26

# ---------------------------------------------------------------- write


@dataclass(frozen=True)
class ShardFormat:
    """How shards are written: columns, compression (`zstd`, `zstd:7`, `gz`, `bz2` or None), hashes,
    and the most raw bytes."""

    columns: tuple[Column, ...]
    compression: str | None = "zstd"
    hashes: tuple[str, ...] = ("xxh64",)
    shard_bytes: int = DEFAULT_SHARD_BYTES

    def __post_init__(self) -> None:
        if list(self.columns) != sorted(self.columns, key=lambda column: column.name):
            raise ValueError("columns must be in the order of their names")
        for algorithm in self.hashes:
            hash_bytes(algorithm, b"")
        if self.compression is not None:
            compress(self.compression, b"")

    def config(self) -> dict[str, Any]:
        """What every shard of the dataset says of itself, in its header and in the index."""
        return {
            "version": 2,
            "format": "mds",
            "compression": self.compression,
            "hashes": list(self.hashes),
            "size_limit": self.shard_bytes,
            "column_names": [column.name for column in self.columns],
            "column_encodings": [column.encoding for column in self.columns],
            "column_sizes": [column.bytes for column in self.columns],
        }

    def header(self) -> bytes:
        """The JSON that follows a shard's offsets."""
        return json.dumps(self.config(), sort_keys=True).encode()

    def empty_bytes(self) -> int:
        """The size of a shard without samples; each sample adds 4 bytes to its own."""
        return 8 + len(self.header())


def encode_sample(columns: Sequence[Column], sample: Mapping[str, Any]) -> bytes:
    """The bytes of a sample. Raises `TypeError`, `ValueError` or `struct.error` where a value does
    not fit its column."""
    sizes: list[int] = []
    parts: list[bytes] = []
    for column in columns:
        data = _encode(column.encoding, sample[column.name])
        if column.bytes is None:
            sizes.append(len(data))
        parts.append(data)
    return struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(parts)


def encode_shard(form: ShardFormat, samples: Sequence[bytes]) -> bytes:
    """The raw bytes of a shard of encoded samples."""
    return b"".join(
        [encode_shard_head(form, np.fromiter(map(len, samples), np.int64, len(samples))), *samples]
    )


def encode_shard_head(form: ShardFormat, sizes: np.ndarray[Any, np.dtype[np.int64]]) -> bytes:
    """The raw bytes of a shard before its samples, which have these sizes."""
    header = form.header()
    offsets = np.concatenate([[0], np.cumsum(sizes)]) + 4 + 4 * (len(sizes) + 1) + len(header)
    if offsets[-1] >= 1 << 32:
        raise ValueError(
            f"a shard of {offsets[-1]:,} bytes is more than an MDS shard can hold (4 GiB)"
        )
    return b"".join([struct.pack("<I", len(sizes)), offsets.astype("<u4").tobytes(), header])


def _encode(encoding: str, value: Any) -> bytes:
    if encoding == "str":
        return bytes(value.encode("utf-8"))
    if encoding == "bytes":
        return bytes(value)
    if encoding == "json":
        return json.dumps(value).encode()
    if encoding in FIXED_FORMATS:
        return struct.pack(FIXED_FORMATS[encoding], value)
    raise ValueError(
        f"cannot write a column of encoding {encoding!r}; use str, bytes, json, or a number"
    )
