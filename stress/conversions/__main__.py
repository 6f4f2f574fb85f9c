"""Kill conversions at random until they finish, and compare their output with undisturbed output.

    python -m stress.conversions --kills 120

    SeaweedFS ◄── in every second run, a fault proxy   ◄── 1, 2 or 5 processes, 7 workers of an
    input and     that fails a tenth of the requests       array, executors that run segments last
    output                                                 first or twice at once, or Ray on 2 nodes

The input is about 60 segments of JSON Lines (plain, gzip and zstd) and Parquet, and contains bad
records. Each conversion divides its documents into two splits, and writes rejects. Processes
receive SIGKILL at random moments while they store objects. The victim is a process that this
program started, a worker of such a process, or, with Ray, the raylet of a node, which is then
replaced. Killed processes are restarted until the conversion is finished. Then every object of all
splits, and the rejects, must have the same SHA-256 as in a conversion in one process without kills
and faults. The exit status is 1 if an object differs, is missing, or is left over, or if a process
fails and no kill explains the failure.

Ray runs only if the package ray is installed. Prints a line for each conversion, and a summary as
JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys

from stress.campaign import run_on_s3
from stress.conversions.campaign import MODES, Campaign


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    add, modes = parser.add_argument, list(MODES)
    if importlib.util.find_spec("ray") is None:
        print(
            "The mode ray is skipped, because the package ray is not installed. Install it: "
            "pip install ray",
            flush=True,
        )
        modes.remove("ray")
    add("--kills", type=int, default=120, help="total number of processes to kill (default: 120)")
    add(
        "--modes",
        nargs="+",
        default=modes,
        choices=list(MODES),
        help="modes to run (default: all, but ray only if it is installed)",
    )
    add(
        "--pause",
        type=float,
        default=2.0,
        help="maximum seconds from a stored or deleted object to the next kill (default: 2)",
    )
    add("--seed", type=int, default=0, help="random seed (default: 0)")
    args = parser.parse_args()
    return run_on_s3("conversions", lambda *store: Campaign(args, *store).run())


if __name__ == "__main__":
    sys.exit(main())
