"""Measure how much slower a finite run is in its tail than in its steady state.

    python -m benchmarks.epoch_end --versions FOLDER OTHER

A version is a checkout of this repository. The versions take turns. In each turn, a new process
reads one epoch from local shards as fast as possible. The tail begins with the first batch that
contains a row of the tail. The steady state is the second and third quarters of the batches before
the tail.

    lost          seconds from the start of the tail to the end of the run, minus the seconds that
                  the same number of tokens takes in the steady state
    longest wait  the maximum seconds that a batch of the tail takes

CPU seconds include the training process and its workers.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.documents import add_documents, read_or_generate, write_dataset
from benchmarks.figures import Row, print_tables
from benchmarks.harness import ROOT, Options, note

CASES: dict[str, dict[str, Any]] = {
    "1 worker": {"num_workers": 1},
    "2 workers": {"num_workers": 2},
    "2 workers, best_fit": {"num_workers": 2, "packing": "best_fit"},
    "2 workers, spawned": {"num_workers": 2, "start_method": "spawn"},
}


def main() -> None:
    options = Options(__doc__)
    add_documents(options, megabytes=48.0)
    options.add_amount("repeats", 5, 1, "number of runs of each version in each case")
    options.add_argument("--versions", nargs="+", type=Path, default=[ROOT], metavar="FOLDER")
    options.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    args = options.parse()
    with tempfile.TemporaryDirectory(prefix="cloudload-bench-") as folder:
        texts = read_or_generate(args.corpus, 1e6 * args.megabytes)
        data = {
            "data": write_dataset(texts, Path(folder, "mds")),
            "tokenizer": str(args.tokenizer[0]),
            "seq_len": 256 if args.quick else 2048,
            "batch_size": 4 if args.quick else 16,
        }
        rows = [
            row
            for case in args.cases
            for row in measure_case(case, {**data, **CASES[case]}, args.versions, args.repeats)
        ]
    print_tables([("the end of an epoch", rows)], as_json=args.json)


def measure_case(
    case: str, request: dict[str, Any], versions: list[Path], repeats: int
) -> list[Row]:
    """Run every version `repeats` times, in turns, and return a row for each version."""
    found: dict[Path, list[dict[str, float]]] = {version: [] for version in versions}
    for repeat in range(repeats):
        for version, figures in found.items():
            figures.append(run(request, version))
            note(f"{case}, {version}, run {repeat + 1} of {repeats}: {figures[-1]}")
    return [
        {"case": case, "version": version.resolve().name}
        | {name: [each[name] for each in figures] for name in figures[0]}
        for version, figures in found.items()
    ]


def run(request: dict[str, Any], version: Path) -> dict[str, float]:
    """Read one run with the cloudload in the folder `version`, and return the tail's figures."""
    side = Path(__file__).with_name("epoch_end_side.py")
    done = subprocess.run(
        [sys.executable, str(side), json.dumps(request)],
        env=os.environ | {"PYTHONPATH": str(version.resolve())},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result = json.loads(done.stdout)
    times: list[tuple[float, float, int]] = result["times"]
    first_of_tail = result["tail"]
    quarter = first_of_tail // 4
    steady = [
        (times[3 * quarter][place] - times[quarter][place])
        / (times[3 * quarter][2] - times[quarter][2])
        for place in (0, 1)
    ]
    before, after = times[first_of_tail], times[-1]
    tokens = after[2] - before[2]
    waits = [end[0] - start[0] for start, end in itertools.pairwise(times)]
    return {
        "tail, % of tokens": 100 * tokens / after[2],
        "steady, Mtok/s": 1e-6 / steady[0],
        "lost, s": after[0] - before[0] - tokens * steady[0],
        "lost, CPU s": after[1] - before[1] - tokens * steady[1],
        "lost, % of the run": 100 * (after[0] - before[0] - tokens * steady[0]) / after[0],
        "longest wait, s": max(waits[first_of_tail:]),
    }


if __name__ == "__main__":
    main()
