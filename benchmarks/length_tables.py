"""Measure the CPU time, memory and disk space of tables of token lengths, and of finding rows.

    python -m benchmarks.length_tables 1_000_000 10_000_000

The arguments are numbers of documents, whose lengths are synthetic. Each number runs with each
shuffle algorithm in a separate process, whose CPU times are printed as one line of JSON.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from cloudload.order.lanes import Lanes
from cloudload.order.spec import OrderConfig
from cloudload.rows.packing.packers import Packing
from cloudload.run.components import Component
from cloudload.run.lengths.files import DatasetLengths
from cloudload.run.lengths.group_file import narrow, widen
from cloudload.run.lengths.lane_walker import Walker
from cloudload.run.lengths.sizes import LaneSizes
from cloudload.run.lengths.tables import LaneTables

SHUFFLES = ("py1e", "seekable")
SEQ_LEN, NUM_LANES, NUM_NODES, SHARD_SAMPLES = 2_048, 960, 64, 20_000


def make_lanes(documents: int, folder: Path, shuffle_algo: str) -> tuple[LaneSizes, dict[str, Any]]:
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
        sampling=None,
        order=OrderConfig(True, shuffle_algo, 1 << 18, NUM_NODES, 17),
        lanes=Lanes(NUM_LANES, documents, None, NUM_NODES),
    )
    short, places, values = narrow(lengths)
    stored = DatasetLengths(short, places.astype(np.int64), widen(values))
    orders = component.orders(folder)
    began = time.process_time()
    orders(0)
    order_s = time.process_time() - began
    lane_sizes = LaneSizes(component, orders, stored.of, np.zeros_like, np.array([1], np.int64), 0)
    return lane_sizes, {
        "documents": documents,
        "shuffle_algo": shuffle_algo,
        "tokens": int(lengths.sum()) + documents,
        "order_cpu_s": round(order_s, 2),
        "length_bytes_per_document": round((short.nbytes + 8 * len(places)) / documents, 3),
    }


def measure(documents: int, folder: Path, shuffle_algo: str) -> dict[str, Any]:
    """Build the order and the table of an epoch, and find rows at three places in the epoch."""
    lane_sizes, figures = make_lanes(documents, folder, shuffle_algo)
    packing = Packing("concat", SEQ_LEN, 16, "cut")
    tables = LaneTables(folder / "lengths", lane_sizes, packing, "made-up")
    began = time.process_time()
    table = tables[0]
    table_s = time.process_time() - began
    walker, start = Walker(tables, lane_sizes, packing), np.zeros((NUM_LANES, 3), np.int64)
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
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def main() -> None:
    if sys.argv[1] in SHUFFLES:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(int(sys.argv[2]), Path(folder), sys.argv[1])), flush=True)
        return
    for shuffle_algo in SHUFFLES:
        for size in sys.argv[1:]:
            command = [sys.executable, "-m", "benchmarks.length_tables", shuffle_algo, size]
            subprocess.run(command, check=False)


if __name__ == "__main__":
    main()
