"""The MDS format: an index that lists shards, and shards that hold samples.

    index.json    {"version": 2, "shards": [{samples, column_names, column_encodings, column_sizes,
                                             raw_data: {basename, bytes, hashes}, zip_data, compression, …}, …]}
    shard         uint32 count | uint32 offsets[count + 1] | JSON header | samples
    sample        uint32 sizes of the variable-sized columns | the columns' bytes, columns in order of their names

The format is MosaicML Streaming's (`streaming/base/format/mds`); shards written here are the bytes that its `MDSWriter` writes,
and a test says so. Nothing here trusts its input: names may not leave their folder, sizes are bounded by the index.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import mmap
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import xxhash

from cloudload.errors import DatasetError

INDEX_NAME = "index.json"
DEFAULT_SHARD_BYTES = 1 << 26

_FIXED_FORMATS: dict[str, str] = {
    "int": "<q",
    "int8": "<b",
    "int16": "<h",
    "int32": "<i",
    "int64": "<q",
    "uint8": "<B",
    "uint16": "<H",
    "uint32": "<I",
    "uint64": "<Q",
    "float32": "<f",
    "float64": "<d",
}
_FIXED_SIZES = {name: struct.calcsize(code) for name, code in _FIXED_FORMATS.items()} | {"float16": 2}


@dataclass(frozen=True)
class Column:
    """A column of a shard: its name, its MDS encoding, and its bytes a sample where that is fixed."""

    name: str
    encoding: str
    bytes: int | None

    @staticmethod
    def of(name: str, encoding: str) -> Column:
        """The column with the size that its encoding has."""
        return Column(name, encoding, _FIXED_SIZES.get(encoding))


@dataclass(frozen=True)
class FileInfo:
    """A file as the index tells of it."""

    name: str
    bytes: int
    hashes: Mapping[str, str]


@dataclass(frozen=True)
class ShardInfo:
    """A shard as the index tells of it; `zipped` is what the store holds where the shard is compressed."""

    samples: int
    columns: tuple[Column, ...]
    raw: FileInfo
    zipped: FileInfo | None
    compression: str | None

    @property
    def stored(self) -> FileInfo:
        """The file that lies in the store."""
        return self.zipped or self.raw


# ---------------------------------------------------------------- index


def parse_index(data: bytes, dataset: str) -> tuple[ShardInfo, ...]:
    """The shards of an `index.json`, in order. Raises `DatasetError` for anything that is not a sound MDS index."""
    try:
        index = json.loads(data)
        if index["version"] != 2:
            raise ValueError(f"version {index['version']!r} is not 2")
        return tuple(_parse_shard(entry) for entry in index["shards"])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        reason = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise DatasetError(f"{dataset}/{INDEX_NAME} is not an MDS index: {reason}. Convert the corpus again") from error


def _parse_shard(entry: dict[str, Any]) -> ShardInfo:
    if entry["format"] != "mds":
        raise ValueError(f"a shard has format {entry['format']!r}, not 'mds'")
    names, encodings, sizes = entry["column_names"], entry["column_encodings"], entry["column_sizes"]
    if not all(isinstance(name, str) for name in (*names, *encodings)):
        raise ValueError("column names and encodings are not all text")
    if not len(names) == len(encodings) == len(sizes):
        raise ValueError("column names, encodings and sizes differ in number")
    zipped = entry.get("zip_data")
    return ShardInfo(
        samples=_natural(entry["samples"], "samples"),
        columns=tuple(
            Column(name, encoding, None if size is None else _natural(size, "column_sizes"))
            for name, encoding, size in zip(names, encodings, sizes, strict=True)
        ),
        raw=_parse_file(entry["raw_data"]),
        zipped=_parse_file(zipped) if zipped else None,
        compression=str(entry["compression"]) if zipped else None,
    )


def _parse_file(entry: dict[str, Any]) -> FileInfo:
    name = entry["basename"]
    path = PurePosixPath(name)
    if not path.name or path.is_absolute() or ".." in path.parts or any(part in name for part in ("\\", "\0", "://")):
        raise ValueError(f"the file name {name!r} leaves the dataset's folder")
    if path == PurePosixPath(INDEX_NAME):
        raise ValueError(f"the file name {name!r} is the index's own")
    return FileInfo(name, _natural(entry["bytes"], "bytes"), {str(k): str(v) for k, v in (entry.get("hashes") or {}).items()})


def _natural(value: object, field: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{field} is {value!r}, not a count")
    return value


# ---------------------------------------------------------------- write


@dataclass(frozen=True)
class ShardFormat:
    """How shards are written: columns, compression (`zstd`, `zstd:7`, `gz`, `bz2` or None), hashes, and the most raw bytes."""

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
    """The bytes of a sample. Raises `TypeError`, `ValueError` or `struct.error` where a value does not fit its column."""
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
    return b"".join([encode_shard_head(form, np.fromiter(map(len, samples), np.int64, len(samples))), *samples])


def encode_shard_head(form: ShardFormat, sizes: np.ndarray[Any, np.dtype[np.int64]]) -> bytes:
    """The raw bytes of a shard before its samples, which have these sizes."""
    header = form.header()
    offsets = np.concatenate([[0], np.cumsum(sizes)]) + 4 + 4 * (len(sizes) + 1) + len(header)
    if offsets[-1] >= 1 << 32:
        raise ValueError(f"a shard of {offsets[-1]:,} bytes is more than an MDS shard can hold (4 GiB)")
    return b"".join([struct.pack("<I", len(sizes)), offsets.astype("<u4").tobytes(), header])


def _encode(encoding: str, value: Any) -> bytes:
    if encoding == "str":
        return bytes(value.encode("utf-8"))
    if encoding == "bytes":
        return bytes(value)
    if encoding == "json":
        return json.dumps(value).encode()
    if encoding in _FIXED_FORMATS:
        return struct.pack(_FIXED_FORMATS[encoding], value)
    raise ValueError(f"cannot write a column of encoding {encoding!r}; use str, bytes, json, or a number")


# ---------------------------------------------------------------- read


class Shard:
    """A raw shard, mapped into memory; it stays readable when its file is deleted."""

    def __init__(self, path: Path, info: ShardInfo) -> None:
        self.path, self.info = path, info
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size != info.raw.bytes:
                raise DatasetError(
                    f"{path} has {size:,} bytes where the index has {info.raw.bytes:,}. Delete it to fetch it again"
                )
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        self._starts = np.ascontiguousarray(self._read_offsets(), np.uint32).data
        variable = [column.bytes is None for column in info.columns]
        self._sizes = struct.Struct(f"<{sum(variable)}I")
        # a column begins after the sizes, the fixed columns before it, and the variable ones before it
        fixed = [column.bytes or 0 for column in info.columns]
        self._fixed_bytes = self._sizes.size + sum(fixed)
        self._before = [(self._sizes.size + sum(fixed[:c]), sum(variable[:c])) for c in range(len(fixed))]

    def _read_offsets(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        count, end = self.info.samples, len(self._map)
        start = 4 * (count + 2)
        if end < start or struct.unpack_from("<I", self._map)[0] != count:
            raise DatasetError(f"{self.path} is not a shard of {count:,} samples, as its index says. Delete it to fetch it again")
        offsets = np.frombuffer(self._map, "<u4", count + 1, 4)
        if offsets[0] < start or offsets[-1] != end or (np.diff(offsets.astype(np.int64)) < 0).any():
            raise DatasetError(f"{self.path} has sample offsets outside the shard. Delete it to fetch it again")
        return offsets

    def column_index(self, name: str) -> int:
        """Where a column stands in a sample. Raises `DatasetError` where there is none of that name."""
        for position, column in enumerate(self.info.columns):
            if column.name == name:
                return position
        names = ", ".join(column.name for column in self.info.columns)
        raise DatasetError(f"{self.path} has no column {name!r}; its columns are: {names}")

    def read_bytes(self, sample: int, column: int) -> bytes:
        """The bytes of one column of one sample of this shard."""
        start, stop = self._starts[sample], self._starts[sample + 1]
        if start + self._fixed_bytes > stop:
            raise self._broken(sample)
        sizes = self._sizes.unpack_from(self._map, start)
        if start + self._fixed_bytes + sum(sizes) != stop:
            raise self._broken(sample)
        fixed, variable = self._before[column]
        start += fixed + sum(sizes[:variable])
        width = self.info.columns[column].bytes
        return self._map[start : start + (sizes[variable] if width is None else width)]

    def read_texts(self, samples: Iterable[int], column: int) -> list[str]:
        """One column of some samples as text. Raises `DatasetError` where one is not UTF-8."""
        texts = []
        # once a document of the corpus: written out, for a call costs as much as what it does
        starts, unpack, data, fixed_bytes = self._starts, self._sizes.unpack_from, memoryview(self._map), self._fixed_bytes
        fixed, variable = self._before[column]
        width = self.info.columns[column].bytes
        sample = -1
        try:
            for sample in samples:
                start, stop = starts[sample], starts[sample + 1]
                sizes = unpack(data, start)
                if start + fixed_bytes + sum(sizes) != stop:
                    raise self._broken(sample)
                start += fixed + sum(sizes[:variable])
                texts.append(str(data[start : start + (sizes[variable] if width is None else width)], "utf-8"))
        except UnicodeDecodeError as error:
            raise DatasetError(f"{self.path}: sample {sample} is not UTF-8 ({error}). Convert the corpus again") from error
        except struct.error:
            raise self._broken(sample) from None
        return texts

    def read(self, sample: int) -> dict[str, Any]:
        """The whole sample. Columns that would have to be unpickled are refused."""
        parts = [self.read_bytes(sample, position) for position in range(len(self.info.columns))]
        try:
            return {
                column.name: decode_value(column.encoding, part) for column, part in zip(self.info.columns, parts, strict=True)
            }
        except (ValueError, struct.error, RecursionError) as error:
            raise DatasetError(
                f"{self.path}: sample {sample} is not what its columns say ({error}). Convert the corpus again"
            ) from error

    def _broken(self, sample: int) -> DatasetError:
        return DatasetError(f"{self.path}: sample {sample} has columns that do not fill it. Delete the file to fetch it again")


def decode_value(encoding: str, data: bytes) -> Any:
    """The value of a column's bytes. Raises `DatasetError` for an encoding that is not text, bytes, JSON or a number."""
    if encoding == "str":
        return data.decode("utf-8")
    if encoding == "bytes":
        return data
    if encoding == "json":
        return json.loads(data)
    if encoding in _FIXED_FORMATS:
        return struct.unpack(_FIXED_FORMATS[encoding], data)[0]
    raise DatasetError(f"a column of encoding {encoding!r} cannot be read; cloudload reads str, bytes, json and numbers")


