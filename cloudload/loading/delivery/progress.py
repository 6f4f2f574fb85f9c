"""The lanes of all ranks at each row, merged from the ranks' reports or computed from lengths.

    exchanged    blocks of a batch ─► Report ─► merged over a Window ─► AgreedWindow ─► lane arrays

    computed     batch     1         2         3
                 known     row 12    row 24    row 36 ──► .arrays: the lanes advance from there

A rank's report contains its lanes' cursors (and residues) after each of its rows, the statistics of
these rows, and the first row that a lane could not fill. With token lengths (`KnownLanes`),
delivering a batch costs nothing, because the lanes advance from the latest known row only when a
state or the statistics read the arrays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from cloudload.errors import DatasetError, RanksDisagreeError
from cloudload.loading.delivery.exchange import Exchange
from cloudload.loading.workers.block import Block
from cloudload.rows import split_residues, tables
from cloudload.run import LaneArrays, LaneLog, Position, Recipe, RunLengths
from cloudload.system import NEVER, Ints

_HEADER = 3


class Report(NamedTuple):
    """The report of one rank on its rows of a batch or a window."""

    stop: int
    """The first row of the run after the batch or window."""
    rank_index: int
    """The virtual index of the rank."""
    first_dry: int
    """The first row that a lane of the rank could not fill, or `NEVER`."""
    counts: Ints
    """int64 [streams, counts]: the statistics of the rows."""
    cursors: Ints
    """int64 [rows, 3]: the cursor of each row's lane after the row."""
    residues: list[bytes]
    """The residue of each row's lane after the row; empty if the packing has no residue."""


def report_batch(
    blocks: Sequence[Block],
    batch: int,
    batch_rows: Sequence[slice | Ints],
    *,
    stop: int,
    rank_index: int,
) -> Report:
    """Build this rank's report on a batch that ends before row `stop` of the run.

    `batch` is the batch's index in the workers' blocks. For each worker, `batch_rows` has the
    indices of the worker's rows within the rank's batch.
    """
    first_dry = min(block.first_dry for block in blocks)
    first_dry = first_dry if first_dry < stop else NEVER
    if len(blocks) == 1:  # joining, also below, would cost a rank alone a tenth of its speed
        [block] = blocks
        rows = block.rows_of(batch)
        residues = block.residues[rows]
        counts = block.counts[batch]
        return Report(stop, rank_index, first_dry, counts, block.cursors[rows], residues)
    ranges = [block.rows_of(batch) for block in blocks]
    num_rows = sum(rows.stop - rows.start for rows in ranges)
    cursors = np.empty((num_rows, tables.NUM_CURSOR_COLUMNS), np.int64)
    residues = [b""] * num_rows if any(block.residues for block in blocks) else []
    for block, rows, own in zip(blocks, ranges, batch_rows, strict=True):
        cursors[own] = block.cursors[rows]
        if residues:
            indices = np.arange(num_rows)[own].tolist()
            for index, residue in zip(indices, block.residues[rows], strict=True):
                residues[index] = residue
    counts = np.sum([block.counts[batch] for block in blocks], axis=0)
    return Report(stop, rank_index, first_dry, counts, cursors, residues)


def merge_reports(reports: Sequence[Report]) -> Report:
    """Merge one rank's reports on the batches of a window, given in order."""
    if len(reports) == 1:
        return reports[0]
    return reports[-1]._replace(
        first_dry=min(report.first_dry for report in reports),
        counts=np.sum([report.counts for report in reports], axis=0),
        cursors=np.concatenate([report.cursors for report in reports]),
        residues=[residue for report in reports for residue in report.residues],
    )


class AgreedWindow(NamedTuple):
    """The reports of all ranks on a window."""

    stops: list[int]
    """The row of the run that each rank has reached."""
    first_dry: int
    """The first row that any lane could not fill, or `NEVER`."""
    counts: Ints
    """int64 [streams, counts]: the statistics of the rows."""
    rows: Ints
    """int64 [rows]: the indices of the rows in the run, ordered by rank."""
    cursors: Ints
    """int64 [rows, 3]: the cursor of each row's lane after the row."""
    residues: list[bytes]
    """The residue of each row's lane after the row; empty if the packing has no residue."""


