"""Encode and decode residues: the spans that a `best_fit` lane has read but not yet emitted.

    waiting spans     count, spans       left over from a different `seq_len`, still to be packed
    each open row     count, spans       by ascending free space
    span              ordinal of the document, and the start and stop of its tokens

All values are little-endian int32. The residue is empty if every token read is in a complete row.
"""

from __future__ import annotations

import itertools
import struct
import sys
from array import array
from collections.abc import Collection, Sequence
from functools import cache

import numpy as np

from cloudload.system import Ints, count_within

Span = tuple[int, int, int]
"""(ordinal, start, stop): the tokens of a document from `start` to its end, `stop`."""
_SPAN = struct.Struct("<3i")
SPAN_BYTES, _VALUE_BYTES = _SPAN.size, 4


@cache
def _group_format(num_spans: int) -> struct.Struct:
    return struct.Struct(f"<{1 + 3 * num_spans}i")


def encode_residue(spans: Collection[Span]) -> bytes:
    """Encode a group of spans (the waiting spans, or an open row): their number, then the spans."""
    return _group_format(len(spans)).pack(len(spans), *itertools.chain.from_iterable(spans))


EMPTY_GROUP = encode_residue(())


def extend_group(group: bytes, span: bytes) -> bytes:
    """Append a span, encoded by `encode_spans`, to an encoded group, and return the result."""
    return (len(group) // SPAN_BYTES + 1).to_bytes(4, "little") + group[4:] + span


def encode_spans(spans: Ints) -> list[bytes]:
    """Encode each of `spans` (int64 [spans, 3]) as 12 bytes, the form that groups contain."""
    joined = spans.astype("<i4").tobytes()
    return [joined[start : start + SPAN_BYTES] for start in range(0, len(joined), SPAN_BYTES)]


def decode_span(encoded: bytes) -> Span:
    """Decode a span that `encode_spans` encoded."""
    return _SPAN.unpack(encoded)


def decode_residue(residue: bytes, ordinal: int) -> tuple[list[Span], list[list[Span]]]:
    """Decode the residue of a lane that has read the documents before `ordinal`.

    Returns (waiting spans, spans of each open row). Raises `ValueError` for bytes that cannot be
    the lane's residue.
    """
    if not residue:
        return [], []
    values = array("i")
    if len(residue) % values.itemsize:
        raise ValueError(f"a residue of {len(residue)} bytes, which ends within a number")
    values.frombytes(residue)
    if sys.byteorder == "big":
        values.byteswap()
    groups: list[list[Span]] = []
    index = 0
    while index < len(values):
        # a group is the number of its spans, then 3 values for each
        stop = index + 1 + 3 * values[index]
        # the number may be anything, so read only complete spans
        spans = [
            (values[at], values[at + 1], values[at + 2])
            for at in range(index + 1, min(stop, len(values) - 2), 3)
        ]
        is_cut_short = values[index] < 0 or stop > len(values)
        if is_cut_short or any(not (0 <= d < ordinal and 0 <= a < b) for d, a, b in spans):
            raise ValueError("spans outside the documents read so far, or incomplete spans")
        groups.append(spans)
        index = stop
    if any(not spans for spans in groups[1:]):
        raise ValueError("an open row without a span")
    # a lane splits a document only into full rows, so at most its end waits
    documents = [document for spans in groups for document, _, _ in spans]
    if len(set(documents)) < len(documents):
        raise ValueError("two spans of one document")
    return groups[0], groups[1:]


def list_residue_spans(residues: Sequence[bytes]) -> tuple[Ints, Ints]:
    """List the spans of many valid residues: a vectorized `residue_spans`.

    Returns the index of each span's residue (int64 [spans]), and the spans (int64 [spans, 3]), in
    any order.
    """
    values = np.frombuffer(b"".join(residues), "<i4").astype(np.int64)
    stops = np.cumsum(list(map(len, residues)), dtype=np.int64) // _VALUE_BYTES
    # where a group begins is known only from the group before it, so visit the first groups of all
    # residues together, then their second groups, and so on; empty residues have no group
    left = np.flatnonzero(np.diff(stops, prepend=0))
    indices = np.concatenate([[0], stops[:-1]])[left]
    owners, groups, sizes = ([np.empty(0, np.int64)] for _ in range(3))
    while len(left):
        owners.append(left)
        groups.append(indices)
        sizes.append(values[indices])
        indices = indices + 1 + 3 * values[indices]
        is_left = indices < stops[left]
        left, indices = left[is_left], indices[is_left]
    # the spans of a group follow its number, 3 values each
    counts = np.concatenate(sizes)
    firsts = np.repeat(np.concatenate(groups) + 1, counts) + 3 * count_within(counts)
    return np.repeat(np.concatenate(owners), counts), values[firsts[:, None] + np.arange(3)]


def split_residues(joined: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Split joined residues by their sizes in bytes."""
    stops = [0, *itertools.accumulate(sizes)]
    return [joined[start:stop] for start, stop in itertools.pairwise(stops)]


def residue_spans(residue: bytes, ordinal: int) -> list[Span]:
    """All spans of a residue: the waiting spans, then those of the open rows.

    Raises `ValueError` as `decode_residue` does.
    """
    waiting, rows = decode_residue(residue, ordinal)
    return [*waiting, *itertools.chain.from_iterable(rows)]


def unpack_residue(residue: bytes, ordinal: int) -> bytes:
    """Turn the open rows of a residue into waiting spans, to pack them with a different `seq_len`.

    Raises `ValueError` as `decode_residue` does.
    """
    spans = residue_spans(residue, ordinal)
    return encode_residue(spans) if spans else b""
