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

A campaign is a finite or endless run with one packing, mixture and shuffle. A sequence of jobs,
each with a different world, continues the run from its last checkpoint. The datasets may have token
lengths, and a job may use them or not. If it uses them, the number of lanes need not be a multiple
of the number of ranks. Every rank writes a hash of each row.

A job must leave no process, nothing in /dev/shm, and no lock or part file. If nothing was killed,
this is checked when the job has ended, and otherwise when the next job has started. A job hangs if
it writes no row for its ranks' timeout (60 or 150 s) plus 30 s, not counting the time in which its
processes wait for a core. If a rank is killed while it connects, the others may wait for
five minutes, because gloo does. The exit status is 1 in any of these cases:

- a row was lost, repeated, or changed between checkpoints
- a job hung, left something behind, or failed because of a short stop
- an error is neither cloudload's nor caused by a broken connection between ranks

Prints a line for each job, and at the end a summary as JSON. `--summary` also writes the summary so
far to a file after each job.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from stress.campaign import run_in_folder
from stress.chaos.campaigns import Campaigns
from stress.chaos.disks import enter_namespace
from stress.chaos.family import MARK
from stress.chaos.stores import start_stores
from stress.chaos.together import run_together


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--restarts", type=int, default=200, help="minimum number of jobs (default: 200)"
    )
    parser.add_argument(
        "--faults",
        type=int,
        default=10_000,
        help="minimum number of injected faults (default: 10000)",
    )
    parser.add_argument(
        "--share",
        type=float,
        default=0.4,
        help="fraction of shard requests that get a fault (default: 0.4)",
    )
    parser.add_argument(
        "--documents",
        type=int,
        default=6_000,
        help="number of documents in the largest stream of a campaign (default: 6000)",
    )
    parser.add_argument(
        "--wipe",
        type=float,
        default=0.5,
        help="probability that a cache is wiped before a job (default: 0.5)",
    )
    parser.add_argument(
        "--pause",
        type=float,
        default=2.0,
        help="maximum seconds from a job's first step to the signal that ends it (default: 2)",
    )
    parser.add_argument(
        "--jobs", type=int, default=25, help="maximum number of jobs in a campaign (default: 25)"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=1_000.0,
        help="number of minutes after which no new job starts (default: 1000)",
    )
    parser.add_argument(
        "--together",
        type=int,
        default=1,
        help="number of campaigns to run at the same time, each on its own stores (default: 1)",
    )
    parser.add_argument(
        "--summary", help="JSON file to which the summary so far is written after each job"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    args = parser.parse_args()
    if args.together > 1:
        return run_together("stress.chaos", sys.argv[1:], args)
    enter_namespace("stress.chaos")
    os.environ.pop(MARK, None)
    return run_in_folder("chaos", lambda folder: _run(args, folder))


def _run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    with start_stores() as stores:
        return Campaigns(args, folder, stores).run()


if __name__ == "__main__":
    sys.exit(main())
