"""The file format of a group: the lengths of the samples of consecutive shards.

    bytes    0  magic "CLLENGTH", version 1 as uint32, size of the header as uint32
            16  header: JSON with sorted keys, padded with spaces to a multiple of 8 bytes
             …  uint16 [samples]: the length, or 65,535 for a sample in the list below
             …  uint32 [long], uint32 [long]: the listed samples, and their lengths

All integers are little-endian. The stored length of a filtered sample is 2³² - 1, that of a bad
document that is left out is 2³² - 2, and that of an empty document is 0. The bytes depend only on
the lengths and the header, so any machine writes the same file.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloudload.system import Ids, Ints

LISTED = (1 << 16) - 1
"""The value in `short` of a sample whose length is in the list of long samples."""
_STORED_SIGN = 1 << 32
_MOST_TOKENS = (1 << 32) - 3
_MAGIC, _VERSION = b"CLLENGTH", 1
_START = struct.Struct("<8sII")


@dataclass(frozen=True)
class GroupLengths:
    """The lengths of a group's samples, as they are stored."""

    header: Mapping[str, Any]
    """Digests of the key and the shards, and totals; see `lengths_index.Group`."""
    short: Ids
    """uint16 [samples]: each length, or `LISTED`."""
    indices: Ids
    """uint32 [long]: the indices of the samples whose `short` is `LISTED`, ascending."""
    values: Ids
    """uint32 [long]: the lengths of these samples."""

    def widen(self) -> Ints:
        """The length of each sample, or `Size.FILTERED` or `Size.FAILED`: int64 [samples]."""
        lengths = self.short.astype(np.int64)
        lengths[self.indices] = widen(self.values)
        return lengths


def narrow(lengths: Ints) -> tuple[Ids, Ids, Ids]:
    """Split lengths (int64 [samples]) into `short`, `indices` and `values` of `GroupLengths`.

    Raises `ValueError` for a length of 2³² - 2 tokens or more.
    """
    if lengths.max(initial=0) > _MOST_TOKENS:
        raise ValueError(
            f"a sample has {int(lengths.max()):,} tokens. The maximum is {_MOST_TOKENS:,}"
        )
    is_long = (lengths < 0) | (lengths >= LISTED)
    indices = np.flatnonzero(is_long).astype("<u4")
    values = (lengths[is_long] % _STORED_SIGN).astype("<u4")
    return np.where(is_long, LISTED, lengths).astype("<u2"), indices, values


def widen(values: Ids) -> Ints:
    """Convert `values` of `GroupLengths` to lengths or `Size`: int64 [long].

    The stored values of `Size.FILTERED` and `Size.FAILED` are 2³² more.
    """
    wide = values.astype(np.int64)
    return np.where(wide > _MOST_TOKENS, wide - _STORED_SIGN, wide)


def encode_group(header: Mapping[str, Any], lengths: Ints) -> bytes:
    """Encode the file of a group. `lengths` is int64 [samples]."""
    short, indices, values = narrow(lengths)
    text = json.dumps({**header, "long": len(indices)}, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    start = _START.pack(_MAGIC, _VERSION, len(text))
    return start + text + short.tobytes() + indices.tobytes() + values.tobytes()


def decode_group(data: bytes) -> GroupLengths:
    """Decode the file of a group. Raises a `ValueError` that says what is wrong if the file is
    damaged."""
    if len(data) < _START.size:
        raise ValueError(f"the file has {len(data):,} bytes, which is too short")
    magic, version, size = _START.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError("the file does not contain token lengths")
    if version != _VERSION:
        raise ValueError(
            f"the file has format version {version}, but this version of cloudload reads only "
            f"{_VERSION}"
        )
    header = _read_header(data[_START.size : _START.size + size])
    samples, long = header["samples"], header["long"]
    end = _START.size + size + 2 * samples + 8 * long
    if len(data) != end:
        raise ValueError(f"the file has {len(data):,} bytes, but its header says {end:,}")
    start = _START.size + size
    short = np.frombuffer(data, "<u2", samples, start)
    indices = np.frombuffer(data, "<u4", long, start + 2 * samples)
    values = np.frombuffer(data, "<u4", long, start + 2 * samples + 4 * long)
    if not np.array_equal(np.flatnonzero(short == LISTED), indices):
        raise ValueError("the file's list of long samples does not match its lengths")
    return GroupLengths(header, short, indices, values)


def _read_header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the file's header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise ValueError("the file's header is not a JSON object")
    for name in ("samples", "long"):
        value = header.get(name)
        if type(value) is not int or not 0 <= value < 1 << 40:
            raise ValueError(f"the file's header has an invalid value for {name!r}, {value!r}")
    return header
