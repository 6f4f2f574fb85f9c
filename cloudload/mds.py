"""The MDS format: shards that hold samples, and an index that lists them.

    index.json    see `index`
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
import os
import stat
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash

from cloudload.errors import DatasetError
from cloudload.index import COMPRESSIONS, FIXED_FORMATS
from cloudload.index import INDEX_NAME as INDEX_NAME  # noqa: PLC0414 - these for those that name them from here
from cloudload.index import Column as Column  # noqa: PLC0414
from cloudload.index import FileInfo as FileInfo  # noqa: PLC0414
from cloudload.index import ShardInfo as ShardInfo  # noqa: PLC0414
from cloudload.index import parse_index as parse_index  # noqa: PLC0414

DEFAULT_SHARD_BYTES = 1 << 26
_MOST_HEADER_BYTES = 1 << 20


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
    if encoding in FIXED_FORMATS:
        return struct.pack(FIXED_FORMATS[encoding], value)
    raise ValueError(f"cannot write a column of encoding {encoding!r}; use str, bytes, json, or a number")


# ---------------------------------------------------------------- read

ID_KEY = "id"
MEND = "If it lies in the cache, delete it to fetch it again; if it is the dataset's own, convert or copy it again"


class Shard:
    """A raw shard, mapped into memory; it stays readable when its file is deleted."""

    def __init__(self, path: Path, info: ShardInfo) -> None:
        self.path, self.info = path, info
        self.url = ""
        """Where it is from, for errors, once somebody who knows has said so."""
        with _open_regular(path) as file:
            size = file.seek(0, 2)
            if size != info.raw.bytes:
                raise DatasetError(f"{path} has {size:,} bytes where the index has {info.raw.bytes:,}. {MEND}")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        self._starts = np.ascontiguousarray(self._read_offsets(), np.uint32).data
        self._check_header()
        variable = [column.bytes is None for column in info.columns]
        self._sizes = struct.Struct(f"<{sum(variable)}I")
        # a column begins after the sizes, the fixed columns before it, and the variable ones before it
        fixed = [column.bytes or 0 for column in info.columns]
        self._fixed_bytes = self._sizes.size + sum(fixed)
        self._before = [(self._sizes.size + sum(fixed[:c]), sum(variable[:c])) for c in range(len(fixed))]

    @property
    def name(self) -> str:
        """What errors call it."""
        return self.url or str(self.path)

    def _read_offsets(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        count, end = self.info.samples, len(self._map)
        start = 4 * (count + 2)
        if end < start or struct.unpack_from("<I", self._map)[0] != count:
            raise DatasetError(f"{self.name} is not a shard of {count:,} samples, as its index says. {MEND}")
        offsets = np.frombuffer(self._map, "<u4", count + 1, 4)
        if offsets[0] < start or offsets[-1] != end or (np.diff(offsets.astype(np.int64)) < 0).any():
            raise DatasetError(f"{self.name} has sample offsets outside the shard. {MEND}")
        return offsets

    def _check_header(self) -> None:
        """What a shard says of its columns must be what the index says; some writers leave it out."""
        start, stop = 4 * (self.info.samples + 2), self._starts[0]
        if start == stop:
            return
        try:
            if stop - start > _MOST_HEADER_BYTES:
                raise ValueError(f"it has {stop - start:,} bytes")
            header = json.loads(self._map[start:stop])
            found = [header[f"column_{field}"] for field in ("names", "encodings", "sizes")]
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise DatasetError(f"{self.name} has a header that tells no columns ({error!r:.200}). {MEND}") from error
        columns = self.info.columns
        expected = [[column.name for column in columns], [c.encoding for c in columns], [c.bytes for c in columns]]
        if found != expected:
            raise DatasetError(f"{self.name} says its columns are {str(found)[:300]}, its index {str(expected)[:300]}. {MEND}")

    def column_index(self, name: str) -> int:
        """Where a column stands in a sample. Raises `DatasetError` where there is none of that name."""
        for position, column in enumerate(self.info.columns):
            if column.name == name:
                return position
        names = ", ".join(column.name for column in self.info.columns)
        raise DatasetError(f"{self.name} has no column {name!r}; its columns are: {names}")

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
            advice = "Convert the corpus again"
            if self.info.columns[column].encoding == "bytes":
                advice = "A `transform` may decode it, for instance with sample['text'].decode('latin-1')"
            raise DatasetError(f"{self.where(sample)} is not UTF-8 ({_explain(error)}). {advice}") from error
        except struct.error:
            raise self._broken(sample) from None
        return texts

    def read(self, sample: int) -> dict[str, Any]:
        """The whole sample. Columns that would have to be unpickled are refused."""
        return self.read_columns(sample, [column.name for column in self.info.columns])

    def read_columns(self, sample: int, names: Iterable[str]) -> dict[str, Any]:
        """Those columns of a sample that are there. Raises `DatasetError` where one does not hold what its encoding says."""
        places = {column.name: place for place, column in enumerate(self.info.columns)}
        parts = {name: self.read_bytes(sample, places[name]) for name in names if name in places}
        try:
            return {name: decode_value(self.info.columns[places[name]].encoding, part) for name, part in parts.items()}
        except (ValueError, struct.error, RecursionError) as error:
            what = f"sample {sample} of {self.name} is not what its columns say"
            raise DatasetError(f"{what} ({_explain(error)}). Convert the corpus again") from error

    def where(self, sample: int) -> str:
        """A sample's place for a message, with its id where it has one that can be read."""
        try:
            identifier = self.read_columns(sample, [ID_KEY])
        except DatasetError:
            identifier = {}
        known = f" (id {str(identifier[ID_KEY])[:200]!r})" if identifier else ""
        return f"sample {sample} of {self.name}{known}"

    def _broken(self, sample: int) -> DatasetError:
        return DatasetError(f"sample {sample} of {self.name} has columns that do not fill it. {MEND}")


