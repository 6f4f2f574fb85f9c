"""The tail of a finite run: the tokens left in all lanes when the first one runs dry.

    lane 0    ████████████ ▒▒▒▒       the tail begins at the first row that its lane cannot fill
    lane 1    ████████████
    lane 2    ████████████ ▒▒▒▒▒▒▒    ▒ is packed, in canonical order, by one reference packer
    tail      ▒▒▒▒▒▒▒▒▒▒▒             as one lane: with concat, only the last row is padded

Lanes end at different rows because their documents differ in size. A **remnant** is the part of a
document that remains in a lane: a range of its tokens, which may be empty. Each rank tokenizes the
documents left in its lanes to learn their sizes. The ranks exchange the sizes, and each rank then
reads its rows of the tail. Given the packing, the rows depend on the lanes' cursors and residues
and on the sizes, not on the world size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cloudload.rows.packing import tables
from cloudload.rows.packing.packers import Packer, Packing
from cloudload.rows.packing.residue import residue_spans
from cloudload.stats import DOCUMENTS, EMPTY
from cloudload.system import Ints, count_within

Stages = tuple[tuple[int, int], ...]
"""(seq_len, number of rows delivered) of each stage of a tail.

A stage is a range of the tail's rows that were packed with one `seq_len`. A run that resumes in its
tail with a different `seq_len` begins a new stage."""


@dataclass(frozen=True)
class Tail:
    """The rows of a tail's current stage."""

    first_row: int
    remnants: Ints
    """int64 [remnants, 5], with columns `tables.REMNANT_LANE` and so on, in canonical order."""
    pieces: Ints
    """int64 [pieces, 4], with columns `tables.PIECE_ROW` and so on. A row is counted from
    `first_row`, and a document is the index of a remnant."""
    passed: Ints
    """int64 [rows + 1]: row `first_row + i` counts the documents of the remnants
    `passed[i] ≤ remnant < passed[i + 1]`, unless they were counted before."""

    @property
    def num_rows(self) -> int:
        """The number of rows in this stage."""
        return len(self.passed) - 1

    @property
    def end(self) -> int:
        """The number of rows in the whole run, which ends with the tail."""
        return self.first_row + self.num_rows

    @property
    def keys(self) -> Ints:
        """The key of each remnant's document (see `tables.document_keys`): int64 [remnants]."""
        return tables.document_keys(
            self.remnants[:, tables.REMNANT_LANE], self.remnants[:, tables.REMNANT_ORDINAL]
        )

    def find(self, rows: Ints) -> Ints:
        """The pieces of rows of the run, which have none after the end: int64 [pieces, 4].

        In the result, a row is an index into `rows` (int64 [rows]).
        """
        return tables.select_pieces(self.pieces, rows - self.first_row)

    def find_counted(self, rows: Ints) -> tuple[Ints, Ints]:
        """The remnants whose documents are counted with rows of the run (int64 [rows]).

        Returns, for each, the index of its row in `rows`, int64 [n], and the remnant, int64 [n, 5].
        """
        indices = np.minimum(rows - self.first_row, self.num_rows)
        firsts, stops = self.passed[indices], self.passed[np.minimum(indices + 1, self.num_rows)]
        counts = stops - firsts
        remnants = self.remnants[np.repeat(firsts, counts) + count_within(counts)]
        is_counted = remnants[:, tables.REMNANT_SIZE] != tables.Size.ABSENT
        return np.repeat(np.arange(len(rows)), counts)[is_counted], remnants[is_counted]

    def num_tokens(self, row: int) -> int:
        """The number of tokens in the run's row `row` and all later rows."""
        pieces = self.pieces[self.pieces[:, tables.PIECE_ROW] >= row - self.first_row]
        return int((pieces[:, tables.PIECE_STOP] - pieces[:, tables.PIECE_START]).sum())


