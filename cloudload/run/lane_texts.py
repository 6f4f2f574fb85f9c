"""Encode the cursors and residues of all lanes as text, and reuse the text of unchanged lanes.

    lanes     0 … 95   96 … 191   192 … 287      96 lanes are a chunk
    before    AAc…     BwA…       CQA…
    now       AAc…     CAA…       CQA…           only lanes of the second chunk moved

A batch moves only a few lanes. Saving a state after every batch therefore encodes only a few
chunks, and joins them with the unchanged ones. A chunk of cursors or sizes is a whole number of
3-byte base64 groups, so the joined text is the base64 of all lanes. Each chunk of residues is
compressed separately, and `CHUNK_END` separates the chunks.
"""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloudload.rows import tables
from cloudload.system import Ints

CHUNK_END = "."
RESIDUES_PER_CHUNK = 16
SIZE_WIDTHS = ("<u2", "<u4", "<u8")
_CURSOR_WIDTHS = ("<i4", "<i8")
_LANES_PER_CHUNK = 96


class LaneTexts:
    """Encodes lanes as text, and reuses the text of lanes that have not changed."""

    def __init__(self) -> None:
        # replace these values, never modify them, so that threads can encode at the same time
        self._cursors: _Cursors | None = None
        self._residues: tuple[list[bytes], list[str]] = [], []

    def encode(self, cursors: Ints, residues: Any) -> dict[str, str]:
        """Encode cursors, int64 [components, lanes, 3], and residues, which may be None.

        Residues are an object array of bytes, [components, lanes]. Callers must not modify the
        arrays afterwards.
        """
        rows = cursors.reshape(-1, cursors.shape[-1])
        found = self._cursors = _Cursors.encode(rows, self._cursors)
        return {
            "cursors": "".join(found.texts),
            "document_sizes": "".join(found.size_texts),
            "residues": "" if residues is None else self._encode_residues(residues),
        }

    def _encode_residues(self, of_lanes: Any) -> str:
        residues: list[bytes] = of_lanes.ravel().tolist()
        before, texts = self._residues
        texts = texts.copy() if len(before) == len(residues) else []
        for chunk, start in enumerate(range(0, len(residues), RESIDUES_PER_CHUNK)):
            own = residues[start : start + RESIDUES_PER_CHUNK]
            if chunk == len(texts):
                texts.append(_encode_chunk(own))
            elif own != before[start : start + RESIDUES_PER_CHUNK]:
                texts[chunk] = _encode_chunk(own)
        self._residues = residues, texts
        return CHUNK_END.join(texts)


def _encode_chunk(residues: Sequence[bytes]) -> str:
    """Encode residues as base64 of a zlib stream.

    The stream holds little-endian int32 values: the size in bytes of every residue, then the
    residues. The low bytes of all values come first, then their second bytes, and so on. This
    layout compresses faster, and to about three quarters of the size.
    """
    values = np.array([len(part) for part in residues], "<i4").tobytes() + b"".join(residues)
    planes = np.frombuffer(values, np.uint8).reshape(-1, 4).T.tobytes()
    return _base64(zlib.compress(planes, 1))


@dataclass(frozen=True)
class _Cursors:
    """Encoded cursors, in chunks of lanes."""

    rows: Ints
    """The cursors: int64 [lanes, 3]."""
    most: Ints
    """The largest ordinal, offset, and size in each chunk: int64 [chunks, 3]."""
    widths: tuple[str, str]
    """(dtype of ordinals and offsets, dtype of sizes). The second is "" if all sizes are 0."""
    texts: list[str]
    size_texts: list[str]

    @staticmethod
    def encode(rows: Ints, before: _Cursors | None) -> _Cursors:
        """Encode the cursors `rows`, reusing the chunks of `before` that have not changed."""
        num_chunks = -(-len(rows) // _LANES_PER_CHUNK)
        changed: Iterable[int] = range(num_chunks)
        if before is not None and before.rows.shape == rows.shape:
            [indices] = (before.rows != rows).ravel().nonzero()
            changed = dict.fromkeys((indices // (_LANES_PER_CHUNK * rows.shape[1])).tolist())
            most = before.most.copy()
        else:
            most = np.empty((num_chunks, rows.shape[1]), np.int64)
        # a changed chunk may need wider integers, and if the width changes, all chunks are encoded
        for chunk in changed:
            most[chunk] = np.maximum.reduce(_chunk_of(rows, chunk))
        widths = _find_widths(*np.maximum.reduce(most).tolist())
        if before is None or before.widths != widths or before.rows.shape != rows.shape:
            changed, texts, size_texts = range(num_chunks), [""] * num_chunks, [""] * num_chunks
        else:
            texts, size_texts = before.texts.copy(), before.size_texts.copy()
        for chunk in changed:
            own = _chunk_of(rows, chunk)
            texts[chunk] = _base64(own[:, : tables.CURSOR_SIZE].astype(widths[0]).data)
            if widths[1]:
                size_texts[chunk] = _base64(own[:, tables.CURSOR_SIZE].astype(widths[1]).data)
        return _Cursors(rows, most, widths, texts, size_texts)


def _chunk_of(rows: Ints, chunk: int) -> Ints:
    return rows[chunk * _LANES_PER_CHUNK : (chunk + 1) * _LANES_PER_CHUNK]


def _find_widths(ordinal: int, offset: int, size: int) -> tuple[str, str]:
    """Return the smallest dtypes that fit the largest ordinal, offset, and size."""
    of_cursors = _CURSOR_WIDTHS[max(ordinal, offset) >= 1 << 31]
    of_sizes = next(width for width in SIZE_WIDTHS if size < 1 << 8 * int(width[-1]))
    return of_cursors, of_sizes if size > 0 else ""


def _base64(data: Any) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")
