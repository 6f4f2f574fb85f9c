"""Encode shards byte for byte as Streaming's `MDSWriter` does.

`cloudload.data.mds` shows the format.
"""

from __future__ import annotations

import io
import json
import reprlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cloudload.data.mds import shard_entries
from cloudload.data.mds.array_values import encode_shape
from cloudload.data.mds.codecs import compress, compression_extension
from cloudload.data.mds.hashes import IDENTITY, SAMPLES_HASH, hash_bytes, hash_samples, new_hash
from cloudload.system import Ints

DEFAULT_SHARD_BYTES = 1 << 26
MAX_SAMPLE_BYTES = (1 << 32) - (1 << 20)
_ARRAY = "ndarray:"


class JsonText(str):
    """The JSON of a value, in ASCII, for a column of JSON."""


@dataclass(frozen=True)
class ShardFormat:
    """The columns, compression, hashes and size of the shards to write.

    Raises `ValueError` if the columns are not sorted, or if the compression or a hash is invalid.
    """

    columns: tuple[shard_entries.Column, ...]
    """The columns, sorted by name."""
    compression: str | None = "zstd"
    """`zstd`, `gz`, `bz2` or `br`, with an optional level such as `zstd:7`; or None."""
    hashes: tuple[str, ...] = ("xxh64",)
    """Hash algorithms. The index lists these hashes of each file. If there are any, the index also
    lists the `SAMPLES_HASH` of each shard."""
    shard_bytes: int = DEFAULT_SHARD_BYTES
    """The maximum raw size, in bytes, of a shard that holds several samples."""

    def __post_init__(self) -> None:
        if list(self.columns) != sorted(self.columns, key=lambda column: column.name):
            raise ValueError("columns must be sorted by name")
        for algorithm in self.hashes:
            new_hash(algorithm)
        if self.compression is not None:
            compress(self.compression, b"")

    def config(self) -> dict[str, Any]:
        """The fields that both the header and the index entry of every shard contain."""
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

    def header(self, samples_hash: str = "") -> bytes:
        """The JSON header, which is stored after a shard's offsets.

        A shard whose hash no index lists has the `SAMPLES_HASH` of its samples in its header.
        """
        own = {SAMPLES_HASH: samples_hash} if samples_hash else {}
        return json.dumps(self.config() | own, sort_keys=True).encode()

    def empty_bytes(self) -> int:
        """The size, in bytes, of a shard without samples.

        Each sample adds its own size and a 4-byte offset.
        """
        return 8 + len(self.header())


def encode_sample(columns: Sequence[shard_entries.Column], sample: Mapping[str, Any]) -> bytes:
    """Encode a sample, which must have a value for every column.

    Raises `ValueError` if a value does not fit its column, or the sample does not fit a shard.
    """
    return join_values(columns, [encode_value(column, sample[column.name]) for column in columns])


def join_values(columns: Sequence[shard_entries.Column], parts: Sequence[bytes]) -> bytes:
    """Join the encoded values of a sample, in the order of its columns.

    Raises `ValueError` if the sample does not fit a shard.
    """
    sizes = [len(part) for column, part in zip(columns, parts, strict=True) if column.bytes is None]
    total = sum(map(len, parts))
    if total > MAX_SAMPLE_BYTES:
        raise ValueError(
            f"the sample is larger than the limit of an MDS shard ({total:,} bytes, and the limit "
            f"is {MAX_SAMPLE_BYTES:,})"
        )
    return b"".join([struct.pack(f"<{len(sizes)}I", *sizes), *parts])


def encode_shard_head(form: ShardFormat, sizes: Ints, samples_hash: str = "") -> bytes:
    """Encode the part of a raw shard before its samples: count, offsets, and header.

    `sizes` are the sizes of the samples in bytes, int64 [samples]. `samples_hash` is stored in the
    header unless it is "". Raises `ValueError` if the shard
    would have 4 GiB or more.
    """
    header = form.header(samples_hash)
    offsets = np.concatenate([[0], np.cumsum(sizes)]) + 4 + 4 * (len(sizes) + 1) + len(header)
    if offsets[-1] >= 1 << 32:
        raise ValueError(
            f"a shard of {offsets[-1]:,} bytes exceeds the limit of an MDS shard (4 GiB). Write "
            "fewer samples per shard"
        )
    return b"".join([struct.pack("<I", len(sizes)), offsets.astype("<u4").tobytes(), header])