def take_rows(tail: Tail, rows: Ints) -> Tail:
    """Return a tail with only the rows `rows` of the run (int64 [rows]), which keep their indices.

    All other rows of the result are empty, and the remnants that they count are unspecified.
    """
    is_taken = np.zeros(tail.num_rows, np.bool_)
    indices = rows - tail.first_row
    is_taken[indices[(indices >= 0) & (indices < tail.num_rows)]] = True
    pieces = tail.pieces[is_taken[tail.pieces[:, tables.PIECE_ROW]]]
    # keep the remnants that the rows contain, and those that they count
    is_needed = np.zeros(len(tail.remnants), np.bool_)
    is_needed[pieces[:, tables.PIECE_DOCUMENT]] = True
    counted = np.repeat(is_taken, np.diff(tail.passed))
    is_needed[: len(counted)] |= counted
    # the new index of a remnant is the number of those kept before it
    before = np.concatenate([[0], np.cumsum(is_needed)])
    pieces[:, tables.PIECE_DOCUMENT] = before[pieces[:, tables.PIECE_DOCUMENT]]
    return Tail(tail.first_row, tail.remnants[is_needed], pieces, before[tail.passed])


def pack_tail(
    packing: Packing,
    *,
    start_row: int,
    stages: Stages,
    cursors: Ints,
    residues: Sequence[bytes],
    sizes: Sequence[Ints],
) -> Tail:
    """Pack the tail that begins at row `start_row` of the run.

    At that row, the lanes are at `cursors` (int64 [lanes, 2]) with `residues` ([lanes]). For each
    lane, `sizes` has the sizes of its documents, int64 [documents], beginning with the document
    that the cursor is in. A size may be a `tables.Size` other than `Size.UNKNOWN`. `stages`
    lists the stages before the run was resumed. Returns only the current stage, whose rows have the
    `seq_len` of `packing`. Raises `ValueError` for an invalid residue, and for a cursor past the
    end of its document.
    """
    # no rows follow for which documents must not wait, so the rows need only be full
    packing = replace(packing, fair_from=None)
    remnants = _list_remnants(cursors, residues, sizes)
    over = stages[:-1] if stages and stages[-1][0] == packing.seq_len else stages
    for seq_len, rows in over:
        if _has_tokens(remnants):
            remnants = _skip_rows(replace(packing, seq_len=seq_len).packer(), remnants, rows)
            # remnants without tokens were counted with the last row
            remnants = remnants if _has_tokens(remnants) else remnants[:0]
        start_row += rows
    return _pack(packing.packer(), remnants, start_row)


def next_stages(stages: Stages, seq_len: int, start_row: int, rows: int) -> Stages:
    """The stages of a tail after the run has delivered `rows` rows.

    The tail begins at row `start_row`. Rows after the earlier `stages` have `seq_len` tokens.
    """
    past = stages[:-1] if stages and stages[-1][0] == seq_len else stages
    return (*past, (seq_len, rows - start_row - sum(count for _, count in past)))


def counts_of_sizes(sizes: Ints) -> Ints:
    """The statistic that each document counts toward, given its size: int64, of the same shape.

    The values are indices into `stats.COUNTS`, and -1 for `Size.ABSENT`.
    """
    counts = np.where(sizes > 0, DOCUMENTS, EMPTY)
    for size, count in tables.LEFT_OUT.items():
        counts[sizes == size] = count
    counts[sizes == tables.Size.ABSENT] = -1
    return counts


