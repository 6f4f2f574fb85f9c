"""Measure the cost of opening a dataset of very many shards on the ranks of a node.

    python -m benchmarks.scale.index [--shards 1000000] [--ranks 2]

CPU time, peak memory, and proportional set size (PSS) of ranks with one worker each, in a first
start, and in later starts with the same cache. Ranks read from a simulated store, in which the
index is real and all shards have the same bytes. Memory is in MB of 10^6 bytes. PSS divides a
shared page among the processes that share it.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Row
from benchmarks.harness import ONE_THREAD, Child, descendants, memory_of
from benchmarks.options import Options
from benchmarks.scale.simulated_store import URL, loader_options, use_store, write_index_of_many


def main() -> None:
    options = Options(__doc__)
    options.add_amount("shards", 1_000_000, 20_000, "number of shards in the dataset")
    options.add_amount("samples", 10_000, 20, "number of documents per shard")
    options.add_amount("ranks", 2, 2, "number of ranks")
    options.run(measure)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield a table with each rank's figures in a first and two later starts.

    The rank with the highest CPU time comes first.
    """
    write_index_of_many(folder, args.shards, args.samples)
    index_mb = (folder / "index.json").stat().st_size / 1e6
    rows: list[Row] = []
    for start, ranks in (("first", args.ranks), ("later", args.ranks), ("later", 1)):
        found = run_ranks(ranks, folder)
        kept_mb = sum(each.stat().st_size for each in (folder / "cache").glob("indexes/*")) / 1e6
        sizes = {"index, MB": index_mb, "file in the cache, MB": kept_mb}
        for each in sorted(found, key=lambda row: row["CPU s"], reverse=True):
            rows.append({"start": start, "ranks": ranks, "shards": args.shards, **sizes, **each})
    yield "index", rows


def run_ranks(ranks: int, folder: Path) -> list[dict[str, float]]:
    """Run the ranks of a node. Returns each rank's figures, and its PSS once all have a batch."""
    variables = ONE_THREAD | {"LOCAL_WORLD_SIZE": str(ranks)}
    children = [
        Child(open_and_read, variables, folder=str(folder), rank=rank, size=ranks)
        for rank in range(ranks)
    ]
    try:
        found = [child.answer() for child in children]
        for row, child in zip(found, children, strict=True):
            family = [child.pid, *descendants(child.pid)]
            pss = sum(memory_of("Pss", pid) for pid in family)
            row["PSS of the rank and its worker, MB"] = pss / 1e6
        return found
    finally:
        for child in children:
            child.close()


def open_and_read(folder: str, rank: int, size: int) -> Iterator[dict[str, float]]:
    """Open the dataset as one rank, read a batch, and yield the figures."""
    from cloudload import CloudLoader
    from cloudload.data.mds import open_index

    open_index.MOST_WAIT_S = math.inf  # only one rank parses the index, however busy it is
    use_store(Path(folder))
    before_s, before = time.process_time(), memory_of("VmHWM")
    options = loader_options(Path(folder)) | {"seq_len": 256, "batch_size": 4}
    with CloudLoader(URL, **options, dp_rank=rank, dp_world_size=size) as loader:
        figures = {
            "CPU s": time.process_time() - before_s,
            "peak before, MB": before / 1e6,
            "peak, MB": memory_of("VmHWM") / 1e6,
        }
        next(iter(loader))
        yield figures


if __name__ == "__main__":
    main()
