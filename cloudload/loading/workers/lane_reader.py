"""Read the next documents of a worker's lanes until the lanes can fill the wanted rows.

lanes short of tokens ─► number of documents, from their mean size ─► find ─► selected ─► prefetch
                                           not selected: counted ◄─────┘         │
                                                     packer ◄─ tokenize ◄─ read ◄┘
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cloudload.errors import DatasetError
from cloudload.loading.workers.documents import FoundDocuments, LaneDocuments, split_by_component
from cloudload.loading.workers.passed_documents import PassedDocuments
from cloudload.loading.workers.prefetch import Prefetcher
from cloudload.loading.workers.worker_plan import WorkerPlan
from cloudload.rows import BestFitLanes, ConcatLanes, Packing, lane_packer, tables
from cloudload.system import Ints

logger = logging.getLogger("cloudload.workers")
_GUESSED_BYTES_PER_TOKEN = 4
_DOUBTED_DOCUMENTS = 1_000
_GUESS_WEIGHT_DOCUMENTS = 64
MOST_DOCUMENTS_OF_LANE = 64
_MOST_PASSED = 1 << 17  # of all lanes at once, because finding documents takes memory
# a call first reads up to 8 times the missing tokens, to amortize its fixed cost, or fewer if the
# documents that wait in the packers would then use more than about `_WAITING_BYTES`
MOST_EAGERNESS, _WAITING_BYTES = 8.0, 1 << 28
_MOST_EAGERNESS_OF_FILL = 2.0**40
# for pre-tokenized data, this many documents amortize a call's overhead; more only add copying
_ENOUGH_DOCUMENTS = 2_048


def open_lane_rows(
    packing: Packing, num_lanes: int, cursors: Ints, residues: Sequence[bytes] | None
) -> lane_packer.LaneRows:
    """Open the packers of all flat lanes at their cursors and residues.

    `cursors` is int64 [flat_lanes, 2]. `residues` has one entry per flat lane, or is None.
    """
    if packing.has_residue:
        return BestFitLanes(packing, num_lanes, cursors, residues)
    return ConcatLanes(packing, num_lanes, cursors)


class LaneReader:
    """Reads the documents of one worker's lanes, and cuts rows from them.

    All lanes are given as flat lanes.
    """

    def __init__(self, plan: WorkerPlan, worker: int, documents: LaneDocuments) -> None:
        self._components, self._num_lanes = plan.recipe.components, plan.recipe.num_lanes
        self._documents, self._labels = documents, plan.recipe.labels
        self._position = position = plan.position
        self._start: Ints = position.cursors.reshape(-1, tables.NUM_CURSOR_COLUMNS)
        """The starting cursor of each lane: int64 [flat_lanes, 3]."""
        cursors = self._start[:, : tables.CURSOR_SIZE]
        residues = None if position.residues is None else position.residues.ravel().tolist()
        packing = plan.recipe.packing
        self._packer = open_lane_rows(packing, plan.recipe.num_lanes, cursors, residues)
        # with one_per_row, a document fills at least one row; with overflow="cut", exactly one
        self._least_filled = packing.seq_len if packing.name == "one_per_row" else 1
        self._most_filled = packing.seq_len if packing.cuts else math.inf
        self.next_ordinals = cursors[:, tables.CURSOR_ORDINAL].copy()
        """The ordinal of each lane's next document: int64 [flat_lanes]."""
        self.ends = find_ends(plan)
        """int64 [flat_lanes]; see `find_ends`."""
        self._barren = np.zeros(len(cursors), np.int64)
        """Number of documents that each lane has read since its last document with tokens."""
        self._barren_of_component = [0] * len(self._components)
        """Number of documents of each component that this worker has read since its last document
        with tokens."""
        self._mean_tokens = np.array(
            [
                max(1.0, each.raw_bytes / max(1, each.num_samples) / _GUESSED_BYTES_PER_TOKEN)
                * each.selected_share
                for each in self._components
            ]
        )
        self._shares = np.array([each.selected_share for each in self._components])
        """The share of the documents of each component that are read: float64 [components]."""
        num_own = len(plan.share.own_lanes(worker)) * len(self._components)
        waiting_bytes = max(1.0, 4 * self._mean_tokens.max() * num_own)
        self._most_eagerness = float(np.clip(_WAITING_BYTES / waiting_bytes, 1, MOST_EAGERNESS))
        self._enough_documents = math.inf if plan.recipe.tokenizes else _ENOUGH_DOCUMENTS
        self._passed = PassedDocuments(plan.recipe)
        self._prefetch = Prefetcher(plan, worker, documents, self.next_ordinals, self.ends)

    def cut(
        self, lanes: Ints, wanted: Ints, *, num_batches: int, is_awaited: bool
    ) -> tables.CutRows:
        """Cut the next `wanted` rows of each lane, or fewer if the lane ends.

        `lanes` and `wanted` are int64 [lanes]. Reads further ahead if the block has more batches
        (`num_batches`). While the training loop waits for its first batch (`is_awaited`), fetches
        only the shards of the documents that are read. Raises `ValueError` if a cursor or residue
        does not match the documents, `DatasetError` if an endless lane has no tokens, and the
        errors of `LaneDocuments.find` and `read`.
        """
        self._fill(lanes, wanted, min(float(num_batches), self._most_eagerness), is_awaited)
        self._prefetch.build_orders(lanes)
        cut = self._with_sizes(self._packer.cut(lanes, wanted), lanes)
        row_lanes = np.repeat(lanes, cut.num_rows)
        return replace(cut, passed=self._passed.count(row_lanes, cut.cursors))

    def _with_sizes(self, cut: tables.CutRows, lanes: Ints) -> tables.CutRows:
        """Add the column `CURSOR_SIZE` to the cursors of rows that were cut from lanes.

        A cursor is inside the document of its row's last piece, or is still the starting cursor.
        """
        last = np.searchsorted(
            cut.pieces[:, tables.PIECE_ROW], np.arange(len(cut.cursors)), side="right"
        )
        documents = cut.documents.table[cut.pieces[last - 1, tables.PIECE_DOCUMENT]]
        start = self._start[np.repeat(lanes, cut.num_rows)]
        is_own = documents[:, tables.ORDINAL] == cut.cursors[:, tables.CURSOR_ORDINAL]
        is_start = (start[:, : tables.CURSOR_SIZE] == cut.cursors).all(axis=1)
        sizes = np.where(
            is_own, documents[:, tables.SIZE], np.where(is_start, start[:, tables.CURSOR_SIZE], 0)
        )
        sizes[cut.cursors[:, tables.CURSOR_OFFSET] == 0] = 0
        return replace(cut, cursors=np.column_stack([cut.cursors, sizes]))

    def _fill(self, lanes: Ints, wanted: Ints, eagerness: float, is_awaited: bool) -> None:
        """Read documents of each lane until it can fill the wanted rows or reaches its end."""
        # documents of residues first, because the packer cannot cut rows without their tokens
        again = self._packer.unread(lanes)
        if len(again[0]):
            self._add(self._documents.find(*again), is_awaited)
        # documents that are not selected cost little, so more of them are passed at once
        shares = self._shares[lanes // self._num_lanes]
        means = np.clip(
            self._mean_tokens[lanes // self._num_lanes],
            self._least_filled * shares,
            self._most_filled,
        )
        while True:
            # continue with the lanes that still need tokens and have documents left
            missing = self._packer.missing(lanes, wanted)
            room = self.ends[lanes] - self.next_ordinals[lanes]
            short = np.flatnonzero((missing > 0) & (room > 0))
            if not len(short):
                return
            lanes, wanted = lanes[short], wanted[short]
            means, shares = means[short], shares[short]
            # read more documents than are needed on average, so that there are few calls, and few
            # lanes turn out to be short. Each round doubles this factor
            needed = missing[short] / means
            eager = max(1.0, min(eagerness, self._enough_documents / (shares * needed).sum()))
            most = np.minimum(
                np.ceil(MOST_DOCUMENTS_OF_LANE / shares),
                max(MOST_DOCUMENTS_OF_LANE, _MOST_PASSED // len(lanes)),
            )
            counts = np.clip(np.ceil(eager * needed), 1, most)
            counts = np.minimum(counts.astype(np.int64), room[short])
            self._read_next(lanes, counts, is_awaited)
            eagerness = min(2 * eagerness, _MOST_EAGERNESS_OF_FILL)

    def _read_next(self, lanes: Ints, counts: Ints, is_awaited: bool) -> None:
        """Read and pack the next `counts` documents of each lane, except those not selected."""
        firsts = self.next_ordinals[lanes]
        found = self._documents.find_next(lanes, firsts, counts)
        self.next_ordinals[lanes] += counts
        starts = np.searchsorted(found.flat_lanes, lanes)
        stops = np.searchsorted(found.flat_lanes, lanes, side="right")
        is_read = self._documents.is_selected(found.samples)
        # a document that its lane had begun to read was accepted before, and is the lane's first
        begun = self._start[lanes]
        is_begun = (begun[:, tables.CURSOR_OFFSET] > 0) & (
            begun[:, tables.CURSOR_ORDINAL] == firsts
        )
        is_read[starts[is_begun]] = True
        sizes = self._add(self._passed.skip(found, is_read), is_awaited)
        self._learn_sizes(lanes, np.flatnonzero(is_read), sizes, starts, stops)

    def _add(self, found: FoundDocuments, is_awaited: bool) -> Ints:
        """Read and pack documents, and return their sizes: int64 [documents]."""
        if not len(found):
            return found.samples
        self._prefetch.fetch(found, is_awaited=is_awaited)
        begun_sizes = found.begun_sizes(self._position)
        has_begun = bool((begun_sizes != tables.Size.ABSENT).any())
        documents = self._documents.read(found, begun_sizes if has_begun else None)
        self._packer.add(documents)
        sizes: Ints = documents.table[:, tables.SIZE]
        return sizes

    def _learn_sizes(
        self, lanes: Ints, indices: Ints, sizes: Ints, starts: Ints, stops: Ints
    ) -> None:
        """Learn from the next documents of lanes, which are sorted by lane.

        `indices` and `sizes` are those of the documents that were read, int64 [n]. Those of a lane,
        read or not, have the indices [starts, stops), int64 [lanes].
        """
        # count the documents of each lane after its last one with tokens
        full, counts = np.append(-1, indices[sizes > 0]), stops - starts
        last_full = full[np.searchsorted(full, stops) - 1]
        self._barren[lanes] = np.where(
            last_full >= starts, stops - 1 - last_full, self._barren[lanes] + counts
        )
        for component, own in split_by_component(lanes, self._num_lanes):
            first, last = np.searchsorted(indices, [starts[own[0]], stops[own[-1]]])
            self._learn_mean(component, int(counts[own].sum()), int(sizes[first:last].sum()))
            self._doubt_component(component, sizes[first:last])
            most = self._components[component].lanes.num_positions
            for lane in lanes[own[self._barren[lanes[own]] > most]].tolist():
                self._check_barren(lane)

    def _learn_mean(self, component: int, num_documents: int, num_tokens: int) -> None:
        if num_documents:
            weight = num_documents / (num_documents + _GUESS_WEIGHT_DOCUMENTS)
            found = max(self._components[component].selected_share, num_tokens / num_documents)
            self._mean_tokens[component] += weight * (found - self._mean_tokens[component])

    def _doubt_component(self, component: int, sizes: Ints) -> None:
        """Warn after 1,000, 2,000, 4,000, … consecutive documents without tokens."""
        is_any_full = bool(sizes.any())
        before = 0 if is_any_full else self._barren_of_component[component]
        barren = int(np.argmax(sizes[::-1] > 0)) if is_any_full else before + len(sizes)
        self._barren_of_component[component] = barren
        thousands, thousands_before = barren // _DOUBTED_DOCUMENTS, before // _DOUBTED_DOCUMENTS
        if thousands.bit_length() > thousands_before.bit_length():
            logger.warning(
                "the last %s documents that this process read from %s (%s in an epoch) have no "
                "tokens, because they are empty, have no trained tokens, or are left out by the "
                "transform, min_tokens, max_tokens, or on_error='skip'. If this is not intended, "
                "check these options and the data",
                f"{barren:,}",
                self._label(component),
                f"{self._components[component].lanes.num_positions:,}",
            )

    def _label(self, component: int) -> str:
        return ", ".join(self._labels[stream] for stream in self._components[component].streams)

    def _check_barren(self, flat_lane: int) -> None:
        """Raise `DatasetError` if too many consecutive documents of an endless lane have no tokens.

        The limit is `Component.most_barren`, or an epoch's documents if this process has found no
        tokens at all in as many documents of the component.
        """
        index, lane = divmod(flat_lane, self._num_lanes)
        component = self._components[index]
        is_endless, most = component.lanes.epochs is None, component.most_barren
        if self._barren_of_component[index] > most:
            most = component.lanes.num_positions
        if is_endless and self._barren[flat_lane] > most:
            raise DatasetError(
                f"lane {lane} of {self._label(index)} has no tokens. Its last "
                f"{self._barren[flat_lane]:,} documents, which are more than an epoch has, are all "
                "empty, not selected, filtered out, without trained tokens, or left out by "
                "on_error='skip'. Set an eos, use a different select, transform, min_tokens, or "
                "max_tokens, or start a new run with more documents or a smaller num_lanes"
            )


def find_ends(plan: WorkerPlan) -> Ints:
    """The ordinal at which each lane has finished all epochs: int64 [flat_lanes].

    `NEVER` for an endless lane.
    """
    return np.concatenate([component.lanes.ends for component in plan.recipe.components])
