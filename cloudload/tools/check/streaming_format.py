"""The index format of MosaicML Streaming 0.13. Tests compare each constant with Streaming itself.

Streaming's readers take exactly the fields of an entry as arguments, so an extra or missing field
raises `TypeError` or `KeyError`.
"""

from __future__ import annotations

import hashlib
from functools import cache

import xxhash

_FIELD_NAMES = """
version format samples size_limit compression hashes raw_data zip_data
column_names column_encodings column_sizes
"""
_ENCODING_NAMES = """
str bytes json str_int str_float str_decimal ndarray pkl
int int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64
pil jpeg png list[pil] list[jpeg] list[png] jpeg_array jpegarray
"""

ENTRY_FIELDS = frozenset(_FIELD_NAMES.split())
"""The fields of a shard's entry."""

FILE_FIELDS = frozenset({"basename", "bytes", "hashes"})
"""The fields of `raw_data` and `zip_data`."""

OTHER_FORMATS = ("csv", "json", "tsv", "xsv")
"""Shard formats that Streaming reads besides MDS."""

ENCODINGS = frozenset(_ENCODING_NAMES.split())
"""The encodings of MDS columns. `ndarray` may have a type and shape: `ndarray:int16:2,3`."""

UNSAFE_ENCODINGS = frozenset({"pkl"})
"""Encodings that Streaming reads only with `allow_unsafe_types=True`."""

_LEVELS = {"br": range(12), "bz2": range(1, 10), "gz": range(10), "zstd": range(1, 23)}
COMPRESSIONS = frozenset(
    ["br", "bz2", "gz", "snappy", "zstd"]
    + [f"{name}:{level}" for name, levels in _LEVELS.items() for level in levels]
)
"""The values of `compression` that Streaming accepts besides None."""


def knows_encoding(encoding: str) -> bool:
    """Whether Streaming decodes columns of this encoding."""
    return encoding in ENCODINGS or encoding.startswith("ndarray:")


@cache
def knows_hash(name: str) -> bool:
    """Whether Streaming can compute this hash with this version of Python."""
    is_hashlib = name in hashlib.algorithms_available and hasattr(hashlib, name)
    return name in xxhash.algorithms_available or (is_hashlib and not name.startswith("shake_"))
