"""Count the shards in use at the same time for each width of the shuffle window.

    python -m benchmarks.quality.window [--shards 2560]

A step reads one document from each canonical node. Shards have 5,000 documents and 64 MB.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.figures import Row
from benchmarks.options import Options
from cloudload.order.epoch_order import OrderConfig
from cloudload.system.arrays import Ints
from testkit.reference_order import canonical_order

PER_SHARD, SHARD_BYTES, SEED = 5_000, 64_000_000, 17


def main() -> None:
    options = Options(__doc__)
    options.add_amount("shards", 2_560, 128, "number of shards")
    options.run(measure)


def measure(args: argparse.Namespace, _: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield the table of the windows."""
    yield "window", list(measure_windows(args.shards))


def measure_windows(num_shards: int) -> Iterator[Row]:
    """Yield the shards in use for each number of canonical nodes and width of the window."""
    sizes = np.full(num_shards, PER_SHARD)
    cases = [
        (nodes, f"{window}", window * PER_SHARD)
        for nodes in (1, 8, 64)
        for window in (1, 2, 4, 8, 16)
    ]
    for nodes in (1, 8, 64):
        block = max(4_000_000 // nodes, 1 << 18)
        cases.append((nodes, f"{block / PER_SHARD:.0f} (Streaming's)", block))
    for nodes, window, block in sorted(cases, key=lambda case: (case[0], case[2])):
        row: Row = {"nodes": nodes, "window, shards": window}
        for algorithm in ("py1e", "seekable"):
            ids = canonical_order(sizes, OrderConfig(True, algorithm, block, nodes, SEED), 0)
            shards = ids.astype(np.int32) // PER_SHARD
            most = _most_open(shards, nodes)
            row[f"{algorithm}: in the first 2,048"] = len(np.unique(shards[:2_048]))
            row[f"{algorithm}: open at once"] = most
            row[f"{algorithm}: GB"] = round(most * SHARD_BYTES / 1e9, 1)
            row[f"{algorithm}: a shard's documents from their middle"] = (
                f"{_spread(shards[::nodes]):,.0f}"
            )
        yield row


def _most_open(shards: Ints, nodes: int) -> int:
    """Return the maximum number of open shards at a step.

    A shard is open from the first step that reads one of its documents to the last.
    """
    steps = np.arange(len(shards)) // nodes
    first, last = np.empty(shards.max() + 1, np.int64), np.empty(shards.max() + 1, np.int64)
    last[shards] = steps
    first[shards[::-1]] = steps[::-1]
    events = np.zeros(steps[-1] + 2, np.int64)
    np.add.at(events, first, 1)
    np.add.at(events, last + 1, -1)
    return int(np.cumsum(events).max())


def _spread(shards: Ints) -> float:
    """Return the mean distance of a document from the mean position of its shard's documents.

    `shards` is the shard of each document of one node, in order. Only complete shards count.
    """
    counts = np.bincount(shards)
    positions = np.arange(len(shards))
    middles = np.bincount(shards, positions) / np.maximum(1, counts)
    whole = counts[shards] == PER_SHARD
    return float(np.abs(positions - middles[shards])[whole].mean()) if whole.any() else float("nan")


if __name__ == "__main__":
    main()
