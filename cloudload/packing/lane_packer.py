"""The lanes of a worker as their packers see them: what each has read and not emitted, and the
cutting of it into pieces of rows.

    lane 0    ···| a a a b b      c c c c          two rows wanted of seq_len 5     ─►  a a a b b | c c c c .
    lane 1         d d d d d d d  e                one row wanted                   ─►  d d d d d   and d d e wait

`PackerLanes` runs a reference packer (`packers`) for each lane, row by row: any packing.
`ConcatLanes` and `BestFitLanes` are the vectorized twins of two of them, held to the reference by
property tests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cloudload.arrays import Flags, Ints
from cloudload.packing.packers import Cursor, Packer, Packing
from cloudload.packing.residue import residue_spans
from cloudload.packing.tables import (
    BASE,
    BUFFER,
    CURSOR_OFFSET,
    CURSOR_ORDINAL,
    NUM_DOCUMENT_COLUMNS,
    SIZE,
    Documents,
)


@dataclass(frozen=True)
class CutRows:
    """Rows in pieces, lane after lane, and within a lane as they follow each other."""

    num_rows: Ints
    """int64 [lanes]: the rows that each lane gave; fewer than wanted where its end is reached."""
    table: Ints
    buffers: Sequence[memoryview]
    pieces: Ints
    """int64 [pieces, 4], as `rows` has them."""
    cursors: Ints
    """int64 [rows, 2]: the lane's cursor after each row."""
    residues: Sequence[bytes] | None
    counted: Ints
    """int64 [documents, 4]: those of which nothing is left to read: the row they are counted with,
    stream, count and size."""


class LaneRows(Protocol):
    """Lanes by flat_lane. Slots are given ascending, each once."""

    def unread(self, flat_lanes: Ints) -> tuple[Ints, Ints]:
        """(flat_lanes, ordinals) of documents that lanes hold, but whose tokens have to be read
        again."""
        ...

    def missing(self, flat_lanes: Ints, wanted: Ints) -> Ints:
        """The tokens that each lane is about to need for so many rows; 0 where it has the rows."""
        ...

    def add(self, documents: Documents, has_begun: Flags) -> None:
        """Take the next documents of lanes; for one that `has_begun`, the lane's first cursor says
        how far.

        Raises `ValueError`, which names the lane, where the cursor stands beyond its end.
        """
        ...

    def cut(self, flat_lanes: Ints, wanted: Ints) -> CutRows:
        """The next rows of lanes, of those documents alone that were added for them."""
        ...


def copy_tokens(buffer: memoryview, start: int, stop: int) -> memoryview:
    return memoryview(buffer[start:stop].tobytes()).cast("i")


# ---------------------------------------------------------------- any packing


class _PackerLane:
    """A lane, its packer, and the documents that rows have yet to take."""

    def __init__(self, packer: Packer, residue: dict[int, int]) -> None:
        self.packer = packer
        self.unread = residue
        """The sizes of documents that are packed, but have yet to be read again."""
        self.documents: dict[int, tuple[Ints, memoryview]] = {}
        self.uncounted: deque[tuple[int, int, int, int]] = deque()


