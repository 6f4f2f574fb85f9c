"""Measure the seconds and the memory to build the order of an epoch.

    python -m benchmarks.scale.order [--documents 1e8]

Builds each order with cloudload (`EpochOrders`), and some with Streaming (`get_shuffle`), each in a
new process. Shards have 5,000 documents.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.figures import Row
from benchmarks.harness import ONE_THREAD, Message, memory_of, run_child
from benchmarks.options import Options
from cloudload.order.epoch_order import OrderConfig
from cloudload.order.order_cache import EpochOrders

PER_SHARD = 5_000
BLOCK = 4 * PER_SHARD
SEED = 17


def main() -> None:
    options = Options(__doc__)
    options.add_amount("documents", 1e8, 5e5, "number of documents in an epoch")
    options.run(measure)


def measure(args: argparse.Namespace, _: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield the table of the orders."""
    documents = int(args.documents)
    cases = [
        ("get_shuffle", "py1e", documents, 64),
        ("get_shuffle", "py1br", documents, 64),
        ("EpochOrders", "py1e", documents, 64),
        ("EpochOrders", "py1br", documents, 64),
        ("EpochOrders", "seekable", documents, 64),
        ("EpochOrders", "seekable", 100 * documents, 64),
    ]
    rows: list[Row] = []
    for name, algorithm, number, nodes in cases:
        build = build_order if name == "EpochOrders" else build_streamings
        shape = {"documents": number, "shards": number // PER_SHARD, "nodes": nodes}
        found = run_child(build, ONE_THREAD, algorithm=algorithm, **shape, block=BLOCK)
        rows.append(
            {
                **{"order": name, "algorithm": algorithm, "nodes": nodes, "block": BLOCK},
                **{"documents": f"{number:.0e}", **found},
            }
        )
    yield "orders", rows


# ---------------------------------------------------------------- one order


def build_streamings(
    algorithm: str, documents: int, shards: int, nodes: int, block: int
) -> Message:
    """Build an order with Streaming, and return the figures."""
    from streaming.base.shuffle import get_shuffle

    sizes = np.full(shards, documents // shards)
    started, used = time.perf_counter(), time.process_time()
    get_shuffle(algorithm, sizes, nodes, SEED, 0, block)
    built, used = time.perf_counter() - started, time.process_time() - used
    return name_figures(built, used)


def build_order(algorithm: str, documents: int, shards: int, nodes: int, block: int) -> Message:
    """Build an order with cloudload, read documents from its middle on, and return the figures."""
    sizes = np.full(shards, documents // shards)
    config = OrderConfig(True, algorithm, block, nodes, SEED)
    documents = int(sizes.sum())
    middle = documents // 2
    most_anonymous = [0]
    is_built = threading.Event()

    def watch() -> None:
        while not is_built.wait(0.02):
            most_anonymous[0] = max(most_anonymous[0], memory_of("RssAnon") >> 20)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    with tempfile.TemporaryDirectory() as folder:
        orders = EpochOrders(Path(folder), sizes, config)
        started, used = time.perf_counter(), time.process_time()
        order = orders(0)
        built, used = time.perf_counter() - started, time.process_time() - used
        order[middle + np.arange(10_000)]
        first = time.perf_counter() - started
        times = [time.perf_counter()]
        for batch in range(200):
            order[middle + batch + np.arange(1_000) * 960 % (documents - middle - 200)]
            times.append(time.perf_counter())
    is_built.set()
    watching.join()
    each_ns = 1e9 * statistics.median(np.diff(times).tolist()) / 1_000
    return name_figures(built, used, first, most_anonymous[0], each_ns)


def name_figures(
    built: float,
    used: float,
    first: float | None = None,
    anonymous: int | None = None,
    each_ns: float | None = None,
) -> Message:
    """Name the figures after the table's columns, and add the peak resident set in MiB."""
    return {
        "build, s": built,
        "CPU, s": used,
        "with 10,000 read, s": first,
        "peak RSS, MB": memory_of("VmHWM") >> 20,
        "of which not the file, MB": anonymous,
        "ns per document, in thousands": each_ns,
    }


if __name__ == "__main__":
    main()
