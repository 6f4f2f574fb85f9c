"""Find the cursors, residues and statistics of `best_fit` lanes at a later row, by playing lanes.

state, rows ─► `PlayedLanes` ─► state
statistics     documents between the cursors, minus the later residue, plus the earlier residue
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from cloudload.errors import StreamChangedError
from cloudload.rows import decode_residue, list_residue_spans, tables
from cloudload.run.lengths.best_fit_checkpoints import FORMAT, LaneMarks, LaneState
from cloudload.run.lengths.best_fit_simulation import PlayedLanes, Playing, explain_residue
from cloudload.run.lengths.lane_tables import LaneTables
from cloudload.run.lengths.lane_walker import Advanced, LaneWalker
from cloudload.run.position import Residues
from cloudload.stats import COUNTS, DOCUMENTS, PADDING, TOKENS
from cloudload.system import NEVER, Flags, Ints


class BestFitWalker(LaneWalker):
    """Computes the states of one component's `best_fit` lanes at later rows, by playing lanes."""

    def __init__(self, lane_tables: LaneTables) -> None:
        super().__init__(lane_tables)
        packing = self.packing
        rule = "" if packing.fair_from is None else f"-from-{packing.fair_from}"
        name = f"best_fit-{packing.seq_len}-{packing.open_rows}{rule}-{FORMAT}"
        marks = LaneMarks(lane_tables.folder / name if lane_tables.is_kept else None)
        self._played = PlayedLanes(self.sizes, packing, marks, lane_tables.ends)

    def advance(self, cursors: Ints, rows: Ints, residues: Residues | None = None) -> Advanced:
        """Like `LaneWalker.advance`, with `residues` (object array of bytes, [lanes]).

        Also raises `StreamChangedError` if a residue is damaged or does not match the lengths.
        """
        assert residues is not None
        after, left, is_dry = self.move(cursors, rows, residues)
        moving = np.flatnonzero(rows > 0)
        counts = np.zeros((len(self._tables.streams), len(COUNTS)), np.int64)
        if len(moving) and not is_dry.any():
            counts = self._count_passed(moving, cursors, after)
            counts[:, TOKENS] += self._count_taken(moving, after, left)
            counts[:, TOKENS] -= self._count_taken(moving, cursors, residues)
            counts[0, PADDING] = rows.sum() * self.packing.seq_len - counts[:, TOKENS].sum()
        return Advanced(after, counts, is_dry, left)

    def move(self, cursors: Ints, rows: Ints, residues: Residues) -> tuple[Ints, Residues, Flags]:
        """Like `advance`, but returns only the cursors, the residues, and which lanes are dry."""
        moving = np.flatnonzero(rows > 0)
        is_dry = np.zeros(len(cursors), np.bool_)
        after, left = cursors.copy(), residues.copy()
        with self.playing(moving, cursors, residues) as playing:
            is_dry[moving] = playing.play(moving, rows[moving])
            for lane in moving.tolist():
                ordinal, offset, left[lane] = playing.state(lane)
                after[lane, : tables.CURSOR_SIZE] = ordinal, offset
        self._set_sizes(after, (rows > 0) & (after != cursors).any(axis=1))
        return after, left, is_dry

    @contextlib.contextmanager
    def playing(self, lanes: Ints, cursors: Ints, residues: Residues) -> Iterator[Playing]:
        """Play `lanes`, whose rows are counted from `cursors` and `residues`, those of all lanes.

        If a lane's state is new, checks the lengths of the documents that it contains in part.
        Raises the errors of `advance`.
        """
        states = (
            LaneState(ordinal, offset, residues[lane])
            for lane, (ordinal, offset) in zip(
                lanes.tolist(), cursors[lanes, : tables.CURSOR_SIZE].tolist(), strict=True
            )
        )
        with self._played.start(lanes, states) as playing:
            self._check(np.array(playing.unknown, np.int64), cursors, residues)
            yield playing

    def count_rows(self, cursors: Ints, residues: Residues) -> Ints:
        """The number of rows from each lane's state to its end, in a finite run: int64 [lanes].

        The arguments are those of `advance`. Raises the errors of `advance`.
        """
        lanes = np.arange(len(cursors))
        with self.playing(lanes, cursors, residues) as playing:
            playing.play(lanes, np.full(len(lanes), NEVER))
            return np.array([playing.row(lane) for lane in lanes.tolist()], np.int64)

    def _check(self, lanes: Ints, cursors: Ints, residues: Residues) -> None:
        """Raise `StreamChangedError` if the length of a document in the state has changed, or if
        a residue is invalid."""
        self._measure_begun(lanes[cursors[lanes, tables.CURSOR_OFFSET] > 0], cursors)
        try:
            for lane in lanes.tolist():
                decode_residue(residues[lane], int(cursors[lane, tables.CURSOR_ORDINAL]))
        except ValueError as error:
            raise explain_residue(error) from None
        owners, ordinals, _, stops = _list_open(lanes, residues).T
        found = self.sizes.measure(owners, ordinals)
        if (is_wrong := found.whole != stops).any():
            index = int(np.argmax(is_wrong))
            raise StreamChangedError(
                f"lane {owners[index]}: the state has a part of document {ordinals[index]:,}, "
                f"which had {stops[index]:,} tokens, but according to the token lengths, it has "
                f"{found.whole[index]:,}. The data, the tokenizer, or the transform changed. "
                "Restore what changed, or set lengths='off'"
            )

    def _count_passed(self, lanes: Ints, cursors: Ints, after: Ints) -> Ints:
        """The statistics of the documents that the lanes' cursors pass, as if all were in rows.

        A partly read document counts, even if an option now excludes it.
        """
        is_begun = cursors[lanes, tables.CURSOR_OFFSET] > 0
        heads, stops = (
            cursors[lanes, tables.CURSOR_ORDINAL] + is_begun,
            after[lanes, tables.CURSOR_ORDINAL],
        )
        counts = self.count_documents(lanes, np.minimum(heads, stops), stops)
        begun = lanes[is_begun & (heads <= stops)]
        if len(begun):
            found = self._measure_begun(begun, cursors)
            streams = found.streams - self._tables.streams.start
            np.add.at(counts, (streams, np.full_like(streams, DOCUMENTS)), 1)
            np.add.at(counts, (streams, np.full_like(streams, TOKENS)), found.whole)
        return counts

    def _count_taken(self, lanes: Ints, cursors: Ints, residues: Residues) -> Ints:
        """The tokens before the cursors in partly read documents, minus the tokens in residues:
        int64 [streams]."""
        begun = lanes[cursors[lanes, tables.CURSOR_OFFSET] > 0]
        owners, ordinals, starts, stops = _list_open(lanes, residues).T
        tokens = np.concatenate([cursors[begun, tables.CURSOR_OFFSET], starts - stops])
        if len(self._tables.streams) == 1:
            return np.array([tokens.sum()])
        streams = self.sizes.measure(
            np.concatenate([begun, owners]),
            np.concatenate([cursors[begun, tables.CURSOR_ORDINAL], ordinals]),
        ).streams
        taken = np.zeros(len(self._tables.streams), np.int64)
        np.add.at(taken, streams - self._tables.streams.start, tokens)
        return taken


def _list_open(lanes: Ints, residues: Residues) -> Ints:
    """The spans of lanes' residues: int64 [spans, 4], with lane, ordinal, start and stop."""
    owners, spans = list_residue_spans(residues[lanes].tolist())
    return np.column_stack([lanes[owners], spans])
