"""What a lane has read and not yet emitted, as bytes: the residue that a state holds for each lane
of `best_fit`.

    int32 number of spans that wait to be packed, and the spans | for each open row: int32 number of its spans, and the spans
    span: int32 ordinal of its document, int32 start, int32 stop, in tokens; everything little-endian

A lane with nothing to hold has an empty residue.
"""

from __future__ import annotations

import itertools
import struct
import sys
from array import array
from collections.abc import Collection, Sequence
from functools import cache

from cloudload.arrays import Ints

Span = tuple[int, int, int]
"""(ordinal, start, stop): of a document up to its end."""

# ---------------------------------------------------------------- residues


# Little-endian int32: how many spans wait to be packed, and they; then each open row's number of
# spans, and they; none is no bytes. A span is its document's ordinal, and its tokens from `start`
# to `stop`.


@cache
def _group_format(num_spans: int) -> struct.Struct:
    return struct.Struct(f"<{1 + 3 * num_spans}i")


def encode_group(spans: Collection[Span]) -> bytes:
    return _group_format(len(spans)).pack(len(spans), *itertools.chain.from_iterable(spans))


_SPAN_BYTES = 12
EMPTY_GROUP = encode_group(())


def extend_group(group: bytes, span: bytes) -> bytes:
    """A group with one more span, as `encode_spans` has it."""
    return (len(group) // _SPAN_BYTES + 1).to_bytes(4, "little") + group[4:] + span


def encode_spans(spans: Ints) -> list[bytes]:
    """Each of the spans, int64 [spans, 3], as it stands in a group."""
    joined = spans.astype("<i4").tobytes()
    return [joined[start : start + _SPAN_BYTES] for start in range(0, len(joined), _SPAN_BYTES)]


def decode_residue(residue: bytes, ordinal: int) -> tuple[list[Span], list[list[Span]]]:
    """The spans that wait, and the open rows, of a lane that has read the documents before
    `ordinal`.

    Raises `ValueError` for bytes that cannot be its residue.
    """
    if not residue:
        return [], []
    numbers = array("i")
    numbers.frombytes(residue)  # which refuses a number cut short
    if sys.byteorder == "big":
        numbers.byteswap()
    groups: list[list[Span]] = []
    place = 0
    while place < len(numbers):
        stop = place + 1 + 3 * numbers[place]
        spans = [
            (numbers[at], numbers[at + 1], numbers[at + 2])
            for at in range(place + 1, min(stop, len(numbers) - 2), 3)
        ]
        if (
            numbers[place] < 0
            or stop > len(numbers)
            or any(not (0 <= d < ordinal and 0 <= a < b) for d, a, b in spans)
        ):
            raise ValueError("spans that lie outside the documents read so far")
        groups.append(spans)
        place = stop
    if any(not spans for spans in groups[1:]):
        raise ValueError("an open row without a span")
    documents = [document for spans in groups for document, _, _ in spans]
    if len(set(documents)) < len(documents):
        raise ValueError("two spans of one document")
    return groups[0], groups[1:]


def split_residues(joined: bytes, sizes: Sequence[int]) -> list[bytes]:
    """The residues of these sizes that stand one after the other."""
    stops = [0, *itertools.accumulate(sizes)]
    return [joined[start:stop] for start, stop in itertools.pairwise(stops)]


def residue_spans(residue: bytes, ordinal: int) -> list[Span]:
    """All spans of a residue."""
    waiting, rows = decode_residue(residue, ordinal)
    return [*waiting, *(span for spans in rows for span in spans)]


def unpack_residue(residue: bytes, ordinal: int) -> bytes:
    """The residue with its rows dissolved: for rows of another `seq_len`, which pack its spans
    anew."""
    spans = residue_spans(residue, ordinal)
    return encode_group(spans) if spans else b""
