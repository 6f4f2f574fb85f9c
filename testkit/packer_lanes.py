"""Lanes that each have a reference packer: the specification of the vectorized lanes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from cloudload.rows.packing import tables
from cloudload.rows.packing.lane_packer import own_documents
from cloudload.rows.packing.packers import PackedRow, Packer, Packing
from cloudload.rows.packing.residue import residue_spans
from cloudload.system.arrays import Ints


class _PackerLane:
    """A lane's packer, and the documents of the lane that later rows need."""

    def __init__(self, packer: Packer, residue: dict[int, int]) -> None:
        self.packer = packer
        self.unread = residue
        """The sizes of the residue's documents that must be read again, by ordinal."""
        self.documents: dict[int, tables.ReadDocuments] = {}
        self.uncounted: deque[tuple[int, int, int, int]] = deque()


class PackerLanes:
    """Lanes that each have a reference packer; see `LaneRows`.

    It specifies the results of `ConcatLanes` and `BestFitLanes`. `cursors` is int64
    [flat_lanes, 2].
    """

    def __init__(
        self, packing: Packing, num_lanes: int, cursors: Ints, residues: Sequence[bytes] | None
    ) -> None:
        self._packing, self._num_lanes = packing, num_lanes
        self._cursors, self._residues = cursors, residues
        self._lanes: list[_PackerLane | None] = [None] * len(cursors)

    def _lane(self, flat_lane: int) -> _PackerLane:
        lane = self._lanes[flat_lane]
        if lane is None:
            ordinal, offset = self._cursors[flat_lane].tolist()
            residue = b"" if self._residues is None else self._residues[flat_lane]
            try:
                packer = self._packing.packer((ordinal, offset), residue)
                unread = {document: size for document, _, size in residue_spans(residue, ordinal)}
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
        for index, (flat_lane, rows) in enumerate(
            zip(flat_lanes.tolist(), wanted.tolist(), strict=True)
        ):
            packer = self._lane(flat_lane).packer
            if len(packer.rows) < rows:
                tokens = (rows - len(packer.rows)) * self._packing.seq_len
                short[index] = max(1, tokens - packer.num_pending)
        return short

    def add(self, documents: tables.ReadDocuments) -> None:
        for (flat_lane, ordinal, stream, _, _, size, count, *_), document in zip(
            documents.table.tolist(), own_documents(documents), strict=True
        ):
            lane = self._lane(flat_lane)
            packed_size = lane.unread.pop(ordinal, None)
            try:
                if packed_size is None:
                    lane.packer.add(ordinal, size)
                    lane.uncounted.append((ordinal, stream, count, size))
                elif size != packed_size:
                    raise ValueError(
                        f"document {ordinal} had {packed_size} tokens, but now has {size}"
                    )
            except ValueError as error:
                raise ValueError(f"lane {flat_lane % self._num_lanes}: {error}") from None
            if size:
                lane.documents[ordinal] = document

    def cut(self, flat_lanes: Ints, wanted: Ints) -> tables.CutRows:
        taken: list[tuple[_PackerLane, PackedRow]] = []
        num_rows: list[int] = []
        for flat_lane, most in zip(flat_lanes.tolist(), wanted.tolist(), strict=True):
            lane = self._lane(flat_lane)
            num_rows.append(min(most, len(lane.packer.rows)))
            taken += [(lane, lane.packer.rows.popleft()) for _ in range(num_rows[-1])]
        documents: list[tables.ReadDocuments] = []
        pieces: list[tuple[int, ...]] = []
        counted: list[tuple[int, ...]] = []
        for row, (lane, packed) in enumerate(taken):
            for ordinal, start, stop, is_last in packed.pieces:
                # each piece has its own row of the table, so documents may repeat in it
                pieces.append((row, len(documents), start, stop))
                # keep a document's tokens until the row of its last piece
                take = lane.documents.pop if is_last else lane.documents.__getitem__
                documents.append(take(ordinal))
            # a document without tokens has no piece, so the cursor tells which ones are read
            while lane.uncounted and lane.uncounted[0][0] < packed.cursor[0]:
                counted.append((row, *lane.uncounted.popleft()[1:]))
        return tables.CutRows(
            num_rows=np.array(num_rows, np.int64),
            documents=tables.join_documents(documents),
            pieces=_stack(pieces, tables.NUM_PIECE_COLUMNS),
            cursors=_stack([packed.cursor for _, packed in taken], tables.CURSOR_SIZE),
            residues=[packed.residue for _, packed in taken] if self._packing.has_residue else None,
            counted=_stack(counted, 4),
        )


def _stack(rows: Sequence[Any], num_columns: int) -> Ints:
    """An array of rows, which may be none: int64 [rows, columns]."""
    return np.array(rows, np.int64).reshape(-1, num_columns)
