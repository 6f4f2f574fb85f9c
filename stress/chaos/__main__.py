"""A training job in a hostile world: from checkpoint to checkpoint, it must read exactly what an
undisturbed run reads.

    python -m stress.chaos --restarts 200 --faults 10000

    SeaweedFS ◄── fault proxy: a fifth of all requests ◄── 1 to 4 real ranks on 1 or 2 nodes,
                                                           0 to 3 workers each
                                                           SIGKILL or SIGTERM of a worker, a rank,
                                                           or all, at random moments
    caches: wiped, cut, flipped, emptied, littered between the jobs; limited, or not

Each campaign is a run (a packing, a mixture, a shuffle, finite or endless) that job after job
continues from the last checkpoint, each on another world. Every rank writes a hash of each row. A
job must leave nothing: no process, nothing in /dev/shm, and, once the next one has started, no lock
and no part of a file. The exit status is 1 for any row that was lost, repeated or changed between
checkpoints, any job that hung, anything left over, and any error that is neither cloudload's nor
that of a broken connection between ranks. Prints a line for each job, and a summary as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from stress.chaos.campaigns import Campaigns
from stress.chaos.family import MARK
from tests.support.fault_proxy import start_fault_proxy
from tests.support.servers import start_s3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--restarts", type=int, default=200, help="jobs, at least")
    parser.add_argument("--faults", type=int, default=10_000, help="injected faults, at least")
    parser.add_argument("--share", type=float, default=0.2, help="of all requests that fail")
    parser.add_argument("--documents", type=int, default=6_000, help="of each campaign")
    parser.add_argument(
        "--wipe", type=float, default=0.4, help="share of the caches that are wiped before a job"
    )
    parser.add_argument(
        "--pause", type=float, default=2.0, help="seconds of a job's work before its end, at most"
    )
    parser.add_argument("--jobs", type=int, default=25, help="of each campaign, at most")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.environ.pop(MARK, None)
    with (
        tempfile.TemporaryDirectory(
            prefix="cloudload-chaos-", ignore_cleanup_errors=True
        ) as folder,
        start_s3() as server,
        start_fault_proxy(server.endpoint) as proxy,
    ):
        os.environ.update(server.environment())
        summary = Campaigns(args, Path(folder), server, proxy).run()
    print(json.dumps(summary, indent=2))
    return 1 if summary["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