class PackerLanes:
    """Lanes that each have a packer."""

    def __init__(
        self, packing: Packing, num_lanes: int, cursors: Ints, residues: Sequence[bytes] | None
    ) -> None:
        self._packing, self._num_lanes, self._cursors, self._residues = (
            packing,
            num_lanes,
            cursors,
            residues,
        )
        self._lanes: list[_PackerLane | None] = [None] * len(cursors)

    def _lane(self, flat_lane: int) -> _PackerLane:
        lane = self._lanes[flat_lane]
        if lane is None:
            cursor: Cursor = (
                int(self._cursors[flat_lane, CURSOR_ORDINAL]),
                int(self._cursors[flat_lane, CURSOR_OFFSET]),
            )
            residue = b"" if self._residues is None else self._residues[flat_lane]
            try:
                packer = self._packing.packer(cursor, residue)
                unread = {ordinal: size for ordinal, _, size in residue_spans(residue, cursor[0])}
            except ValueError as error:
                raise ValueError(
                    f"residues: lane {flat_lane % self._num_lanes} has {error}"
                ) from None
            lane = self._lanes[flat_lane] = _PackerLane(packer, unread)
        return lane

    def unread(self, flat_lanes: Ints) -> tuple[Ints, Ints]:
        keys = [
            (flat_lane, ordinal)
            for flat_lane in flat_lanes.tolist()
            for ordinal in self._lane(flat_lane).unread
        ]
        pairs = np.array(keys, np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def missing(self, flat_lanes: Ints, wanted: Ints) -> Ints:
        short = np.zeros(len(flat_lanes), np.int64)
        for place, (flat_lane, rows) in enumerate(
            zip(flat_lanes.tolist(), wanted.tolist(), strict=True)
        ):
            packer = self._lane(flat_lane).packer
            if len(packer.rows) < rows:
                short[place] = max(
                    1, (rows - len(packer.rows)) * self._packing.seq_len - packer.num_pending
                )
        return short

    def add(self, documents: Documents, has_begun: Flags) -> None:
        table = documents.table
        for (flat_lane, ordinal, stream, _, _, size, count, *_), document in zip(
            table.tolist(), own_documents(documents), strict=True
        ):
            lane = self._lane(flat_lane)
            packed_size = lane.unread.pop(ordinal, None)
            try:
                if packed_size is None:
                    lane.packer.add(ordinal, size)
                    lane.uncounted.append((ordinal, stream, count, size))
                elif size != packed_size:
                    raise ValueError(
                        f"document {ordinal} had {packed_size} tokens, and now has {size}"
                    )
            except ValueError as error:
                raise ValueError(f"lane {flat_lane % self._num_lanes}: {error}") from None
            if size:
                lane.documents[ordinal] = document

    def cut(self, flat_lanes: Ints, wanted: Ints) -> CutRows:
        num_rows = np.zeros(len(flat_lanes), np.int64)
        tables: list[Ints] = []
        buffers: list[memoryview] = []
        pieces: list[int] = []
        cursors: list[int] = []
        residues: list[bytes] = []
        counted: list[int] = []
        row = 0
        for place, (flat_lane, rows) in enumerate(
            zip(flat_lanes.tolist(), wanted.tolist(), strict=True)
        ):
            lane = self._lane(flat_lane)
            num_rows[place] = number = min(rows, len(lane.packer.rows))
            for _ in range(number):
                packed = lane.packer.rows.popleft()
                for ordinal, start, stop, is_last in packed.pieces:
                    document, tokens = (
                        lane.documents.pop(ordinal) if is_last else lane.documents[ordinal]
                    )
                    pieces += row, len(tables), start, stop
                    tables.append(document)
                    buffers.append(tokens)
                cursors += packed.cursor
                residues.append(packed.residue)
                while lane.uncounted and lane.uncounted[0][0] < packed.cursor[0]:
                    counted += (row, *lane.uncounted.popleft()[1:])
                row += 1
        table = (
            np.concatenate(tables).reshape(-1, NUM_DOCUMENT_COLUMNS)
            if tables
            else np.empty((0, NUM_DOCUMENT_COLUMNS), np.int64)
        )
        table[:, BUFFER] = np.arange(len(table))
        return CutRows(
            num_rows=num_rows,
            table=table,
            buffers=buffers,
            pieces=np.array(pieces, np.int64).reshape(-1, 4),
            cursors=np.array(cursors, np.int64).reshape(-1, 2),
            residues=residues if self._packing.has_residue else None,
            counted=np.array(counted, np.int64).reshape(-1, 4),
        )


def own_documents(documents: Documents) -> list[tuple[Ints, memoryview]]:
    """The row of the table, and the tokens, of each document: apart from those of all others."""
    table, buffer = documents.table.copy(), documents.ids.data
    froms = np.maximum(0, table[:, BASE])
    stops = np.maximum(froms, table[:, BASE] + table[:, SIZE])
    table[:, BASE] -= froms
    parts = [
        copy_tokens(buffer, start, stop)
        for start, stop in zip(froms.tolist(), stops.tolist(), strict=True)
    ]
    return list(zip(table, parts, strict=True))