class Window(NamedTuple):
    """The rows `start ≤ row < stop` that one exchange covers."""

    start: int
    stop: int
    world_size: int
    recipe: Recipe

    def exchange(self, exchange: Exchange, report: Report) -> Callable[[], AgreedWindow]:
        """Start gathering the reports of all ranks, and return a function that waits for them.

        The function joins the reports. If the exchange covers only this rank, it joins only
        `report`. Raises `RanksDisagreeError` as `Exchange.start` does.
        """
        if exchange.is_alone:
            return lambda: self._join_own(report)
        finish = exchange.start(self._encode(report))
        return lambda: self._join(finish(), report.counts.shape)

    def _encode(self, report: Report) -> Ints:
        """Encode a report as int64 [n], with its parts in this order:

        stop, rank index, first dry row | counts | cursors | sizes of residues in bytes, residues
        """
        header = np.array(report[:_HEADER], np.int64)
        arrays = [header, report.counts.ravel(), report.cursors.ravel()]
        if report.residues:
            joined = b"".join(report.residues)
            joined += bytes(-len(joined) % 8)
            sizes = np.array([len(residue) for residue in report.residues], np.int64)
            arrays += [sizes, np.frombuffer(joined, np.int64)]
        return np.concatenate(arrays)

    def _join(self, messages: Sequence[Ints], counts_shape: tuple[int, ...]) -> AgreedWindow:
        """Decode and join the messages of all ranks."""
        # vectorized where possible, because a job may have thousands of ranks
        cursors_at = _HEADER + math.prod(counts_shape)
        heads = np.stack([message[:cursors_at] for message in messages])
        first_rows = self.start + (heads[:, 1] - self.start) % self.world_size
        # ranks may have different numbers of rows if a window does not start with a global batch
        num_rows = -(-(self.stop - first_rows) // self.world_size)
        stops = (cursors_at + tables.NUM_CURSOR_COLUMNS * num_rows).tolist()
        before = np.cumsum(num_rows) - num_rows
        indices = np.arange(num_rows.sum()) - np.repeat(before, num_rows)
        parts = [message[cursors_at:stop] for message, stop in zip(messages, stops, strict=True)]
        return AgreedWindow(
            stops=heads[:, 0].tolist(),
            first_dry=int(heads[:, 2].min()),
            counts=heads[:, _HEADER:].sum(axis=0).reshape(counts_shape),
            rows=np.repeat(first_rows, num_rows) + self.world_size * indices,
            cursors=np.concatenate(parts).reshape(-1, tables.NUM_CURSOR_COLUMNS),
            residues=[
                residue
                for message, stop, count in zip(messages, stops, num_rows.tolist(), strict=True)
                if len(message) > stop
                for residue in split_residues(
                    message[stop + count :].tobytes(), message[stop : stop + count].tolist()
                )
            ],
        )

    def _join_own(self, report: Report) -> AgreedWindow:
        first = self.start + (report.rank_index - self.start) % self.world_size
        return AgreedWindow(
            stops=[report.stop],
            first_dry=report.first_dry,
            counts=report.counts,
            rows=np.arange(first, self.stop, self.world_size),
            cursors=report.cursors,
            residues=report.residues,
        )

    def first_dry(self, joined: AgreedWindow) -> int:
        """The first row of the window that a lane could not fill, or `NEVER`.

        Raises `RanksDisagreeError` if the ranks are at different rows.
        """
        check_in_step(joined.stops, self.stop)
        return joined.first_dry


class Update(NamedTuple):
    """The reports of all ranks on a window. The cursors of rows from `stop` on are ignored."""

    recipe: Recipe
    joined: AgreedWindow
    stop: int


def move_lanes(arrays: LaneArrays, updates: Sequence[Update]) -> None:
    """Advance lane arrays past consecutive windows, in place."""
    recipe = updates[0].recipe
    all_rows = np.concatenate([update.joined.rows for update in updates])
    # if a lane could not fill its row, the rows from the last `stop` on may be invalid
    valid = all_rows < updates[-1].stop
    rows = all_rows[valid]
    lanes, components = rows % recipe.num_lanes, recipe.components_of(rows)
    # if a lane has several rows, NumPy keeps the value of the last one
    arrays.cursors[components, lanes] = np.concatenate(
        [update.joined.cursors for update in updates]
    )[valid]
    counts = arrays.counts
    for update in updates:
        counts += update.joined.counts
    if arrays.residues is not None:
        residues = itertools.chain.from_iterable(update.joined.residues for update in updates)
        pairs = zip(components.tolist(), lanes.tolist(), strict=True)
        own = itertools.compress(residues, valid.tolist())
        for pair, residue in zip(pairs, own, strict=True):
            arrays.residues[pair] = residue


class KnownLanes:
    """Computes the lanes of all ranks at any row after a position."""

    def __init__(self, lengths: RunLengths, position: Position) -> None:
        self._lengths, self._start, self._latest = lengths, position, position
        self._texts = position.lanes.texts

    def at(self, row: int) -> LaneLog:
        """Return the lanes at a row after the position. Reading them may raise `CacheError`."""
        return LaneLog.of(partial(self._find, row), self._texts)

    def _find(self, row: int) -> LaneArrays:
        before = self._latest  # read it once, because another thread may replace it
        before = before if before.rows <= row else self._start
        found = self._lengths.advance(before, row, pads=True)
        assert found is not None, "rows that were read follow from the lengths"
        self._latest = found
        return found.lanes.arrays


def check_not_dry(blocks: Sequence[Block], stop: int, num_lanes: int) -> None:
    """Raise `DatasetError` if a lane ended before row `stop`, contrary to its token lengths.

    `blocks` are the current blocks of the rank's workers.
    """
    first_dry = min(block.first_dry for block in blocks)
    if first_dry < stop:
        raise DatasetError(
            f"lane {first_dry % num_lanes} ran out of tokens at row {first_dry:,}, but according "
            "to the token lengths, it has more. Run cloudload count --again, or set lengths='off'"
        )


def start_check(exchange: Exchange, stop: int) -> Callable[[], None]:
    """Start to compare this rank's row with the other ranks' rows.

    Returns a function that waits for the rows of all ranks. It raises `RanksDisagreeError` if the
    ranks are at different rows, or if the exchange fails.
    """
    if exchange.is_alone:
        return lambda: None
    finish = exchange.start_number(stop)
    return lambda: check_in_step(finish(), stop)


def check_in_step(stops: list[int], stop: int) -> None:
    """Raise `RanksDisagreeError` unless all ranks are at row `stop`."""
    if stops.count(stop) != len(stops):
        raise RanksDisagreeError(
            f"the ranks are out of step: after this batch, they are at rows {stops}. Take the "
            "same number of batches on every rank"
        )