def _list_remnants(cursors: Ints, residues: Sequence[bytes], sizes: Sequence[Ints]) -> Ints:
    remnants: list[Ints] = []
    for lane, (ordinal, offset) in enumerate(cursors.tolist()):
        # documents in the residue are before the cursor, so they were counted
        spans = [
            (lane, *span, tables.Size.ABSENT) for span in residue_spans(residues[lane], ordinal)
        ]
        remnants.append(np.array(spans, np.int64).reshape(-1, tables.NUM_REMNANT_COLUMNS))
        # the documents from the cursor on, of which only the first can have tokens in earlier rows
        lane_sizes = sizes[lane]
        rest = np.zeros((len(lane_sizes), tables.NUM_REMNANT_COLUMNS), np.int64)
        rest[:, tables.REMNANT_LANE] = lane
        rest[:, tables.REMNANT_ORDINAL] = np.arange(ordinal, ordinal + len(lane_sizes))
        rest[:1, tables.REMNANT_START] = offset
        rest[:, tables.REMNANT_STOP] = np.maximum(lane_sizes, 0)
        rest[:, tables.REMNANT_SIZE] = lane_sizes
        if len(rest) and rest[0, tables.REMNANT_STOP] < offset:
            raise ValueError(
                f"lane {lane} is at token {offset} of document {ordinal}, which has "
                f"{rest[0, tables.REMNANT_STOP]} tokens"
            )
        remnants.append(rest[lane_sizes != tables.Size.ABSENT])
    joined: Ints = np.concatenate(remnants)
    # canonical order: by ordinal, then by lane (`lexsort` sorts by its last key first)
    in_order: Ints = joined[
        np.lexsort(
            (
                joined[:, tables.REMNANT_START],
                joined[:, tables.REMNANT_LANE],
                joined[:, tables.REMNANT_ORDINAL],
            )
        )
    ]
    return in_order


def _has_tokens(remnants: Ints) -> bool:
    return bool((remnants[:, tables.REMNANT_STOP] > remnants[:, tables.REMNANT_START]).any())


def _add(packer: Packer, remnant: int, remnants: Ints) -> None:
    packer.add(
        remnant,
        int(remnants[remnant, tables.REMNANT_STOP] - remnants[remnant, tables.REMNANT_START]),
    )


def _skip_rows(packer: Packer, remnants: Ints, rows: int) -> Ints:
    """Pack `rows` rows, discard them, and return the remnants that are left.

    The result begins with the remnants in the packer's residue.

    Example: concat packs remnants of 4, 7 and 2 tokens, and skips 1 row of 5 tokens. The row takes
    remnant 0 and one token of remnant 1. Tokens [1, 7) of remnant 1 and all of remnant 2 are left.
    """
    if not rows:
        return remnants
    # to the packer, a remnant is a document whose ordinal is the remnant's index
    remnant = 0
    while len(packer.rows) < rows and remnant < len(remnants):
        _add(packer, remnant, remnants)
        remnant += 1
    if len(packer.rows) < rows:
        packer.finish()
    if len(packer.rows) < rows:
        return remnants[:0]
    (ordinal, offset), residue = packer.rows[rows - 1][1:]
    # remnants in the residue come first, without the tokens that are in rows; they were counted
    spans = residue_spans(residue, ordinal)
    again = remnants[[document for document, _, _ in spans]].reshape(-1, tables.NUM_REMNANT_COLUMNS)
    starts = np.array([start for _, start, _ in spans], np.int64)
    again[:, tables.REMNANT_START] += starts
    again[:, tables.REMNANT_SIZE] = tables.Size.ABSENT
    # the cursor is `offset` tokens into the next remnant
    rest = remnants[ordinal:].copy()
    rest[:1, tables.REMNANT_START] += offset
    return np.concatenate([again, rest])


def _pack(packer: Packer, remnants: Ints, start_row: int) -> Tail:
    for remnant in range(len(remnants)):
        _add(packer, remnant, remnants)
    packer.finish()
    packed = [
        (index, remnant, start, stop)
        for index, row in enumerate(packer.rows)
        for remnant, start, stop, _ in row.pieces
    ]
    pieces = np.array(packed, np.int64).reshape(-1, tables.NUM_PIECE_COLUMNS)
    # the packer counts tokens from the start of a remnant, but a piece from that of its document
    starts = remnants[pieces[:, tables.PIECE_DOCUMENT], tables.REMNANT_START]
    pieces[:, tables.PIECE_START :] += starts[:, None]
    passed = np.array([0, *(row.cursor[0] for row in packer.rows)], np.int64)
    # the last row counts all documents, even those without tokens that follow its last piece
    passed[-1] = len(remnants) if len(passed) > 1 else 0
    return Tail(start_row, remnants, pieces, passed)
