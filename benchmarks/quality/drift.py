"""Simulate how far lanes drift apart when documents differ in size.

    python -m benchmarks.quality.drift [--documents 1e8]

All lanes emit the same number of tokens, so lanes with longer documents read fewer of them.
Document sizes are log-normal. Shards have 5,000 documents and 64 MB, and a shuffle window has four
of them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.figures import Row
from benchmarks.harness import note
from benchmarks.options import Options
from cloudload.system.arrays import Ints

NUM_NODES, SHARDS_PER_WINDOW, SHARD_BYTES = 64, 4, 64_000_000
BLOCK = SHARDS_PER_WINDOW * 5_000
LOG_MEAN, LOG_SD = 6.2, 1.1
AT_ONCE = 64
"""The number of documents per lane that are drawn together."""


def main() -> None:
    options = Options(__doc__)
    options.add_amount("documents", 1e8, 5e5, "number of documents")
    text = "numbers of lanes (default: 960 3840)"
    options.add_argument("--lanes", nargs="+", type=int, default=[960, 3840], help=text)
    options.run(measure)


def measure(args: argparse.Namespace, _: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield the spread of the lanes after 10^5, 10^6, ... documents, up to --documents."""
    marks = [10.0**power for power in range(5, 9) if 10.0**power <= args.documents]
    for lanes in args.lanes:
        start = time.perf_counter()
        read = count_read(
            lanes, [mark / lanes * np.exp(LOG_MEAN + LOG_SD**2 / 2) for mark in marks]
        )
        note(f"simulated {lanes} lanes in {time.perf_counter() - start:.0f} s")
        yield (
            f"{lanes} lanes",
            [
                {"documents": f"{mark:.0e}", **describe(ordinals, lanes)}
                for mark, ordinals in zip(marks, read, strict=True)
            ],
        )


def describe(ordinals: Ints, lanes: int) -> Row:
    """Describe how far lanes are apart. `ordinals` is int64 [nodes, lanes of a node]."""
    of_node = lanes // NUM_NODES
    positions = ordinals * of_node + np.arange(of_node)
    spread = positions.max(axis=1) - positions.min(axis=1)
    # count the blocks from the slowest lane to the fastest, at random offsets, plus one edge shard
    staggers = np.random.default_rng(3).integers(0, BLOCK, (64, NUM_NODES))
    blocks = (
        (positions.max(axis=1) + staggers) // BLOCK
        - (positions.min(axis=1) + staggers) // BLOCK
        + 1
    )
    open_shards = blocks * SHARDS_PER_WINDOW + 1
    in_all = float(open_shards.sum(axis=1).mean())
    apart = int(ordinals.max() - ordinals.min())
    return {
        "ordinals: mean, sd": f"{ordinals.mean():,.0f}, {ordinals.std():.1f}",
        "all lanes: fastest minus slowest": f"{apart:,}",
        "the same, in documents of the epoch": f"{apart * lanes:,}",
        "documents between a node's lanes: mean, max": f"{spread.mean():,.0f}, {spread.max():,}",
        "open shards: per node, in total": f"{open_shards.mean():.1f}, {in_all:,.0f}",
        "GB in total": in_all * SHARD_BYTES / 1e9,
    }


def count_read(lanes: int, marks: Sequence[float]) -> Ints:
    """Count the documents that each lane has read by the time it has emitted each of `marks`.

    `marks` are numbers of tokens. Returns int64 [marks, nodes, lanes of a node].
    """
    of_node = lanes // NUM_NODES
    emitted = np.zeros((NUM_NODES, of_node))
    read = np.zeros((len(marks), NUM_NODES, of_node), np.int64)
    rng = np.random.default_rng(5)
    while emitted.min() <= marks[-1]:
        tokens = np.exp(rng.normal(LOG_MEAN, LOG_SD, (NUM_NODES, of_node, AT_ONCE)))
        sums = np.cumsum(tokens, axis=2) + emitted[:, :, None]
        for number, mark in enumerate(marks):
            read[number] += (sums <= mark).sum(axis=2)
        emitted = sums[:, :, -1]
    return read


if __name__ == "__main__":
    main()