# ---------------------------------------------------------------- hashes and compression


class Hasher:
    """A running hash of one algorithm, from `hashlib` or `xxhash`, under the names that MDS indexes use."""

    def __init__(self, algorithm: str) -> None:
        try:
            self._hash: Any = getattr(xxhash, algorithm)() if algorithm.startswith("xxh") else hashlib.new(algorithm)
        except (AttributeError, ValueError):
            raise ValueError(f"no hash named {algorithm!r}; use xxh64, xxh128, sha1, sha256, …") from None

    def update(self, data: bytes) -> None:
        self._hash.update(data)

    def hexdigest(self) -> str:
        return str(self._hash.hexdigest())


def hash_bytes(algorithm: str, data: bytes) -> str:
    """The hex digest of `data`."""
    hasher = Hasher(algorithm)
    hasher.update(data)
    return hasher.hexdigest()


def fastest_hash(hashes: Mapping[str, str]) -> str | None:
    """The hash of an index entry that is cheapest to check, or None where there is none that we know."""
    quick = [name for name in ("xxh3_64", "xxh3_128", "xxh128", "xxh64", "xxh32") if name in hashes]
    known = quick or [name for name in sorted(hashes) if name in hashlib.algorithms_available]
    return known[0] if known else None


def compression_extension(compression: str) -> str:
    """The file name extension of a compression such as `zstd:7`."""
    return compression.partition(":")[0]


