"""Measure the seconds and the memory to build the order of an epoch.

If run as a program, this module is the side that builds one order.
"""

from __future__ import annotations

import re
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.figures import Row
from benchmarks.harness import Message, Side, Take, serve
from cloudload.order.order_cache import EpochOrders
from cloudload.order.spec import OrderConfig
from cloudload.system.arrays import Ints

PER_SHARD = 5_000
SHARD_BYTES = 64_000_000
SHARDS_PER_WINDOW = 4
BLOCK = SHARDS_PER_WINDOW * PER_SHARD
SEED = 17


def measure_scale(documents: int) -> Iterator[Row]:
    """Build each order in a new process, and yield its cost."""
    cases = [
        ("get_shuffle", "py1e", documents, 64, BLOCK),
        ("get_shuffle", "py1br", documents, 64, BLOCK),
        ("EpochOrders", "py1e", documents, 64, BLOCK),
        ("EpochOrders", "py1e", documents, 1, BLOCK),
        ("EpochOrders", "py1e", documents, 1, 4_000_000),
        ("EpochOrders", "py1br", documents, 64, BLOCK),
        ("EpochOrders", "py1br", documents, 1, BLOCK),
        ("EpochOrders", "seekable", documents, 64, BLOCK),
        ("EpochOrders", "seekable", 100 * documents, 64, BLOCK),
    ]
    for name, algorithm, number, nodes, block in cases:
        order: Row = {"order": name, "algorithm": algorithm, "nodes": nodes, "block": block}
        with Side("benchmarks.order.scale") as side:
            side.start(order | {"documents": number})
            measured = side.take_turn()
        yield order | {"documents": f"{number:.0e}"} | measured


# ---------------------------------------------------------------- the side


def start_build(request: Message) -> Take:
    """Import what the order needs, and return a function that builds it."""
    sizes = np.full(request["documents"] // PER_SHARD, PER_SHARD)
    config = OrderConfig(True, request["algorithm"], request["block"], request["nodes"], SEED)
    if request["order"] == "EpochOrders":
        return lambda _: build_ours(sizes, config)
    from streaming.base.shuffle import get_shuffle

    def build_streamings(_: Message) -> Message:
        started, used = time.perf_counter(), time.process_time()
        get_shuffle(
            config.shuffle_algo, sizes, config.num_canonical_nodes, SEED, 0, request["block"]
        )
        built, used = time.perf_counter() - started, time.process_time() - used
        return figures(built, used, None, None, None)

    return build_streamings


def build_ours(sizes: Ints, config: OrderConfig) -> Message:
    """Build an order with cloudload, read documents from its middle on, and return the figures."""
    documents = int(sizes.sum())
    middle = documents // 2
    most_anonymous = [0]
    is_built = threading.Event()

    def watch() -> None:
        while not is_built.wait(0.02):
            most_anonymous[0] = max(most_anonymous[0], megabytes_of("RssAnon"))

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
    return figures(built, used, first, most_anonymous[0], each_ns)


def figures(
    built: float, used: float, first: float | None, anonymous: int | None, each_ns: float | None
) -> Message:
    """Name the figures after the table's columns, and add the peak resident set in MiB."""
    return {
        "build, s": built,
        "CPU, s": used,
        "with 10,000 read, s": first,
        "peak RSS, MB": megabytes_of("VmHWM"),
        "of which not the file, MB": anonymous,
        "ns per document, in thousands": each_ns,
    }


def megabytes_of(name: str) -> int:
    """Return the value of a field of /proc/self/status, in MB of 2^20 bytes."""
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"{name}:\s+(\d+)", status)
    assert found
    return int(found[1]) >> 10


if __name__ == "__main__":
    serve(start_build)
