"""Measure how much uneven worlds tokenize and download repeatedly, on synthetic token lengths.

    python -m benchmarks.scale.uneven_worlds

A world is uneven if the number of lanes is not a multiple of the number of ranks. The table has a
row per packing, `seq_len` and world:

tokenized    tokens that are tokenized per token delivered, after the first row of each lane
rows_moved   the share of rows that a rank other than the owner of the row's lane makes
nodes_read   how many machines read a canonical node, on average. This is about the number of bytes
             downloaded in an epoch per byte of the dataset.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.figures import Row
from benchmarks.options import Options
from cloudload.order.epoch_order import OrderConfig
from cloudload.order.lanes import Lanes
from cloudload.order.ranks import share_lanes
from cloudload.rows.packing import tables
from cloudload.rows.packing.fill import Framing
from cloudload.rows.packing.packers import Packing
from cloudload.run.components import Component
from cloudload.run.lengths.best_fit_walker import BestFitWalker
from cloudload.run.lengths.lane_tables import LaneTables
from cloudload.run.lengths.lane_walker import LaneWalker
from cloudload.run.lengths.row_finder import BestFitRows
from cloudload.run.lengths.row_pieces import RowPieces
from cloudload.run.lengths.sizes import LaneSizes
from cloudload.system.arrays import Flags, Ints

# (lanes, canonical nodes, ranks of each machine); (6,) and (8,) * 8 are even worlds, for comparison
WORLDS = (
    *((60, 4, (6,)), (60, 4, (7,)), (3_840, 64, (8,) * 8)),
    *((3_840, 64, (7,) * 9), (3_840, 64, (8,) * 9), (3_840, 64, (8,) * 63)),
)
BATCH_SIZE, TURNS, MEDIAN_TOKENS, SIGMA = 8, 8, 500, 1.1


def main() -> None:
    Options(__doc__).run(measure)


def measure(args: argparse.Namespace, _: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield the table of the worlds."""
    cases = itertools.product(
        ("concat", "best_fit"), (2_048, 8_192), WORLDS[:2] if args.quick else WORLDS
    )
    yield (
        "uneven worlds",
        [
            measure_world(world, Packing(packing, seq_len, 16, "cut"))
            for packing, seq_len, world in cases
        ],
    )


def measure_world(world: tuple[int, int, tuple[int, ...]], packing: Packing) -> Row:
    """Deal 8 rows of each lane to the ranks of a world, and count the work of each rank."""
    num_lanes, num_nodes, machines = world
    seq_len = packing.seq_len
    per_node = 2 * num_lanes * TURNS * seq_len // MEDIAN_TOKENS // num_nodes
    lanes = Lanes(num_lanes, per_node * num_nodes, None, num_nodes)
    hosts = np.repeat(np.arange(len(machines)), machines)
    dealing, global_batch = share_lanes(lanes, hosts), BATCH_SIZE * len(hosts)
    starts = range(0, TURNS * num_lanes, global_batch)
    dealt = np.stack(
        [
            start
            + np.argsort(dealing.deal(start, global_batch), kind="stable").reshape(-1, BATCH_SIZE)
            for start in starts
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        documents = Documents(lanes, packing, Path(folder))
        counted = [
            documents.count_tokens(dealt[:, rank].ravel(), dealing.owners == rank)
            for rank in range(len(hosts))
        ]
    tokenized, handed_out = np.sum(counted, axis=0).tolist()
    nodes = lanes.first_positions[dealt % num_lanes] % num_nodes
    read = sum(len(np.unique(nodes[:, hosts == host])) for host in range(len(machines)))
    moved = dealing.owners[dealt % num_lanes] != np.arange(len(hosts))[:, None]
    return {
        "lanes": num_lanes,
        "ranks": len(hosts),
        "machines": len(machines),
        "packing": packing.name,
        "seq_len": seq_len,
        "tokenized": round(tokenized / handed_out, 3),
        "rows_moved": round(float(moved.mean()), 4),
        "nodes_read": round(read / num_nodes, 3),
    }


class Documents:
    """Synthetic documents of log-normal lengths, with one shard per canonical node."""

    def __init__(self, lanes: Lanes, packing: Packing, folder: Path) -> None:
        random = np.random.default_rng(0)
        lengths = random.lognormal(np.log(MEDIAN_TOKENS), SIGMA, lanes.num_positions)
        component = Component(
            streams=range(1),
            first_sample=0,
            shard_sizes=np.full(lanes.num_nodes, lanes.num_positions // lanes.num_nodes, np.int64),
            raw_bytes=0,
            num_selected=lanes.num_positions,
            sampling=None,
            order=OrderConfig(True, "py1e", 1 << 18, lanes.num_nodes, 17),
            lanes=lanes,
        )
        self._sizes = LaneSizes(
            component,
            component.orders(folder),
            np.minimum(lengths, 1e5).astype(np.int64).__getitem__,
            np.zeros_like,
            Framing.of([(None, 0)]),
            0,
        )
        lane_tables = LaneTables(folder / "tables", self._sizes, packing, "made-up")
        starts = np.zeros((lanes.num_lanes, tables.NUM_CURSOR_COLUMNS), np.int64)
        if packing.has_residue:
            residues = np.full(lanes.num_lanes, b"", np.object_)
            played = BestFitWalker(lane_tables)
            self._find = BestFitRows(played, starts, residues).find
        else:
            walker = LaneWalker(lane_tables)
            self._find = RowPieces(walker, starts).find

    def count_tokens(self, rows: Ints, is_own: Flags) -> tuple[int, int]:
        """Count the tokens that a rank tokenizes and delivers, after each lane's first row.

        `is_own` says which lanes the rank owns, bool [lanes]. A rank tokenizes a document of its
        own lanes once, and a document of any other lane once for each row.
        """
        lanes, numbers = rows % len(is_own), rows // len(is_own)
        in_lanes = np.lexsort((numbers, lanes))
        lanes, numbers = lanes[in_lanes], numbers[in_lanes]
        pieces = self._find(lanes, numbers)
        documents = pieces[:, tables.PIECE_DOCUMENT]
        own, ordinals = tables.split_keys(documents)
        is_held = is_own[own]
        _, firsts = np.unique(documents, return_index=True)
        is_held[firsts] = False
        sizes = self._sizes.measure(own, ordinals).sizes
        is_later = numbers[pieces[:, tables.PIECE_ROW]] > 0
        handed_out = (pieces[:, tables.PIECE_STOP] - pieces[:, tables.PIECE_START])[is_later]
        return int(sizes[is_later & ~is_held].sum()), int(handed_out.sum())


if __name__ == "__main__":
    main()