def compress(compression: str, data: bytes) -> bytes:
    """`data` under `zstd`, `gz` or `bz2`, with an optional `:level`; the same bytes every time."""
    name, _, level = compression.partition(":")
    codecs: dict[str, Callable[[], bytes]] = {
        "zstd": lambda: _zstd_compress(data, int(level or 3)),
        "gz": lambda: gzip.compress(data, int(level or 9), mtime=0),
        "bz2": lambda: bz2.compress(data, int(level or 9)),
    }
    try:
        return codecs[name]()
    except Exception as error:
        usable = "zstd or zstd:1 to zstd:22, gz or gz:1 to gz:9, bz2 or bz2:1 to bz2:9, or None"
        raise ValueError(f"compression is {compression!r}; use {usable}") from error


def decompress(compression: str, data: bytes, raw_bytes: int) -> bytes:
    """The raw bytes of a stored shard, at most `raw_bytes` + 1 of them, whatever the data says."""
    name = compression.partition(":")[0]
    if name == "zstd":
        import zstandard

        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            return reader.read(raw_bytes + 1)
    if name == "gz":
        import zlib

        return zlib.decompressobj(wbits=31).decompress(data, raw_bytes + 1)
    if name == "bz2":
        return bz2.BZ2Decompressor().decompress(data, raw_bytes + 1)
    # br and snappy have no bounded call of their own: Streaming's codecs, checked by the caller
    from streaming.base.compression import decompress as streaming_decompress

    return bytes(streaming_decompress(compression, data))


def _zstd_compress(data: bytes, level: int) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=level).compress(data)
