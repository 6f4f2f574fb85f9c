"""Validate the untrusted `index.json` of an MDS dataset, and parse its entries.

    {"version": 2, "shards": [{format, samples, column_names, column_encodings, column_sizes,
                               raw_data: {basename, bytes, hashes}, zip_data, compression, …}, …]}

Virtual shards are parts of other files, whose index is in `file_records`.

A file name becomes a path in the cache and a key in the store, so it may not leave its folder, use
a suffix that the cache reserves, or match another file's name. Sizes limit downloads,
decompression and disk space, so they must be possible for a shard.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from cloudload.data.mds.hashes import IDENTITY, SAMPLES_HASH, fastest_hash
from cloudload.system import temp_files

INDEX_NAME = "index.json"

FILES, FILES_VERSION = "files", 1
"""The field of an index of virtual shards with the records of their files, and its version."""

# an index has about 500 bytes and 30 values per shard, so these bounds allow over 10^6 shards. An
# index of files has about 40 bytes and 5 values per shard, so they allow over 10^7 virtual shards
MOST_INDEX_BYTES = 1 << 30

MOST_INDEX_VALUES = 1 << 26

COMPRESSIONS = ("zstd", "gz", "bz2", "br", "snappy")

PARQUET, JSON_LINES = "parquet", "jsonl"
"""The compression of virtual shards, which are stored as row groups of a Parquet file, or as lines
of a JSON Lines file."""
VIRTUAL = PARQUET, JSON_LINES
LINES_HASH = "xxh128"
"""The hash of the decompressed bytes of lines."""

FIXED_FORMATS: dict[str, str] = {
    **{"int": "<q", "int8": "<b", "int16": "<h", "int32": "<i", "int64": "<q"},
    **{"uint8": "<B", "uint16": "<H", "uint32": "<I", "uint64": "<Q"},
    **{"float32": "<f", "float64": "<d"},
}
"""The `struct` format of each numeric encoding that cloudload reads and writes."""

_FIXED_SIZES = {name: struct.calcsize(code) for name, code in FIXED_FORMATS.items()}
_FIXED_SIZES["float16"] = 2

_KEYS_OF_OTHERS = {
    "LitData": {"chunks", "config"},
    "WebDataset": {"shardlist"},
    "safetensors": {"weight_map"},
}
"""The keys by which to recognize another library's `index.json`."""

# errors that parsing an untrusted index may raise
FAULTS = (KeyError, TypeError, ValueError, AttributeError, RecursionError)

# the offsets of a shard are uint32
MOST_SHARD_BYTES = (1 << 32) - 1

# the cache appends up to 18 bytes, and file systems allow 255 bytes per path component
_MOST_PART_BYTES, _MOST_NAME_BYTES = 230, 1024

_IDENTITY = re.compile(r"\d{1,10} \[.*\]")

_CACHE_SUFFIXES = (temp_files.PART_SUFFIX, temp_files.LOCK_SUFFIX)

