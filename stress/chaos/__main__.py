"""Kill training jobs under injected faults, and compare every row with an undisturbed run.

    python -m stress.chaos --restarts 200 --faults 10000

    SeaweedFS, fake-gcs ◄── fault proxy: a fault for two ◄── 1 to 9 real ranks on 1 to 3 nodes,
                            of five requests for shards,     0 to 3 workers each, by fork, spawn,
                            and for a quarter of the         or forkserver
                            others
    processes    SIGKILL of a worker, a rank, all ranks or all processes, or of a rank that connects
                 to the others; SIGTERM of a rank; SIGSTOP of a rank, a worker, all of them or the
                 store, and SIGCONT after seconds or minutes, before or after the end
    caches       wiped, or files deleted, cut, flipped, extended, littered between jobs; limited
    disks        file systems for caches, small from the start or full in the middle of a job, of
                 bytes or of inodes, if this user may mount (root, or user namespaces)

A campaign is a run (a packing, a mixture, a shuffle, finite or endless). A sequence of jobs, each
with a different world, continues it from the last checkpoint. Its datasets have token lengths from
the start, never, or once its jobs have learned them, and each job may use them or not. If it does,
its ranks need not divide the lanes. Every rank writes a hash of each row.

A job must leave no process, nothing in /dev/shm, and no lock file and no part file: once it has
ended, if nothing was killed, and otherwise once the next job has started. It hangs if it writes no
row for 30 s more than its ranks wait for each other (60 or 150 s), less the time in which its
processes wait for a core. The exit status is 1 if a row was lost, repeated or changed between
checkpoints, if a job hung, left something behind, or failed because of a short stop, if learned
lengths are not those of a count, or if an error is neither cloudload's nor caused by a broken
connection between ranks.
Prints a line for each job, and a summary as JSON, which `--summary` also writes to a file after
each job.
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
    parser.add_argument("--restarts", type=int, default=200, help="minimum number of jobs")
    parser.add_argument(
        "--faults", type=int, default=10_000, help="minimum number of injected faults"
    )
    parser.add_argument(
        "--share", type=float, default=0.4, help="share of shard requests with a fault"
    )
    parser.add_argument(
        "--documents", type=int, default=6_000, help="documents in a stream, at most"
    )
    parser.add_argument(
        "--wipe", type=float, default=0.5, help="share of caches that are wiped before a job"
    )
    parser.add_argument(
        "--pause",
        type=float,
        default=2.0,
        help="maximum seconds from a job's first step to its end",
    )
    parser.add_argument("--jobs", type=int, default=25, help="maximum number of jobs in a campaign")
    parser.add_argument(
        "--minutes", type=float, default=1_000.0, help="start no job after this time"
    )
    parser.add_argument(
        "--together",
        type=int,
        default=1,
        help="number of campaigns that run at the same time, each on its own stores",
    )
    parser.add_argument("--summary", help="file of the summary so far, written after each job")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices")
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
