"""Print how each fault is reported to a user, and how soon, as a Markdown table per section.

    python -m stress.fault_table [--only store|cache|processes|data|state ...] [NAME ...]

store        failures of a store, with the default `Retry()`. Takes about 3 minutes, because
             transient failures are retried for 120 s.
cache        damaged caches and shards, and full disks
processes    every way in which a job of real processes can end, and what it leaves behind. Takes
             about 5 minutes.
data         hostile and damaged datasets
state        damaged states

Without NAMEs, measures all faults. The stores are servers on this machine. The section `cache`
needs root to mount small file systems.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from stress.campaign import make_parser
from stress.fault_table import cache, data, processes, store
from stress.fault_table.reads import measure_reads
from testkit import ROOT

READS = {"cache": cache.CASES, "data": data.DATA, "state": data.STATE}
SECTIONS = ("store", "cache", "processes", "data", "state")


def main() -> None:
    """Measure the chosen sections, and print a table for each."""
    parser = make_parser(__doc__, {})
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="faults to measure (default: all faults of the chosen sections)",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=SECTIONS,
        help="measure only this section. May be given several times",
    )
    args = parser.parse_args()
    sections = args.only or SECTIONS
    if len(sections) == 1:
        print(measure(sections[0], args.names), flush=True)
        return
    # each section runs in a new process, because clients keep the server of an earlier section
    for section in sections:
        command = [sys.executable, "-m", "stress.fault_table", "--only", section, *args.names]
        subprocess.run(command, cwd=ROOT, check=True)


def measure(section: str, names: Sequence[str]) -> str:
    """Measure the named faults of a section, or all if there are no names, and return the table."""
    if section == "store":
        return store.measure(names)
    if section == "processes":
        return processes.measure(names)
    with tempfile.TemporaryDirectory(prefix="cloudload-faults-") as folder:
        return measure_reads(section, READS[section], names, Path(folder))


if __name__ == "__main__":
    main()