def _open_regular(path: Path) -> BinaryIO:
    """Open a file to read. A pipe or a device would block, or never end: it is refused before a byte of it is read."""
    try:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path} cannot be opened as a shard: {error}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise DatasetError(f"{path} is not a regular file, as a shard is. Convert or copy it again")
    return file


def _explain(error: Exception) -> str:
    # a decoder's own text may hold all that it was to decode
    return str(error)[:300]


def decode_value(encoding: str, data: bytes) -> Any:
    """The value of a column's bytes. Raises `DatasetError` for an encoding that is not text, bytes, JSON or a number."""
    if encoding == "str":
        return data.decode("utf-8")
    if encoding == "bytes":
        return data
    if encoding == "json":
        return json.loads(data)
    if encoding in FIXED_FORMATS:
        return struct.unpack(FIXED_FORMATS[encoding], data)[0]
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
    known = quick or [name for name in sorted(hashes) if _is_hash(name)]
    return known[0] if known else None


@cache
def _is_hash(name: str) -> bool:
    """Whether this machine has a hash of that name, with digests of one size."""
    try:
        return name in hashlib.algorithms_available and hashlib.new(name).digest_size > 0
    except ValueError:
        return False


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
    if name == "br":
        return _decompress_brotli(data, raw_bytes)
    if name == "snappy":
        return _decompress_snappy(data, raw_bytes)
    raise ValueError(f"compression is {compression!r}, none of {', '.join(COMPRESSIONS)}")


def check_codec(compression: str) -> None:
    """Raises `DatasetError`, which names the package, where there is nothing here to unpack shards of a compression with."""
    try:
        if compression == "snappy":
            import snappy  # noqa: F401
        elif compression.partition(":")[0] == "br":
            import brotli

            brotli.Decompressor().process(b"", output_buffer_limit=1)
    except (ImportError, TypeError) as error:
        package = "python-snappy" if compression == "snappy" else "'brotli>=1.2'"
        raise DatasetError(f"shards are compressed with {compression!r}: to read them, pip install {package}") from error


def _decompress_brotli(data: bytes, raw_bytes: int) -> bytes:
    import brotli

    decoder = brotli.Decompressor()
    parts = [decoder.process(data, output_buffer_limit=raw_bytes + 1)]
    # each call stops at the first buffer that is past the limit
    left = raw_bytes + 1 - len(parts[0])
    while left > 0 and not decoder.is_finished() and parts[-1]:
        parts.append(decoder.process(b"", output_buffer_limit=left))
        left -= len(parts[-1])
    return b"".join(parts)[: raw_bytes + 1]


def _decompress_snappy(data: bytes, raw_bytes: int) -> bytes:
    import snappy

    # a block begins with its raw size, 7 bits a byte, the lowest first; no more than that is ever written
    size = 0
    for place, byte in enumerate(data[:5]):
        size |= (byte & 127) << 7 * place
        if byte < 128:
            break
    if size > raw_bytes:
        raise ValueError(f"it unpacks to {size:,} bytes where the index has {raw_bytes:,}")
    return bytes(snappy.uncompress(data))


def _zstd_compress(data: bytes, level: int) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=level).compress(data)
