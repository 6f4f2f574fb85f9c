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

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from stress.campaign import make_parser, run_in_folder
from stress.conversions.campaign import MODES, Campaign
from testkit.fault_proxy import start_fault_proxy
from testkit.servers import start_s3

OPTIONS = {
    "--kills": (120, "total number of processes to kill"),
    "--pause": (2.0, "maximum seconds from a stored or deleted object to the next kill"),
    "--seed": (0, "random seed"),
}


def main() -> int:
    parser, modes = make_parser(__doc__, OPTIONS), list(MODES)
    if importlib.util.find_spec("ray") is None:
        print(
            "The mode ray is skipped, because the package ray is not installed. Install it: "
            "pip install ray",
            flush=True,
        )
        modes.remove("ray")
    parser.add_argument(
        "--modes",
        nargs="+",
        default=modes,
        choices=list(MODES),
        help="modes to run (default: all, but ray only if it is installed)",
    )
    args = parser.parse_args()

    def run(folder: Path) -> dict[str, Any]:
        with start_s3() as server, start_fault_proxy(server.endpoint) as proxy:
            os.environ.update(server.environment())
            return Campaign(args, folder, server, proxy).run()

    return run_in_folder("conversions", run)


if __name__ == "__main__":
    sys.exit(main())