# fast path for the names that MDS writers produce, because an index may list a million of them
_PLAIN_NAME = re.compile(
    r"([A-Za-z0-9_-]{1,100}/)?[A-Za-z0-9_-][A-Za-z0-9_.-]{0,100}\.mds(\.[a-z0-9]{2,6})?(?<!\.part)(?<!\.lock)"
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a shard: its name, MDS encoding, and bytes per sample (None if variable)."""

    name: str
    encoding: str
    bytes: int | None

    @staticmethod
    def of(name: str, encoding: str) -> Column:
        """Create a column. The encoding determines its size, which is None if it varies."""
        return Column(name, encoding, _FIXED_SIZES.get(encoding))


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file, as described by the index.

    `hashes` maps names of algorithms to hex digests of the file.
    """

    name: str
    bytes: int
    hashes: Mapping[str, str]


class RowGroups(NamedTuple):
    """The stored form of a virtual shard: row groups [first, stop) of a Parquet file."""

    file: str
    """The name of the file in the dataset's folder."""
    first: int
    stop: int
    footer: tuple[int, int]
    """The range of the file's footer. It ends with the file."""
    digest: str
    """A hash of the footer."""
    tag: str = ""
    """The file's tag in the listing, or "" if the listing had none."""

    @property
    def stored_name(self) -> str:
        """The name of this stored form."""
        return f"{self.file}#{self.first}-{self.stop - 1}"

    @property
    def hashes(self) -> dict[str, str]:
        """What identifies the bytes of this stored form."""
        found = {"footer": f"{self.footer[0]}-{self.footer[1]}-{self.digest}"}
        return found | ({"tag": self.tag} if self.tag else {})

    @property
    def compression(self) -> str:
        """The compression that names this stored form."""
        return PARQUET

    @property
    def place(self) -> tuple[int, int, int]:
        """The numbers of this stored form. Rows have no number of a line."""
        return self.first, self.stop, 0

    @property
    def words(self) -> list[Any]:
        """Everything else, which is the same for all shards of a file."""
        return [self.file, *self.footer, self.digest, self.tag]

    @staticmethod
    def at(place: Sequence[int], words: Sequence[Any]) -> RowGroups:
        """Return the stored form with this `place`, and these `words`."""
        file, start, stop, digest, tag = words
        return RowGroups(file, place[0], place[1], (start, stop), digest, tag)

    @staticmethod
    def content_at(place: Sequence[int], words: Sequence[Any]) -> str:
        """What identifies the content of a stored form, wherever it is stored."""
        return f"{words[3]} {place[0]} {place[1]}"


class LineRange(NamedTuple):
    """The stored form of a virtual shard: lines of a JSON Lines file.

    Of a compressed file, the stored bytes are whole members, such as frames of zstd.
    """

    file: str
    """The name of the file in the dataset's folder."""
    first: int
    stop: int
    """The range of the stored bytes."""
    line: int
    """The number of the first line in the file, from 1."""
    digest: str
    """The `LINES_HASH` of the lines, as decompressed bytes."""
    tag: str = ""
    """The file's tag in the listing, or "" if the listing had none."""
    text: tuple[int, int] | None = None
    """The range of the lines in the decompressed members; None if it has all of their bytes."""

    @property
    def stored_name(self) -> str:
        """The name of this stored form."""
        return f"{self.file}#{self.first}-{self.stop}"

    @property
    def hashes(self) -> dict[str, str]:
        """What identifies the bytes of this stored form."""
        found = {"lines": self.digest, "line": str(self.line)}
        found |= {"text": f"{self.text[0]}-{self.text[1]}"} if self.text else {}
        return found | ({"tag": self.tag} if self.tag else {})

    @property
    def compression(self) -> str:
        """The compression that names this stored form."""
        return JSON_LINES

    @property
    def place(self) -> tuple[int, int, int]:
        """The numbers of this stored form."""
        return self.first, self.stop, self.line

    @property
    def words(self) -> list[Any]:
        """Everything else."""
        return [self.file, self.digest, self.tag, *(self.text or ())]

    @staticmethod
    def at(place: Sequence[int], words: Sequence[Any]) -> LineRange:
        """Return the stored form with this `place`, and these `words`."""
        file, digest, tag, *text = words
        return LineRange(
            file, place[0], place[1], place[2], digest, tag, (text[0], text[1]) if text else None
        )

    @staticmethod
    def content_at(_place: Sequence[int], words: Sequence[Any]) -> str:
        """What identifies the content of a stored form, wherever and however it is stored."""
        return str(words[1])


StoredForm = RowGroups | LineRange
"""How a virtual shard is stored: a part of a file."""
STORED_FORMS: dict[str | None, type[StoredForm]] = {PARQUET: RowGroups, JSON_LINES: LineRange}


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A shard, as described by the index.

    `zipped` is the stored file of a compressed shard. For an uncompressed one, `zipped` and
    `compression` are None. A virtual shard has a compression in `VIRTUAL`. The size of its raw file
    is an estimate, and its raw file has the hash of its samples.
    """

    samples: int
    columns: tuple[Column, ...]
    raw: FileInfo
    zipped: FileInfo | None
    compression: str | None
    samples_hash: str | None = None
    """The `SAMPLES_HASH` of the shard; None if the index does not list it."""
    original: str | None = None
    """The identity of the shard from which this one was copied; None if it is no copy."""
    part: StoredForm | None = None
    """The part of a file as which a virtual shard is stored; None for another shard."""

    @staticmethod
    def of_part(
        part: StoredForm, columns: tuple[Column, ...], samples: int, raw_bytes: int, stored: int
    ) -> ShardInfo:
        """Return a virtual shard, given its estimated raw bytes, and its `stored` bytes."""
        content = part.content_at(part.place, part.words)
        hashes = {part.compression: hash_content(content, list_names(columns))}
        raw = FileInfo(f"{part.stored_name}.mds", raw_bytes, hashes)
        zipped = FileInfo(part.stored_name, stored, part.hashes)
        return ShardInfo(samples, columns, raw, zipped, part.compression, part=part)

    @property
    def identity(self) -> str:
        """What identifies the shard's samples in fingerprints: the size and hashes of its raw form.

        A copy has the identity of its original, also if that is virtual, or stored in another form.
        """
        return self.original or describe_identity(self.raw.bytes, self.raw.hashes)

    @property
    def identity_bytes(self) -> int:
        """The size of the raw shard in the identity."""
        return int(self.identity.partition(" ")[0])

    @property
    def stored(self) -> FileInfo:
        """The file that is stored: `zipped`, or `raw` for an uncompressed shard."""
        return self.zipped or self.raw

    @property
    def is_virtual(self) -> bool:
        """Whether the shard is stored as a part of another file; see `virtual_shards`."""
        return self.part is not None

    @property
    def has_hash(self) -> bool:
        """Whether the index has a hash of the raw or stored shard that can be checked.

        Of row groups, the footer is checked.
        """
        return self.is_virtual or any(
            fastest_hash(file.hashes) is not None for file in (self.raw, self.stored)
        )

    @property
    def has_stored_hash(self) -> bool:
        """Whether the index has a hash of the stored shard that can be checked."""
        return fastest_hash(self.stored.hashes) is not None


def describe_identity(raw_bytes: int, hashes: Mapping[str, str]) -> str:
    """The identity of a shard that is no copy, from the size and hashes of its raw form."""
    return f"{raw_bytes} {sorted(hashes.items())}"


def list_names(columns: Iterable[Column]) -> str:
    """The names of columns, for `hash_content`."""
    return str([column.name for column in columns])


def hash_content(content: str, names: str) -> str:
    """The hash in the identity of a virtual shard. It does not depend on where its file is."""
    return hashlib.sha256(f"{content} {names}".encode()).hexdigest()[:32]


def check_version(index: Any) -> None:
    """Raise one of `FAULTS` unless a parsed index is an MDS index of version 2."""
    if not isinstance(index, Mapping):
        raise ValueError(f"it is a JSON {type(index).__name__}, not an object with shards")
    for library, keys in _KEYS_OF_OTHERS.items():
        if keys <= index.keys():
            raise ValueError(f"it is an index of {library}, whose files cloudload cannot read")
    known = FILES_VERSION if FILES in index else 2
    if index["version"] != known:
        raise ValueError(f"its version is {index['version']!r}, not {known}")


def explain_fault(error: Exception) -> str:
    """Describe one of `FAULTS`, as text to put after a colon."""
    if isinstance(error, KeyError):
        return f"the field {error} is missing"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        from cloudload.data.file_kinds import describe_misnamed

        start = error.doc[:100].encode("utf-8", "replace")
        return describe_misnamed(start, None) or f"it is not JSON ({error})"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not JSON ({error})"
    if isinstance(error, TypeError | AttributeError):
        return f"a field has the wrong type ({error})"
    return str(error)


def check_extent(data: bytes) -> None:
    """Raise `ValueError` if an index is so large that parsing it could exhaust the memory."""
    if len(data) > MOST_INDEX_BYTES:
        raise ValueError(
            f"it has more than {MOST_INDEX_BYTES:,} bytes, so use larger shards or several datasets"
        )
    count = sum(map(data.count, (b",", b"[", b"{")))
    if count > MOST_INDEX_VALUES:
        raise ValueError(
            f"it has about {count:,} values, more than the {MOST_INDEX_VALUES:,} allowed, so use "
            "larger shards or several datasets"
        )


def parse_shard(entry: dict[str, Any]) -> ShardInfo:
    """Parse a shard's entry. Raises one of `FAULTS` if it is invalid."""
    if entry["format"] != "mds":
        raise ValueError(f"a shard has format {entry['format']!r}, not 'mds'")
    samples, hashes = _natural(entry["samples"], "samples"), _parse_hashes(entry["raw_data"])
    samples_hash = hashes.pop(SAMPLES_HASH, None) or None
    original = hashes.pop(IDENTITY, None)
    if original is not None and not _IDENTITY.fullmatch(original):
        raise ValueError(f"the identity {original[:100]!r} of a shard is not a size and hashes")
    raw = _parse_file(entry["raw_data"], hashes)
    if raw.bytes < 4 * (samples + 2):
        raise ValueError(f"{raw.name!r} has {raw.bytes:,} bytes, too few for {samples:,} samples")
    zipped = entry.get("zip_data")
    names, encodings, sizes = (
        entry[f"column_{field}"] for field in ("names", "encodings", "sizes")
    )
    if not all(isinstance(field, list) for field in (names, encodings, sizes)):
        raise ValueError("the column names, encodings, and sizes are not all lists")
    compression = _parse_compression(entry["compression"]) if zipped else None
    stored = _parse_file(zipped, _parse_hashes(zipped)) if zipped else None
    return ShardInfo(
        samples=samples,
        columns=_parse_columns(
            tuple(names), tuple(encodings), tuple(sizes), tuple(map(type, sizes))
        ),
        raw=raw,
        zipped=stored,
        compression=compression,
        samples_hash=samples_hash,
        original=original,
    )


def parse_columns(names: Sequence[Any], encodings: Sequence[Any]) -> tuple[Column, ...]:
    """Parse columns of an index that does not list sizes. Raises one of `FAULTS` if invalid."""
    sizes = [_FIXED_SIZES.get(encoding) for encoding in encodings]
    return _parse_columns(tuple(names), tuple(encodings), tuple(sizes), tuple(map(type, sizes)))


# cached, so that shards with equal columns share one tuple. The unused `_types` is part of the
# cache key, because True equals 1
@lru_cache(1024)
def _parse_columns(
    names: tuple[Any, ...],
    encodings: tuple[Any, ...],
    sizes: tuple[Any, ...],
    _types: tuple[type, ...],
) -> tuple[Column, ...]:
    if not all(isinstance(name, str) for name in (*names, *encodings)):
        raise ValueError("the column names and encodings are not all text")
    if not len(names) == len(encodings) == len(sizes):
        raise ValueError("the lists of column names, encodings, and sizes differ in length")
    if not names or len(set(names)) < len(names):
        raise ValueError("a shard has no columns, or has two columns with the same name")
    columns = tuple(
        Column(name, encoding, None if size is None else _natural(size, "column_sizes"))
        for name, encoding, size in zip(names, encodings, sizes, strict=True)
    )
    for column in columns:
        known = _FIXED_SIZES.get(column.encoding, column.bytes)
        if column.bytes != known or (column.bytes or 0) > MOST_SHARD_BYTES:
            raise ValueError(
                f"column {column.name!r} with encoding {column.encoding!r} cannot have the size "
                f"{column.bytes} (bytes per sample)"
            )
    return columns


def _parse_compression(value: object) -> str:
    if not isinstance(value, str) or value.partition(":")[0] not in COMPRESSIONS:
        raise ValueError(f"compression is {value!r}, not one of {', '.join(COMPRESSIONS)}")
    return value


def _parse_file(entry: dict[str, Any], hashes: dict[str, str]) -> FileInfo:
    name = entry["basename"]
    if fault := fault_of_name(name):
        raise ValueError(f"the file name {str(name)[:100]!r} {fault}")
    size = _natural(entry["bytes"], "bytes")
    if size > MOST_SHARD_BYTES:
        raise ValueError(f"{name!r} has {size:,} bytes, more than the 4 GiB limit of an MDS shard")
    return FileInfo(name, size, hashes)


def _parse_hashes(entry: dict[str, Any]) -> dict[str, str]:
    return {str(k): str(v) for k, v in (entry.get("hashes") or {}).items()}


def fault_of_name(name: object) -> str | None:
    """The problem with a file name, as text to put after the name; None if the name is valid."""
    if isinstance(name, str) and _PLAIN_NAME.fullmatch(name):
        return None
    if not isinstance(name, str) or not name.isprintable():
        return "is not printable text"
    parts = name.split("/")
    if not name.strip("/.") or parts[0] == "" or ".." in parts or "\\" in name or "://" in name:
        return "could point outside the dataset's folder"
    if "" in parts or "." in parts:
        return "has an empty or '.' path component"
    if name == INDEX_NAME:
        return "is reserved for the index"
    if any(sign in name for sign in "*?["):
        return "contains a wildcard"
    longest = max(len(part.encode()) for part in parts)
    if longest > _MOST_PART_BYTES or len(name.encode()) > _MOST_NAME_BYTES:
        return (
            f"is longer than {_MOST_NAME_BYTES} bytes, or has a path component longer than "
            f"{_MOST_PART_BYTES} bytes"
        )
    if any(part.lower().endswith(_CACHE_SUFFIXES) for part in parts):
        return "has a path component that ends in .part or .lock, which the cache reserves"
    return None


def check_names(names: Sequence[str]) -> None:
    """Raise `ValueError` if two names differ at most in case, or if a file is also a folder."""
    folded = {name.casefold() for name in names}
    if len(folded) < len(names):
        seen: set[str] = set()
        for name in names:
            if name.casefold() in seen:
                raise ValueError(
                    f"two files have the name {name!r}, or names that differ only in case"
                )
            seen.add(name.casefold())
    folders = {folder for name in folded if "/" in name for folder in _folders_of(name)}
    if both := sorted(folders & folded):
        raise ValueError(f"{both[0]!r} is the name of both a file and a folder")


def _folders_of(name: str) -> Iterable[str]:
    parts = name.split("/")
    return ("/".join(parts[:depth]) for depth in range(1, len(parts)))


def _natural(value: object, field: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{field} is {str(value)[:100]!r}, not an integer of at least 0")
    return value
