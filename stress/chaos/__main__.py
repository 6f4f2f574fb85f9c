"""Kill training jobs under injected faults, and compare every row with an undisturbed run.

    python -m stress.chaos --restarts 200 --faults 10000

    SeaweedFS, fake-gcs ◄── fault proxy: injects a fault ◄── 1 to 9 real ranks on 1 to 3 nodes,
                            into 40% of the requests for     with 0 to 3 workers each, started by
                            shards, and into a quarter       fork, spawn or forkserver
                            of all other requests
    processes    SIGKILL of a worker, of a rank, of all ranks, of all processes, or of a rank that
                 is connecting to the others; SIGTERM of a rank; SIGSTOP of a worker, of a rank, of
                 all ranks, of all processes or of the store, followed by SIGCONT after seconds or
                 minutes, before or after the job is killed
    caches       wiped between jobs, or some of their files deleted, truncated, corrupted or
                 extended, or stray lock and part files added; some jobs have a cache limit
    disks        file systems for caches, which are small from the start or run out of bytes or
                 inodes during a job, if this user may mount (root, or user namespaces)

A campaign is a series of training runs. A run is finite or endless, and has one packing, mixture
and shuffle. Its data are MDS shards, or Parquet files that are read where they are. A sequence of
jobs, each with a different world, continues it from its last checkpoint. The datasets may have
token lengths, and a job may use them or not. If it uses them, the number of lanes need not be a
multiple of the number of ranks. Every rank writes a hash of each row.

A job must leave no process, nothing in /dev/shm, and no lock or part file. If nothing was killed,
this is checked when the job has ended, and otherwise when the next job has started. A job hangs if
it writes no row for its ranks' timeout (60 or 150 s) plus 30 s, not counting the time in which its
processes wait for a core. If a rank is killed while it connects, the others may wait for
five minutes, because gloo does. The exit status is 1 in any of these cases:

- a row was lost, repeated, or changed between checkpoints
- a job hung, left something behind, or failed because of a short pause
- an error is neither cloudload's nor caused by a broken connection between ranks

Prints a line for each job, and at the end a summary as JSON. `--summary` also writes the summary so
far to a file after each job. To run several campaigns at once, start each with another `--seed`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from stress.campaign import Report, make_parser, run_in_folder
from stress.chaos.campaign import Campaign
from stress.chaos.monitor import MARK
from stress.chaos.storage import enter_namespace, start_stores

OPTIONS: dict[str, tuple[Any, str]] = {
    "--restarts": (200, "minimum number of jobs"),
    "--faults": (10_000, "minimum number of injected faults"),
    "--share": (0.4, "fraction of shard requests that get a fault"),
    "--parquet": (0.4, "fraction of runs whose data are Parquet files, read where they are"),
    "--documents": (6_000, "number of documents in the largest stream of a run"),
    "--wipe": (0.5, "probability that a cache is wiped before a job"),
    "--max-delay": (2.0, "maximum seconds from a job's first step to the signal that ends it"),
    "--jobs": (25, "maximum number of jobs in a run"),
    "--minutes": (1_000.0, "number of minutes after which no new job starts"),
    "--summary": ("", "JSON file to which the summary so far is written after each job"),
    "--seed": (0, "random seed"),
}


def main() -> int:
    args = make_parser(__doc__, OPTIONS).parse_args()
    enter_namespace("stress.chaos")
    os.environ.pop(MARK, None)
    return run_in_folder("chaos", lambda folder: _run(args, folder))


def _run(args: argparse.Namespace, folder: Path) -> Report:
    with start_stores() as stores:
        return Campaign(args, folder, stores).run()


if __name__ == "__main__":
    sys.exit(main())
