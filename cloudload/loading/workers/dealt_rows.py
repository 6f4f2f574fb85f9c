"""Make the rows that are dealt to a worker. Some of them belong to lanes of other workers.

    the rank's rows ─────────────────► pieces, from token lengths ─► PieceReader ─► CutRows
                                         ▲
    the machine's rows of a step ─► pieces of all ─► work of each ─► balanced ─► the rank's rows

Rows are dealt if the world size does not divide the number of lanes, or if the option `balance`
moves rows between the ranks of a machine. Each worker then finds the pieces of all rows of its
machine, and all workers divide them in the same way.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from cloudload.loading.workers.documents import FoundDocuments, LaneDocuments
from cloudload.loading.workers.lane_reader import find_ends
from cloudload.loading.workers.piece_reader import PieceReader
from cloudload.loading.workers.prefetch import Prefetcher
from cloudload.loading.workers.worker_plan import WorkerPlan
from cloudload.rows import tables
from cloudload.run import RowFinder
from cloudload.system import Ints


class DealtRows:
    """Makes the rows before the tail that are dealt to a worker. The plan must have lengths.

    Most rows of an uneven world belong to the worker's own lanes, whose documents it reads only
    once. If a row of another worker contains a part of such a document, that worker also reads the
    document. With `balance`, this is the case for each document in several rows.
    """

    def __init__(
        self, plan: WorkerPlan, worker: int, documents: LaneDocuments, reader: PieceReader
    ) -> None:
        self._plan, self._worker, self._reader = plan, worker, reader
        self._finder = RowFinder(plan.inputs.open_run_lengths(), plan.position)
        cursors = plan.position.cursors.reshape(-1, tables.NUM_CURSOR_COLUMNS)
        self._next_ordinals = cursors[:, tables.CURSOR_ORDINAL].copy()
        self._prefetcher = Prefetcher(plan, worker, documents, self._next_ordinals, find_ends(plan))
        self._found: tuple[Ints, Ints] = self._find(np.empty(0, np.int64))
        """The rows that were balanced last, ascending, and their pieces."""

    def _find(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return rows, and the pieces of each: int64 [rows] and int64 [pieces, 4]."""
        return rows, self._finder.find_in_lanes(rows, np.arange(len(rows)))

    # ------------------------------------------------------------ balance

    def deal(self, start: int, stop: int) -> Ints:
        """Balance the global batches [start, stop), and return the worker's rows of them.

        Returns int64 [rows, 2]: the index of each row in the run, and its index among the rank's
        rows of the batch. Batches with rows of a tail are not balanced, because ranks send each
        other the documents of the tail by the rows that they have otherwise. Raises the errors of
        `RowFinder.find`.
        """
        share = self._plan.share
        firsts = range(start, stop, share.global_batch)
        balanced = [first for first in firsts if not self._is_in_tail(first)]
        of_rank: dict[int, range | Ints] = dict(zip(balanced, self._balance(balanced), strict=True))
        parts = []
        for first in firsts:
            if first not in of_rank:
                of_rank[first] = share.rank_rows(first, first + share.global_batch)
            rows = of_rank[first]
            own = np.flatnonzero(share.worker_of(rows) == self._worker)
            parts.append(np.column_stack([np.asarray(rows, np.int64)[own], own]))
        return np.concatenate(parts)

    def _is_in_tail(self, first: int) -> bool:
        """Whether the global batch from row `first` on has rows of a tail, or after the end."""
        tails, stop = self._plan.tails, first + self._plan.share.global_batch
        if tails is None or stop <= min(tails.ending.lane_ends):
            return False
        rows = np.arange(first, stop)
        is_in_tail = tails.is_in_tail(self._plan.recipe.components_of(rows), rows)
        return stop > tails.ending.end or bool(is_in_tail.any())

    def _balance(self, firsts: list[int]) -> list[Ints]:
        """Balance the global batches from rows `firsts` on, and return the rank's rows of each."""
        share = self._plan.share
        rows = share.list_machine_rows(firsts)
        self._found = self._find(rows[rows >= 0])
        found, pieces = self._found
        work = self._finder.measure_attention(pieces, len(found))
        dealt, _ = share.balance(rows, work, self._plan.recipe.packing.seq_len**2)
        [own] = np.flatnonzero(share.machine_ranks == share.index)
        return [share.shape.sort_micro_batches(each[each >= 0]) for each in dealt[:, own]]

    # ------------------------------------------------------------ reading

    def read(self, rows: Ints, *, is_awaited: bool) -> tables.CutRows:
        """Read the documents of `rows` (int64 [rows]). `is_awaited` is as for `Prefetcher.fetch`.

        Raises the errors of `RowFinder.find` and `PieceReader.read`.
        """
        found, pieces = self._found
        if np.isin(rows, found).all():
            pieces = tables.select_pieces(pieces, np.searchsorted(found, rows))
        else:
            _, pieces = self._find(rows)
        return self._reader.read(pieces, prefetch=partial(self._prefetch, is_awaited))

    def _prefetch(self, is_awaited: bool, found: FoundDocuments) -> None:
        np.maximum.at(self._next_ordinals, found.flat_lanes, found.ordinals)
        self._prefetcher.fetch(found, is_awaited=is_awaited)
        self._prefetcher.build_orders(found.flat_lanes)