class ShardBuffer:
    """Memory that is reused to join the parts of one raw shard after another."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def join(self, parts: Sequence[bytes | memoryview], capacity: int) -> memoryview:
        """Join the parts, and return a view of them.

        If the memory is too small, it is replaced with at least `capacity` bytes.
        """
        size = sum(map(len, parts))
        if size > len(self._memory):
            self._memory = np.empty(max(size, capacity), np.uint8)
        return join_bytes(parts, self._memory)


def join_bytes(parts: Iterable[bytes | memoryview], memory: npt.NDArray[np.uint8]) -> memoryview:
    """Copy the parts to the start of `memory`, and return a view of them.

    For large parts, this is faster than `bytes.join`, because NumPy requests huge pages, which the
    kernel clears much faster than small pages.
    """
    joined, start = memory.data, 0
    for part in parts:
        joined[start : start + len(part)] = part
        start += len(part)
    return joined[:start]


@dataclass(frozen=True)
class PackedShard:
    """A shard in its stored form."""

    name: str
    """The file's name."""
    data: bytes
    raw: bytes | memoryview
    """The shard before compression. In a `ShardBuffer`, it is valid until another shard is built.
    """
    entry: dict[str, Any]
    """The shard's entry in the index."""


def pack_shard(
    form: ShardFormat,
    index: int,
    sizes: Ints,
    samples: Iterable[bytes | memoryview],
    buffer: ShardBuffer | None = None,
    *,
    original: str = "",
) -> PackedShard:
    """Build, compress and hash the shard with index `index`.

    `samples` are the encoded samples, in order, as pieces of any size. `sizes` are the sizes of the
    samples in bytes, int64 [samples]. A shard that will be compressed is joined in `buffer`, if
    given. `original` is the identity of the shard of which this is a copy, if it is one. Raises
    `ValueError` if the shard would have 4 GiB or more.
    """
    head = encode_shard_head(form, sizes)
    name, zipped = f"shard.{index:05}.mds", None
    raw: bytes | memoryview
    if form.compression and buffer:
        raw = buffer.join([head, *samples], form.shard_bytes)
    else:
        raw = stored = b"".join([head, *samples])
    raw_entry = _describe_file(form, name, raw)
    if form.hashes:
        raw_entry["hashes"][SAMPLES_HASH] = hash_samples(sizes, memoryview(raw)[len(head) :])
    if original:
        raw_entry["hashes"][IDENTITY] = original
    if form.compression:
        stored = compress(form.compression, raw)
        name = f"{name}.{compression_extension(form.compression)}"
        zipped = _describe_file(form, name, stored)
    entry = {"samples": len(sizes), "raw_data": raw_entry, "zip_data": zipped} | form.config()
    return PackedShard(name, stored, raw, entry)


def encode_index(entries: Iterable[Mapping[str, Any]]) -> bytes:
    """Encode `index.json` with the entries of all shards, in order.

    Entries are encoded one by one, because a million of them would take gigabytes.
    """
    index = io.BytesIO(b'{"shards": [')
    index.seek(0, io.SEEK_END)
    for number, entry in enumerate(entries):
        index.write(b", " * (number > 0) + json.dumps(entry, sort_keys=True).encode())
    index.write(b'], "version": 2}')
    return index.getvalue()


def _describe_file(form: ShardFormat, name: str, data: bytes | memoryview) -> dict[str, Any]:
    hashes = {algorithm: hash_bytes(algorithm, data) for algorithm in form.hashes}
    return {"basename": name, "bytes": len(data), "hashes": hashes}


def encode_value(column: shard_entries.Column, value: Any) -> bytes:
    """Encode a value of a column. Raises `ValueError` if it does not fit the column."""
    try:
        if column.encoding == "str":
            return bytes(value.encode("utf-8"))
        return _encode(column.encoding, value)
    except UnicodeEncodeError:
        raise ValueError(
            f"the field {column.name!r} has an unpaired surrogate, which UTF-8 cannot encode"
        ) from None
    except (struct.error, OverflowError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"the field {column.name!r} does not fit its encoding {column.encoding} (it is "
            f"{shorten(value)}: {error})"
        ) from error


def shorten(value: Any) -> str:
    """A short representation of any value, for messages."""
    try:
        return reprlib.repr(value)
    except Exception:  # for example, repr fails for an int with too many digits
        return f"of type {type(value).__name__}"


def _encode(encoding: str, value: Any) -> bytes:
    if encoding == "bytes":
        return bytes(value)
    if encoding == "json":
        return (value if type(value) is JsonText else json.dumps(value)).encode()
    if encoding in shard_entries.FIXED_FORMATS:
        return struct.pack(shard_entries.FIXED_FORMATS[encoding], value)
    if encoding.startswith(_ARRAY):
        return _encode_array(value, encoding.removeprefix(_ARRAY))
    raise ValueError(
        f"cannot write a column with the encoding {encoding!r}. Use str, bytes, json, "
        f"ndarray:<dtype>, or one of {', '.join(shard_entries.FIXED_FORMATS)}"
    )


def _encode_array(value: Any, dtype: str) -> bytes:
    """Encode a one-dimensional array after its shape: the number of axes, then each length."""
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype != np.dtype(dtype):
        raise ValueError(f"the array has {array.ndim} axes of {array.dtype}, not 1 axis of {dtype}")
    return encode_shape(len(array)) + array.tobytes()
