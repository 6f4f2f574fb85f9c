"""Measure the CPU time, memory and disk space of token lengths, and of finding rows with them.

    python -m benchmarks.scale.lengths --only best_fit --documents 100_000_000

The lengths are synthetic. Each measurement runs in a separate process.

tables      builds the order and the table of an epoch, and finds `concat` rows in it
best_fit    plays the lanes of one rank of 16 through 97% of an epoch, which writes marks to disk,
            and then finds random `best_fit` rows from the marks
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.figures import Row
from benchmarks.harness import Message, memory_of, run_child
from benchmarks.options import Options, temporary_folder
from cloudload.order.epoch_order import OrderConfig
from cloudload.order.lanes import Lanes
from cloudload.rows.packing.fill import Framing
from cloudload.rows.packing.packers import Packing
from cloudload.run.components import Component
from cloudload.run.lengths.best_fit_walker import BestFitWalker
from cloudload.run.lengths.lane_tables import LaneTables
from cloudload.run.lengths.lane_walker import LaneWalker
from cloudload.run.lengths.length_files import DatasetLengths, narrow, widen
from cloudload.run.lengths.row_finder import BestFitRows
from cloudload.run.lengths.sizes import LaneSizes

SEQ_LEN, NUM_LANES, NUM_NODES, SHARD_SAMPLES = 2_048, 960, 64, 20_000
RANKS, ROWS = 16, 200


def main() -> None:
    options = Options(__doc__)
    options.add_parts(("tables", "best_fit"))
    options.add_amount("documents", 10_000_000, 200_000, "number of documents in the dataset")
    options.run(measure)


def measure(args: argparse.Namespace, _: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield the title and the rows of each part's table."""
    if "tables" in args.only:
        algorithms = ("py1e", "seekable")
        yield (
            "tables",
            [
                run_child(measure_tables, None, documents=args.documents, shuffle_algo=each)
                for each in algorithms
            ],
        )
    if "best_fit" in args.only:
        yield "best_fit", [run_child(measure_best_fit, None, documents=args.documents)]


def make_lanes(documents: int, folder: Path, shuffle_algo: str) -> tuple[LaneSizes, Message]:
    """Generate document lengths and an order. Returns the lanes' sizes, and figures of both."""
    random = np.random.default_rng(0)
    lengths = np.minimum(random.lognormal(6.2, 1.1, documents), 1e6).astype(np.int64)
    sizes = np.full(-(-documents // SHARD_SAMPLES), SHARD_SAMPLES, np.int64)
    sizes[-1] -= sizes.sum() - documents
    component = Component(
        streams=range(1),
        first_sample=0,
        shard_sizes=sizes,
        raw_bytes=0,
        num_selected=documents,
        sampling=None,
        order=OrderConfig(True, shuffle_algo, 1 << 18, NUM_NODES, 17),
        lanes=Lanes(NUM_LANES, documents, None, NUM_NODES),
    )
    short, indices, values = narrow(lengths)
    stored = DatasetLengths(short, indices.astype(np.int64), widen(values))
    orders = component.orders(folder)
    began = time.process_time()
    orders(0)
    order_s = time.process_time() - began
    lane_sizes = LaneSizes(component, orders, stored.of, np.zeros_like, Framing.of([(None, 0)]), 0)
    return lane_sizes, {
        "documents": documents,
        "shuffle_algo": shuffle_algo,
        "tokens": int(lengths.sum()) + documents,
        "order_cpu_s": round(order_s, 2),
        "length_bytes_per_document": round((short.nbytes + 8 * len(indices)) / documents, 3),
    }


def measure_tables(documents: int, shuffle_algo: str) -> Message:
    """Build the order and the table of an epoch, and find rows at three shares of the epoch."""
    with temporary_folder() as folder:
        return _measure_tables(documents, folder, shuffle_algo)


def _measure_tables(documents: int, folder: Path, shuffle_algo: str) -> Message:
    lane_sizes, figures = make_lanes(documents, folder, shuffle_algo)
    packing = Packing("concat", SEQ_LEN, 16, "cut")
    tables = LaneTables(folder / "lengths", lane_sizes, packing, "made-up")
    began = time.process_time()
    table = tables[0]
    table_s = time.process_time() - began
    walker, start = LaneWalker(tables), np.zeros((NUM_LANES, 3), np.int64)
    began = time.process_time()
    tables[1]  # needed at 99%, where lanes with few tokens are already in the next epoch
    next_s = time.process_time() - began
    rows = figures["tokens"] // SEQ_LEN // NUM_LANES
    found = {}
    for share in (0.01, 0.5, 0.99):
        began = time.process_time()
        walker.advance(start, np.full(NUM_LANES, int(rows * share)))
        found[f"us_per_row_at_{share:.0%}"] = round(
            1e6 * (time.process_time() - began) / NUM_LANES, 1
        )
    return {
        **figures,
        "table_cpu_s": round(table_s, 2),
        "next_order_and_table_cpu_s": round(next_s, 2),
        "table_bytes_per_document": round(table.nbytes / documents, 3),
        **found,
        "peak_rss_mb": memory_of("VmHWM") >> 20,
    }


def measure_best_fit(documents: int) -> Message:
    """Play one rank's lanes through 97% of `documents` documents, then find random rows."""
    with temporary_folder() as folder:
        return _measure_best_fit(documents, folder)


def _measure_best_fit(documents: int, folder: Path) -> Message:
    sizes, figures = make_lanes(documents, folder, "py1e")
    packing = Packing("best_fit", SEQ_LEN, 16, "cut", fair_from=0)
    tables = LaneTables(folder / "lengths", sizes, packing, "made-up")
    own = np.arange(0, NUM_LANES, RANKS)
    cursors, residues = np.zeros((NUM_LANES, 3), np.int64), np.full(NUM_LANES, b"", object)
    rows = int(0.97 * figures["tokens"]) // SEQ_LEN // NUM_LANES
    before_mb = memory_of("VmRSS") >> 20
    began = time.process_time()
    walker = BestFitWalker(tables)
    with walker.playing(own, cursors, residues) as playing:
        playing.play(own, np.full(len(own), rows))
        play_s = time.process_time() - began
        played = sum(playing.state(lane).ordinal for lane in own.tolist())
    marks = list(folder.rglob("*.marks"))
    random, found = np.random.default_rng(1), []
    finder = BestFitRows(BestFitWalker(tables), cursors, residues)
    finder.find(own, np.full(len(own), 1))  # opens the files of marks before the timing
    for _ in range(ROWS):
        lane, row = random.choice(own, 1), random.integers(rows, size=1)
        began = time.process_time()
        finder.find(lane, row)
        found.append(1e3 * (time.process_time() - began))
    seeks = {}
    for share in (0.01, 0.5, 0.99):
        began = time.process_time()
        walker = BestFitWalker(tables)
        with walker.playing(own, cursors, residues) as playing:
            playing.play(own, np.full(len(own), int(rows * share)))
        seeks[f"s_of_{len(own)}_lanes_at_{share:.0%}"] = round(time.process_time() - began, 3)
    return {
        **figures,
        "played_documents": played,
        "us_per_document": round(1e6 * play_s / played, 2),
        "ms_per_row_median": round(float(np.median(found)), 2),
        "ms_per_row_p99": round(float(np.quantile(found, 0.99)), 2),
        **seeks,
        "mark_bytes_per_document": round(sum(each.stat().st_size for each in marks) / played, 3),
        "rss_mb_of_lengths": before_mb,
        "rss_mb_after": memory_of("VmRSS") >> 20,
    }


if __name__ == "__main__":
    main()
