"""Pack the lanes of a worker: documents in, pieces of rows out.

    lane 0   ···| a a a b b c c c c c     two rows wanted of seq_len 5   ─►  a a a b b | c c c c c
    lane 1        d d d d d d d e         one row wanted                 ─►  d d d d d    d d e wait

`ConcatLanes` packs with `concat` and `one_per_row`, and `BestFitLanes` with `best_fit`. Property
tests compare them with a reference packer (`packers`) for each lane.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from cloudload.rows.packing import tables
from cloudload.rows.packing.packers import check_start
from cloudload.system import Ints


class LaneRows(Protocol):
    """The packers of a worker's lanes, indexed by flat lane (`component * num_lanes + lane`).

    `flat_lanes` is int64 [lanes], ascending and distinct. `wanted` is the number of rows wanted
    from each lane, int64 [lanes].
    """

    def unread(self, flat_lanes: Ints) -> tuple[Ints, Ints]:
        """The documents in the lanes' residues that must be read again.

        Returns (flat_lanes, ordinals), int64 [documents] each. Add these documents before cutting
        rows. Raises `ValueError` for an invalid residue.
        """
        ...

    def missing(self, flat_lanes: Ints, wanted: Ints) -> Ints:
        """Estimate how many more tokens each lane needs for the wanted rows: int64 [lanes].

        The estimate is 0 if and only if the lane already has the rows.
        """
        ...

    def add(self, documents: tables.ReadDocuments) -> None:
        """Add the next documents of lanes, or documents that `unread` lists.

        Next documents are sorted by flat lane, then by ordinal. Raises a `ValueError` that names
        the lane if a document does not match the lane's starting cursor or its residue.
        """
        ...

    def cut(self, flat_lanes: Ints, wanted: Ints) -> tables.CutRows:
        """Take the next rows of lanes, at most `wanted` from each, out of the documents added.

        `flat_lanes` includes all lanes to which documents were added since the last call.
        """
        ...


def copy_tokens(buffer: memoryview, start: int, stop: int) -> memoryview:
    """Copy tokens [start, stop) of an int32 buffer. A view would keep the whole buffer alive."""
    return memoryview(buffer[start:stop].tobytes()).cast("i")


def start_lanes(table: Ints, starts: Ints, num_lanes: int) -> None:
    """Set `START` of each lane's first document to the offset of the lane's starting cursor.

    `starts` is int64 [flat_lanes, 2]: the starting cursor of a lane, whose offset is set to 0 once
    its first document is in `table`. Raises a `ValueError` that names the lane if this document
    does not match the cursor.
    """
    # documents are sorted by lane, so the first one with an offset is the lane's first
    begun = np.flatnonzero(starts[table[:, tables.FLAT_LANE], tables.CURSOR_OFFSET])
    lanes, firsts = np.unique(table[begun, tables.FLAT_LANE], return_index=True)
    for flat_lane, index in zip(lanes.tolist(), begun[firsts].tolist(), strict=True):
        ordinal, size = table[index, [tables.ORDINAL, tables.SIZE]].tolist()
        expected, offset = starts[flat_lane].tolist()
        try:
            check_start(expected, offset, ordinal, size)
        except ValueError as error:
            raise ValueError(f"lane {flat_lane % num_lanes}: {error}") from None
        table[index, tables.START], starts[flat_lane, tables.CURSOR_OFFSET] = offset, 0


def own_documents(documents: tables.ReadDocuments) -> list[tables.ReadDocuments]:
    """Copy each document, so that it has its own buffer."""
    table = documents.table.copy()
    froms = np.maximum(0, table[:, tables.BASE])
    stops = np.maximum(froms, table[:, tables.BASE] + table[:, tables.SIZE])
    ranges = zip(table[:, tables.BUFFER].tolist(), froms.tolist(), stops.tolist(), strict=True)
    table[:, tables.BASE] -= froms
    table[:, tables.BUFFER] = 0
    return [
        tables.ReadDocuments(
            table[index : index + 1], [copy_tokens(documents.buffers[of], start, stop)]
        )
        for index, (of, start, stop) in enumerate(ranges)
    ]
