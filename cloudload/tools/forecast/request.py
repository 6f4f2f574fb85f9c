"""The run to forecast, and its length and shard uses in each case."""

from __future__ import annotations

from dataclasses import dataclass

from cloudload.config import DeliveryConfig
from cloudload.loading import (
    MOST_EAGERNESS,
    count_documents_ahead,
    limit_batches,
    limit_blocks_ahead,
)
from cloudload.order import RankShare
from cloudload.run import Recipe, RunInputs, RunLengths
from cloudload.stats import READ
from cloudload.tools.forecast.budget import Extent, find_extent
from cloudload.tools.forecast.cases import Cases
from cloudload.tools.forecast.node_reads import NodeReads
from cloudload.tools.forecast.shard_uses import FoundUses, ShardUses, find_uses

_MOST_EPOCHS_AHEAD = 16  # reading further ahead adds almost no new shards to a node
_MOST_PACKED = 1 << 24  # documents, which take about two minutes to pack


@dataclass(frozen=True)
class Case:
    """The length of the run and its shard uses, in one case of the forecast."""

    extent: Extent
    uses: FoundUses
    reading: NodeReads

    def of_node(self, node: int) -> tuple[ShardUses, ShardUses]:
        """Return the shard uses of one node, without and with read-ahead."""
        needed, fetched = self.uses.needed, self.uses.fetched
        return needed.take(needed.nodes == node), fetched.take(fetched.nodes == node)


@dataclass(frozen=True)
class ForecastRequest:
    """The run to forecast: its data, ranks, cache limit, and requested length."""

    inputs: RunInputs
    delivery: DeliveryConfig
    share: RankShare
    """The share of one rank of the run."""
    tokens: int | None
    steps: int | None

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return self.inputs.recipe

    @property
    def limit(self) -> int | None:
        """The cache limit in bytes."""
        return self.delivery.cache_limit_bytes()

    @property
    def num_nodes(self) -> int:
        """Number of machines."""
        return self.share.world_size // self.share.world.ranks_per_node

    @property
    def has_full_rows(self) -> bool:
        """Whether all rows are full, regardless of the documents' lengths."""
        return self.recipe.packing.name == "concat" and not self.recipe.has_tails

    @property
    def rows_of_lane(self) -> int | None:
        """The approximate number of rows per lane, or None if it is unknown."""
        if self.tokens is not None:
            return self.tokens // self.recipe.packing.seq_len // self.share.num_lanes + 1
        if self.steps is not None:
            return self.steps * self.share.global_batch // self.share.num_lanes + 1
        return None

    def choose(self, cases: Cases) -> Cases:
        """Decide whether to play a `best_fit` run, or to approximate it with `concat` runs.

        Returns the run itself if it reads at most 2^24 documents, and otherwise `cases`. Raises the
        errors of `find_extent`.
        """
        if cases.packed is None:
            return cases
        read = self._find_extent(cases.runs[0]).beginning.counts[:, list(READ)].sum()
        return cases.pack() if read <= _MOST_PACKED else cases

    def follow(self, cases: Cases) -> list[Case]:
        """Find the run length and the shard uses in each case.

        Raises the errors of `find_extent` and `find_uses`.
        """
        found = []
        for run in cases.runs:
            extent = self._find_extent(run)
            is_whole = extent.is_whole and None not in extent.stream_ends
            reading = NodeReads(
                lengths=run,
                num_rows=extent.beginning.rows,
                rows_ahead=0 if is_whole else self.limit_ahead(extent),
                documents_ahead=self.documents_ahead,
                share=self.share,
                is_whole=is_whole,
                measures_rest=self.inputs.lengths is None,
            )
            found.append(Case(extent, find_uses(reading), reading))
        return found

    def _find_extent(self, run: RunLengths) -> Extent:
        return find_extent(
            run,
            self.share.global_batch,
            tokens=self.tokens,
            steps=self.steps,
            drops_tail=self.delivery.tail == "drop",
        )

    @property
    def rows_ahead(self) -> int:
        """The maximum number of rows that all ranks' workers prepare ahead of the training loop."""
        block = limit_batches(self.inputs, self.share)
        eager = min(block, int(MOST_EAGERNESS)) - 1  # blocks that a lane may read ahead
        blocks = limit_blocks_ahead(self.delivery.prefetch_batches, block)
        rows = (2 + blocks + eager) * block * self.share.global_batch
        packing = self.recipe.packing
        # best_fit lanes also read the documents of their open rows before they emit these rows
        return rows + packing.has_residue * packing.open_rows * self.share.num_lanes

    def limit_ahead(self, extent: Extent) -> int:
        """Return `rows_ahead`, but at most the number of rows in 16 epochs."""
        most = 0
        for each in self.recipe.components:
            read = int(extent.counts[each.streams.start : each.streams.stop, list(READ)].sum())
            most = max(
                most, -(-_MOST_EPOCHS_AHEAD * extent.rows * each.num_positions // max(1, read))
            )
        return min(self.rows_ahead, most)

    @property
    def documents_ahead(self) -> tuple[int, ...]:
        """For each component, the number of documents per lane whose shards are fetched ahead."""
        own = max(1, self.share.num_lanes // (self.share.world_size * self.share.num_workers))
        recipe, predownload = self.recipe, self.delivery.predownload
        return tuple(
            count_documents_ahead(recipe, predownload, index, own)
            for index in range(len(recipe.components))
        )
