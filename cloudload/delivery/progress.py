"""How the ranks' reports about a window of rows become one cursor table, the same on every rank.

blocks ─► Progress of a batch ─► Report of a rank about a window ─► exchanged ─► Update ─► the
lanes' arrays
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from cloudload.arrays import NEVER, Ints
from cloudload.delivery.exchange import Exchange, NoExchange
from cloudload.errors import RanksDisagreeError
from cloudload.order.lanes import rank_rows
from cloudload.packing.residue import split_residues
from cloudload.run.position import LaneArrays
from cloudload.run.recipe import Recipe
from cloudload.workers.block import Block


class Progress(NamedTuple):
    """What a batch's rows did to the lanes: cursors int64 [rows, 2] and residues after each row,
    and counts of all together.

    Residues are none where the packing has none.
    """

    cursors: Ints
    residues: list[bytes]
    counts: Ints
    first_dry: int


def join_progress(
    blocks: Sequence[Block], number: int, places: Sequence[slice | Ints], stop: int
) -> Progress:
    """The progress of batch `number` of the workers' blocks, which ends before row `stop` of the
    run.

    `places` has the rows of the batch that are each worker's.
    """
    first_dry = min(block.first_dry for block in blocks)
    first_dry = first_dry if first_dry < stop else NEVER
    if len(blocks) == 1:
        [block] = blocks
        rows = block.rows_of(number)
        return Progress(block.cursors[rows], block.residues[rows], block.counts[number], first_dry)
    parts = [
        (block.cursors[block.rows_of(number)], block.residues[block.rows_of(number)])
        for block in blocks
    ]
    num_rows = sum(len(cursors) for cursors, _ in parts)
    cursors = np.empty((num_rows, 2), np.int64)
    residues = [b""] * num_rows if any(block.residues for block in blocks) else []
    for (own_cursors, own_residues), own in zip(parts, places, strict=True):
        cursors[own] = own_cursors
        if residues:
            for place, residue in zip(np.arange(num_rows)[own].tolist(), own_residues, strict=True):
                residues[place] = residue
    counts: Ints = np.sum([block.counts[number] for block in blocks], axis=0)
    return Progress(cursors, residues, counts, first_dry)


_HEADER = 3


class Report(NamedTuple):
    """What the rank of virtual index `rank_index` says of its rows in a window that ends before row
    `stop` of the run."""

    stop: int
    rank_index: int
    first_dry: int
    counts: Ints
    """int64 [streams, counts]."""
    cursors: Sequence[Ints]
    """int64 [rows, 2] in all: batch after batch."""
    residues: list[bytes]


class Window(NamedTuple):
    """The rows `start ≤ row < stop` that one exchange is about."""

    start: int
    stop: int
    world_size: int
    recipe: Recipe

    def report(self, index: int, parts: Sequence[Progress]) -> Report:
        """What a rank has to say, of the progress of its batches."""
        if len(parts) == 1:
            [part] = parts
            return Report(
                self.stop, index, part.first_dry, part.counts, [part.cursors], part.residues
            )
        counts: Ints = np.sum([part.counts for part in parts], axis=0)
        residues = [residue for part in parts for residue in part.residues]
        return Report(
            self.stop,
            index,
            min(part.first_dry for part in parts),
            counts,
            [part.cursors for part in parts],
            residues,
        )

    def exchange(self, exchange: Exchange, report: Report) -> Callable[[], list[Report]]:
        """Start to gather the reports of all ranks."""
        if isinstance(exchange, NoExchange):
            return lambda: [report]
        finish = exchange.start(self._encode(report))
        return lambda: [self._decode(message, report.counts.shape) for message in finish()]

    def _encode(self, report: Report) -> Ints:
        """stop, index, first dry row, counts [streams, counts], cursors [rows, 2], sizes of
        residues [rows], residues"""
        arrays = [
            np.array(report[:_HEADER], np.int64),
            report.counts.ravel(),
            *(part.ravel() for part in report.cursors),
        ]
        if report.residues:
            joined = b"".join(report.residues)
            joined += bytes(-len(joined) % 8)
            arrays += [
                np.array([len(residue) for residue in report.residues], np.int64),
                np.frombuffer(joined, np.int64),
            ]
        return np.concatenate(arrays)

    def _decode(self, message: Ints, counts_shape: tuple[int, ...]) -> Report:
        stop, index, first_dry = message[:_HEADER].tolist()
        num_rows = len(rank_rows(self.start, self.stop, index, self.world_size))
        _, counts, cursors, residues = np.split(
            message, np.cumsum([_HEADER, math.prod(counts_shape), 2 * num_rows])
        )
        parts = split_residues(residues[num_rows:].tobytes(), residues[:num_rows].tolist())
        return Report(
            stop, index, first_dry, counts.reshape(counts_shape), [cursors.reshape(-1, 2)], parts
        )

    def first_dry(self, reports: Sequence[Report]) -> int:
        """The first row of the window that a lane could not fill, by the reports of all ranks;
        `NEVER` where there is none."""
        stops = [report.stop for report in reports]
        if any(stop != self.stop for stop in stops):
            raise RanksDisagreeError(
                f"the ranks are out of step: after this batch their rows are {stops}. "
                "Every rank must take the same number of batches"
            )
        return min(report.first_dry for report in reports)


class Update(NamedTuple):
    """What the reports of all ranks about a window say of its rows before `stop`."""

    window: Window
    reports: Sequence[Report]
    stop: int


def move_lanes(arrays: LaneArrays, updates: Sequence[Update]) -> None:
    """Move lane arrays on by windows that follow each other."""
    rows: list[Ints] = []
    cursors: list[Ints] = []
    residues: list[bytes] = []
    for window, reports, stop in updates:
        for report in reports:
            own = rank_rows(window.start, window.stop, report.rank_index, window.world_size)
            # the rows from where a lane ran dry on are void
            known = len(rank_rows(window.start, stop, report.rank_index, window.world_size))
            rows.append(np.arange(own.start, own.stop, own.step)[:known])
            cursors += (
                report.cursors if known == len(own) else [np.concatenate(report.cursors)[:known]]
            )
            residues += report.residues[:known]
    recipe, all_rows = updates[0].window.recipe, np.concatenate(rows)
    lanes, components = all_rows % recipe.num_lanes, recipe.components_of(all_rows)
    # where a lane has several rows, the last one counts
    arrays.cursors[components, lanes] = np.concatenate(cursors)
    arrays.counts[:] += np.sum(
        [report.counts for update in updates for report in update.reports], axis=0
    )
    if arrays.residues is not None:
        for component, lane, residue in zip(
            components.tolist(), lanes.tolist(), residues, strict=True
        ):
            arrays.residues[component, lane] = residue
