"""The tail of a finite run: the tokens left in all lanes when the first one runs dry.

    lane 0    ████████████ ▒▒▒▒       the tail begins at the first row that its lane cannot fill
    lane 1    ████████████
    lane 2    ████████████ ▒▒▒▒▒▒▒    ▒ is packed, in canonical order, by one reference packer
    tail      ▒▒▒▒▒▒▒▒▒▒▒▒            as one lane: with concat, only the last row is padded

Lanes end at different rows because their documents differ in size. Each rank tokenizes the
documents left in its lanes to learn their sizes. The ranks exchange the sizes, and each rank then
reads its rows of the tail. The rows depend on the lanes' cursors and the sizes, never on the world
size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cloudload.arrays import Ints
from cloudload.packing.packers import Packer, Packing
from cloudload.packing.residue import residue_spans
from cloudload.packing.tables import (
    NUM_UNIT_COLUMNS,
    SIZE_ABSENT,
    TAIL_START,
    TAIL_STOP,
    TAIL_UNIT,
    UNIT_LANE,
    UNIT_ORDINAL,
    UNIT_SIZE,
    UNIT_START,
    UNIT_STOP,
)

Stages = tuple[tuple[int, int], ...]
"""(seq_len, rows delivered) for each `seq_len` that the tail was packed with."""


@dataclass(frozen=True)
class Tail:
    """The rows of a tail.

    Row `first_row + i` of the run has the pieces `pieces[piece_starts[i] : piece_starts[i + 1]]`.
    """

    first_row: int
    units: Ints
    """int64 [units, 5], by `tables.UNIT_LANE` and so on."""
    pieces: Ints
    """int64 [pieces, 3], by `tables.TAIL_UNIT` and so on."""
    piece_starts: Ints
    """int64 [rows + 1]."""
    passed: Ints
    """int64 [rows + 1]: row `i` finishes the units `passed[i] ≤ unit < passed[i + 1]`."""

    @property
    def num_rows(self) -> int:
        """Number of rows in the tail."""
        return len(self.piece_starts) - 1

    @property
    def end(self) -> int:
        """Number of rows in the whole run."""
        return self.first_row + self.num_rows

    def row_pieces(self, row: int) -> Ints:
        """The pieces of a row of the run: int64 [pieces, 3]; empty after the end."""
        place = min(row - self.first_row, self.num_rows)
        stop = min(place + 1, self.num_rows)
        return self.pieces[self.piece_starts[place] : self.piece_starts[stop]]

    def row_units(self, row: int) -> Ints:
        """The units that a row of the run finishes: int64 [units, 5]; empty after the end."""
        place = min(row - self.first_row, self.num_rows)
        return self.units[self.passed[place] : self.passed[min(place + 1, self.num_rows)]]

    def num_tokens(self, row: int) -> int:
        """Number of tokens in row `row` of the run and all later rows."""
        pieces = self.pieces[self.piece_starts[min(max(0, row - self.first_row), self.num_rows)] :]
        return int((pieces[:, TAIL_STOP] - pieces[:, TAIL_START]).sum())


def pack_tail(
    packing: Packing,
    *,
    start_row: int,
    stages: Stages,
    cursors: Ints,
    residues: Sequence[bytes],
    sizes: Sequence[Ints],
) -> Tail:
    """The tail that begins at `start_row`.

    The lanes were then at `cursors` (int64 [lanes, 2]) with `residues` ([lanes]). `sizes` holds,
    for each lane, the sizes of its documents from the cursor on: int64 [documents]. `stages` are
    the rows of the tail that were delivered before the run was resumed; rows with another `seq_len`
    than the current one are skipped. Raises `ValueError` for a cursor past the end of its document.
    """
    units = _units_left(cursors, residues, sizes)
    over = stages[:-1] if stages and stages[-1][0] == packing.seq_len else stages
    for seq_len, rows in over:
        if _has_tokens(units):
            units = _skip_rows(replace(packing, seq_len=seq_len).packer(), units, rows)
            # units without tokens were counted with the last row
            units = units if _has_tokens(units) else units[:0]
        start_row += rows
    return _pack(packing.packer(), units, start_row)


def next_stages(stages: Stages, seq_len: int, start_row: int, rows: int) -> Stages:
    """The stages of a tail after `rows` rows of the run.

    The tail began at `start_row`. The last row has `seq_len` tokens.
    """
    past = stages[:-1] if stages and stages[-1][0] == seq_len else stages
    return (*past, (seq_len, rows - start_row - sum(count for _, count in past)))


def _units_left(cursors: Ints, residues: Sequence[bytes], sizes: Sequence[Ints]) -> Ints:
    units: list[Ints] = []
    for lane, (ordinal, offset) in enumerate(cursors.tolist()):
        spans = [(lane, *span, SIZE_ABSENT) for span in residue_spans(residues[lane], ordinal)]
        units.append(np.array(spans, np.int64).reshape(-1, NUM_UNIT_COLUMNS))
        lane_sizes = sizes[lane]
        rest = np.zeros((len(lane_sizes), NUM_UNIT_COLUMNS), np.int64)
        rest[:, UNIT_LANE] = lane
        rest[:, UNIT_ORDINAL] = np.arange(ordinal, ordinal + len(lane_sizes))
        rest[:1, UNIT_START] = offset
        rest[:, UNIT_STOP] = np.maximum(lane_sizes, 0)
        rest[:, UNIT_SIZE] = lane_sizes
        if len(rest) and rest[0, UNIT_STOP] < offset:
            raise ValueError(
                f"lane {lane} is at token {offset} of document {ordinal}, which has "
                f"{rest[0, UNIT_STOP]}"
            )
        units.append(rest[lane_sizes != SIZE_ABSENT])
    joined: Ints = np.concatenate(units)
    # canonical order: lane after lane within each ordinal
    in_order: Ints = joined[
        np.lexsort((joined[:, UNIT_START], joined[:, UNIT_LANE], joined[:, UNIT_ORDINAL]))
    ]
    return in_order


def _has_tokens(units: Ints) -> bool:
    return bool((units[:, UNIT_STOP] > units[:, UNIT_START]).any())


def _add(packer: Packer, unit: int, units: Ints) -> None:
    packer.add(unit, int(units[unit, UNIT_STOP] - units[unit, UNIT_START]))


def _skip_rows(packer: Packer, units: Ints, rows: int) -> Ints:
    """The units that are left after the packer's first `rows` rows.

    Example: units of 4, 7 and 2 tokens, concat, seq_len 5, 1 row. The row takes unit 0 and a token
    of unit 1, so tokens [1, 7) of unit 1 and all of unit 2 are left. Spans of a residue are first.
    """
    if not rows:
        return units
    unit = 0
    while len(packer.rows) < rows and unit < len(units):
        _add(packer, unit, units)
        unit += 1
    if len(packer.rows) < rows:
        packer.finish()
    if len(packer.rows) < rows:
        return units[:0]
    (ordinal, offset), residue = packer.rows[rows - 1][1:]
    spans = residue_spans(residue, ordinal)
    again = units[[document for document, _, _ in spans]].reshape(-1, NUM_UNIT_COLUMNS)
    starts = np.array([start for _, start, _ in spans], np.int64)
    again[:, UNIT_START] += starts
    again[:, UNIT_SIZE] = SIZE_ABSENT
    rest = units[ordinal:].copy()
    rest[:1, UNIT_START] += offset
    return np.concatenate([again, rest])


def _pack(packer: Packer, units: Ints, start_row: int) -> Tail:
    for unit in range(len(units)):
        _add(packer, unit, units)
    packer.finish()
    pieces = [(unit, start, stop) for row in packer.rows for unit, start, stop, _ in row.pieces]
    flat = np.array(pieces, np.int64).reshape(-1, 3)
    flat[:, TAIL_START:] += units[flat[:, TAIL_UNIT], UNIT_START][:, None]
    starts = np.cumsum([0, *(len(row.pieces) for row in packer.rows)], dtype=np.int64)
    passed = np.array([0, *(row.cursor[0] for row in packer.rows)], np.int64)
    passed[-1] = len(units) if len(passed) > 1 else 0
    return Tail(start_row, units, flat, starts, passed)
