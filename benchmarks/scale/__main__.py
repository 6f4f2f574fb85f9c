"""Measure datasets of millions of shards, and the start of thousands of ranks.

    python -m benchmarks.scale [--only opening hub downloads cache states plans]

opening   requests to a real S3 server until every rank of a node has its first batch, and the
          total for --nodes nodes
hub       requests to the Hugging Face Hub when a rank loads a tokenizer by name, and the total for
          --nodes nodes of --ranks ranks
downloads how often each shard is downloaded, by num_lanes and num_canonical_nodes
cache     cost of a reservation, by the number of shards in the cache
states    size of a state, by the number of lanes
plans     cost of planning `cloudload count` of --planned-shards shards, of sending the plan to a
          spawned worker, and of `cloudload plan`

`plans` reads from a simulated store, in which the index is real and all shards have the same bytes.
Memory is in MB of 10^6 bytes. The other modules of this folder have their own commands.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.figures import Row
from benchmarks.options import Options
from benchmarks.scale.downloads import count_downloads
from benchmarks.scale.hub import count_hub_requests
from benchmarks.scale.opening import count_requests
from benchmarks.scale.parts import measure_cache, measure_plans, measure_states
from benchmarks.scale.simulated_store import write_index_of_many

PARTS = ("opening", "hub", "downloads", "cache", "states", "plans")


def main() -> None:
    options = Options(__doc__)
    options.add_parts(PARTS)
    options.add_amount("ranks", 8, 2, "number of ranks per node")
    options.add_amount("nodes", 1_250, 1_250, "number of nodes in the job")
    options.add_amount("lanes", 20_000, 1_920, "largest number of lanes in `states`")
    options.add_amount("planned-shards", 100_000, 200, "number of shards in the dataset of `plans`")
    options.add_amount("samples", 10_000, 100, "number of documents in each of these shards")
    options.add_amount("steps", 100, 5, "number of steps in the run of `plans`")
    options.add_amount("cached", 100_000, 1_000, "number of shards in the largest cache of `cache`")
    options.run(measure)


def measure(args: argparse.Namespace, work: Path) -> Iterator[tuple[str, list[Row]]]:
    """Measure the chosen parts, and yield the title and the rows of each part's table."""
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "opening": lambda: count_requests(work, args.ranks, args.nodes),
        "hub": lambda: count_hub_requests(work, args.ranks, args.nodes),
        "downloads": lambda: count_downloads(args.ranks, args.nodes),
        "cache": lambda: measure_cache(args.cached),
        "states": lambda: measure_states(args.lanes),
        "plans": lambda: measure_plans(work / "many", args.ranks, args.steps),
    }
    if "plans" in args.only:
        (work / "many").mkdir()
        write_index_of_many(work / "many", args.planned_shards, args.samples)
    for name in args.only:
        yield name, list(parts[name]())


if __name__ == "__main__":
    main()
