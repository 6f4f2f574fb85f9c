"""Prefetch the shards of the documents that lanes read next, and build the next epoch's order and
table of lengths.

    lane    read ──────►| next_ordinal ····· looked ahead ─ ─ ─ ►
                          by default, about two shards for each canonical node

Prefetching affects only when shards arrive, never which documents are read.
"""

from __future__ import annotations

import numpy as np

from cloudload.loading.workers.documents import (
    FoundDocuments,
    LaneDocuments,
    split_by_component,
)
from cloudload.loading.workers.worker_plan import WorkerPlan
from cloudload.run import Recipe
from cloudload.system import Ints


def count_documents_ahead(
    recipe: Recipe, predownload: int | None, component: int, num_own: int
) -> int:
    """The number of documents to look ahead in each lane, for a worker with `num_own` lanes."""
    of = recipe.components[component]
    if predownload is not None:
        own = num_own * len(recipe.components)
        return max(1, predownload // max(1, own))
    # only shards with selected documents are fetched
    first = recipe.corpus.shards_of(np.array([of.first_sample]))[0]
    used = np.count_nonzero(recipe.read_of_shards[first : first + len(of.shard_sizes)])
    per_shard = of.num_samples / max(1, used)
    return max(1, round(2 * per_shard / (recipe.num_lanes // of.order.num_canonical_nodes)))


class Prefetcher:
    """Fetches shards ahead of time for the lanes of one worker.

    `next_ordinals` and `ends` are int64 [flat_lanes]: the ordinal of each lane's next document,
    which the caller advances in place, and the ordinal at which the lane ends.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        worker: int,
        documents: LaneDocuments,
        next_ordinals: Ints,
        ends: Ints,
    ) -> None:
        self._plan, self._documents, recipe = plan, documents, plan.recipe
        self._components, self._num_lanes = recipe.components, recipe.num_lanes
        self._next_ordinals, self._ends = next_ordinals, ends
        self._looked_ahead = next_ordinals.copy()
        """The ordinal up to which each lane's shards were requested: int64 [flat_lanes]."""
        num_own, predownload = len(plan.share.own_lanes(worker)), plan.delivery.predownload
        self._ahead = np.array(
            [
                count_documents_ahead(recipe, predownload, component, num_own)
                for component in range(len(self._components))
            ]
        )
        """Number of documents to look ahead in a lane of each component: int64 [components]."""
        # parts of shards are not shared. If a batch has several rows of a canonical node, other
        # workers may need the same shards
        num_nodes = min(each.order.num_canonical_nodes for each in self._components)
        is_alone = plan.share.world_size * plan.share.num_workers == 1
        self._reads_parts = is_alone or plan.share.global_batch <= num_nodes
        self._ordered_epochs = [0] * len(self._components)
        """The last epoch of each component whose order was requested."""

    def fetch(self, needed: FoundDocuments, *, is_awaited: bool) -> None:
        """Start fetching the shards of `needed`, then those of the lanes' next documents.

        To limit overhead, does nothing until a lane has used half of its look-ahead. The shards of
        `needed` were usually requested earlier. While the training loop waits for its first batch
        (`is_awaited`), fetches only the shards of `needed`, or the parts of them that it needs.
        """
        if is_awaited:
            self._documents.prefetch(needed.samples, in_parts=self._reads_parts)
            return
        flat_lanes = needed.flat_lanes
        is_short = (
            self._looked_ahead[flat_lanes] - self._next_ordinals[flat_lanes]
            < self._ahead[flat_lanes // self._num_lanes] // 2
        )
        if not is_short.any():
            return
        lanes = np.unique(flat_lanes[is_short])
        froms = np.maximum(self._looked_ahead[lanes], self._next_ordinals[lanes])
        stops = np.minimum(
            self._next_ordinals[lanes] + self._ahead[lanes // self._num_lanes],
            self._ends[lanes],
        )
        # from where the last call ended to the limit of each lane; nearest documents first, because
        # they are needed first
        counts = np.maximum(0, np.minimum(stops, self._epoch_ends(lanes)) - froms)
        self._looked_ahead[lanes] = froms + counts
        later = self._documents.find_next(lanes, froms, counts)
        later = later[np.flatnonzero(self._documents.is_selected(later.samples))]
        distances = later.ordinals - self._next_ordinals[later.flat_lanes]
        nearest = later.samples[np.argsort(distances, kind="stable")]
        self._documents.prefetch(np.concatenate([needed.samples, nearest]))

    def _epoch_ends(self, flat_lanes: Ints) -> Ints:
        """The ordinal before which each lane may look ahead: int64 [lanes].

        This is the end of the lane's epoch. For a lane in the latest epoch, it is the end of the
        next epoch if that epoch's order is available, because looking ahead must not wait until an
        order is built.
        """
        ends = np.empty_like(flat_lanes)
        for component, own in split_by_component(flat_lanes, self._num_lanes):
            lanes = self._components[component].lanes
            own_lanes = flat_lanes[own] % lanes.num_lanes
            epochs, _ = lanes.epoch_positions(
                own_lanes, np.maximum(0, self._next_ordinals[flat_lanes[own]] - 1)
            )
            last = int(epochs.max())
            if self._documents.has_order(component, last + 1):
                epochs = np.where(epochs == last, last + 1, epochs)
            # the ordinal whose position is at or after the start of the next epoch, rounded up
            ends[own] = -(
                -((epochs + 1) * lanes.stride - lanes.first_positions[own_lanes]) // lanes.num_lanes
            )
        return ends

    def build_orders(self, flat_lanes: Ints) -> None:
        """Start building the next epoch's order once a lane is halfway through its epoch.

        If there are token lengths and several ranks, also starts building the epoch's table, from
        which a rank computes the cursors of other ranks' lanes.
        """
        for component, own in split_by_component(flat_lanes, self._num_lanes):
            lanes = self._components[component].lanes
            furthest = int(self._next_ordinals[flat_lanes[own]].max()) * lanes.num_lanes
            epoch = (furthest + lanes.stride // 2) // lanes.stride
            if epoch > self._ordered_epochs[component] and (
                lanes.epochs is None or epoch < lanes.epochs
            ):
                self._ordered_epochs[component] = epoch
                self._documents.build_order(component, epoch)
                inputs = self._plan.inputs
                if inputs.lengths is not None and self._plan.share.world_size > 1:
                    inputs.open_run_lengths().build_table(component, epoch)
