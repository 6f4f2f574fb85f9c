"""Kill training jobs under injected faults, and compare every row with an undisturbed run.

    python -m stress.chaos --restarts 200 --faults 10000

    SeaweedFS ◄── fault proxy: a fault for a fifth of ◄── 1 to 4 real ranks on 1 or 2 nodes,
                  the requests for shards, and for a      0 to 3 workers each
                  tenth of the others                     SIGKILL of a worker, a rank, all ranks or
                                                          all processes, or SIGTERM of a rank,
                                                          at random moments
    caches: wiped, or files deleted, cut, flipped, extended, littered between jobs; limited or not

A campaign is a run (a packing, a mixture, a shuffle, finite or endless). A sequence of jobs, each
with a different world, continues it from the last checkpoint. Every rank writes a hash of each row.
A job must leave no process, nothing in /dev/shm, and, once the next job has started, no lock file
and no part file. The exit status is 1 if a row was lost, repeated or changed between checkpoints,
if a job hung or left something behind, or if an error is neither cloudload's nor caused by a broken
connection between ranks. Prints a line for each job, and a summary as JSON.
"""

from __future__ import annotations

import argparse
import os
import sys

from stress.campaign import run_on_s3
from stress.chaos.campaigns import Campaigns
from stress.chaos.family import MARK


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--restarts", type=int, default=200, help="minimum number of jobs")
    parser.add_argument(
        "--faults", type=int, default=10_000, help="minimum number of injected faults"
    )
    parser.add_argument(
        "--share", type=float, default=0.2, help="share of shard requests with a fault"
    )
    parser.add_argument(
        "--documents", type=int, default=6_000, help="documents in a stream, at most"
    )
    parser.add_argument(
        "--wipe", type=float, default=0.4, help="share of caches that are wiped before a job"
    )
    parser.add_argument(
        "--pause",
        type=float,
        default=2.0,
        help="maximum seconds from a job's first step to its end",
    )
    parser.add_argument("--jobs", type=int, default=25, help="maximum number of jobs in a campaign")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices")
    args = parser.parse_args()
    os.environ.pop(MARK, None)
    return run_on_s3("chaos", lambda *store: Campaigns(args, *store).run())


if __name__ == "__main__":
    sys.exit(main())
