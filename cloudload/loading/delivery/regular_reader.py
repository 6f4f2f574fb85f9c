"""Read rows of a run by index, and read ahead if the rows are requested in regular steps.

rows 17, 18 ─► their pieces, from token lengths ─► documents ─► input_ids, labels, fields
                      ▲
regular steps ─► rows of the next steps, read together
"""

from __future__ import annotations

import numpy as np

from cloudload.errors import CloudloadError
from cloudload.loading.delivery.collate import compute_fields, mask_after
from cloudload.loading.workers.block import Pieces
from cloudload.loading.workers.documents import open_cache, open_documents
from cloudload.loading.workers.plan import Plan
from cloudload.loading.workers.row_reader import RowReader
from cloudload.rows.packing.rows import Framing, fill_rows, list_spans
from cloudload.run.lengths.row_finder import RowFinder
from cloudload.run.lengths.run_lengths import RunLengths
from cloudload.segments import Array
from cloudload.system.arrays import Ints


class RegularReader:
    """Reads rows for one caller at a time, and reads ahead if they are requested in regular steps.

    Do not use it after an exception.
    """

    def __init__(self, plan: Plan, lengths: RunLengths) -> None:
        self._cache = open_cache(plan)
        self._reader = RowReader(
            open_documents(plan, self._cache), plan.position, cuts=plan.recipe.packing.cuts
        )
        self._finder = RowFinder(lengths, plan.position)
        self._delivery, self._most_rows = plan.delivery, plan.batches_at_once
        self._seq_len = plan.recipe.packing.seq_len
        self._framing = Framing.of(plan.recipe.tokenizer.frames)
        self._arrays: dict[str, Array] = {}
        """The arrays of the loaded rows, by field name: [rows, …]."""
        self._places: dict[int, int] = {}
        """Maps each loaded row of the run to its index in `_arrays`."""
        self._last: Ints = np.empty(0, np.int64)
        self._step, self._steps_ahead = 0, 0
        self._pieces_ahead: tuple[Ints, Ints] | None = None
        """The rows of the next read, if the steps stay regular, and the pieces of these rows."""

    def read(self, rows: Ints, end: int | None) -> list[dict[str, Array]]:
        """Read rows, and return a copy of each one's arrays by field name. The run ends at row
        `end`."""
        self._follow(rows)
        if not all(row in self._places for row in rows.tolist()):
            wanted = self._add_steps(rows, self._steps_ahead, end)
            try:
                self._arrays = self._make_arrays(wanted)
            except CloudloadError:
                if np.isin(wanted, rows).all():
                    raise
                wanted = rows  # the failed row may be one that is only read ahead
                self._arrays = self._make_arrays(wanted)
            self._places = {row: place for place, row in enumerate(wanted.tolist())}
            self._look_ahead(rows, end)
        places = [self._places[row] for row in rows.tolist()]
        return [
            {name: array[place].copy() for name, array in self._arrays.items()} for place in places
        ]

    def read_spans(self, rows: Ints) -> Ints:
        """Return the spans of rows: int64 [spans, 6] with columns `tables.SPAN_COLUMNS`."""
        pieces = self._read(rows)
        return list_spans(pieces.table, pieces.pieces)

    def _read(self, rows: Ints) -> Pieces:
        ahead = self._pieces_ahead
        if ahead is not None and np.array_equal(ahead[0], rows):
            return self._reader.read(ahead[1])
        return self._reader.read(self._finder.find(rows))

    def _follow(self, rows: Ints) -> None:
        """Record the step from the previous call's rows, and read ahead if the step repeats."""
        last, self._last = self._last, rows
        steps = rows - last if len(rows) == len(last) else np.empty(0, np.int64)
        step = int(steps[0]) if len(steps) and (steps == steps[0]).all() else 0
        if step <= 0 or step != self._step:
            self._steps_ahead = 0
        elif not self._steps_ahead:
            self._steps_ahead = 1
        self._step = step

    def _add_steps(self, rows: Ints, number: int, end: int | None) -> Ints:
        """List the rows of this and the next `number` steps, without repeats, up to row `end`."""
        steps = np.arange(number + 1)[:, None] * self._step
        wanted = np.unique((rows + steps).ravel()) if number else rows
        return wanted if end is None else wanted[wanted < end]

    def _look_ahead(self, rows: Ints, end: int | None) -> None:
        """Choose the rows of the next read, about twice as many as before, and fetch their shards.

        `rows` are the rows of the current step.
        """
        if not self._steps_ahead:
            return
        first = rows + (self._steps_ahead + 1) * self._step
        self._steps_ahead = min(2 * self._steps_ahead + 1, max(1, self._most_rows // len(rows)) - 1)
        wanted = self._add_steps(first, self._steps_ahead, end)
        if not len(wanted):
            return
        try:
            self._pieces_ahead = wanted, self._finder.find(wanted)
        except CloudloadError:
            return  # if one of these rows is requested, the error is raised again
        self._reader.prefetch(self._pieces_ahead[1])

    def _make_arrays(self, indices: Ints) -> dict[str, Array]:
        """Build the arrays of rows, by field name: [rows, …]."""
        pieces, tokens = self._read(indices), np.empty((len(indices), self._seq_len), np.int32)
        num_tokens = fill_rows(tokens, *pieces, self._framing)
        spans, ids = list_spans(pieces.table, pieces.pieces), tokens.astype(np.int64)
        labels = ids.copy()
        mask_after(labels, num_tokens)
        fields = compute_fields(labels, spans, self._delivery)
        return {"input_ids": ids, "labels": labels, **fields}

    def close(self) -> None:
        """Stop fetching and unmap the shards."""
        self._cache.close()
