"""Measure the CPU time that each document rule adds to `cloudload check`.

    python -m benchmarks.throughput.check_rules --corpus FOLDER

Each round checks all shards once with each rule, once without rules, and once with all rules, in
one process. A rule's time is the median CPU time of its checks minus the median of the checks
without rules. The shards are compressed with zstd.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.documents import TOKENIZER, add_documents, read_documents, write_dataset
from benchmarks.figures import Row
from benchmarks.options import Options
from cloudload.tools.check.check import check_dataset
from cloudload.tools.check.document_rules import TEXT_RULES

NO_RULES, ALL_RULES = "none", "all"


def main() -> None:
    options = Options(__doc__)
    add_documents(options)
    options.add_amount("rounds", 9, 2, "number of checks with each rule")
    options.run(measure)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield the table of the rules."""
    yield "rules", measure_rules(write_dataset(read_documents(args), folder / "mds"), args.rounds)


def measure_rules(dataset: str, rounds: int) -> list[Row]:
    """Time checks of the dataset with each rule, without rules, and with all rules."""
    names = (NO_RULES, *TEXT_RULES, ALL_RULES)
    times: dict[str, list[float]] = {name: [] for name in names}
    megabytes = 0.0
    for _ in range(rounds):
        for name in names:
            began = time.process_time()
            report = check_dataset(
                dataset, rules=name, tokenizer=TOKENIZER, processes=1, progress=False
            )
            times[name].append(time.process_time() - began)
            megabytes = report.raw_bytes / 1e6
    base = median(times[NO_RULES])
    return [_describe(name, median(times[name]), base, megabytes) for name in names]


def _describe(name: str, total_s: float, base_s: float, megabytes: float) -> Row:
    own_s = total_s if name == NO_RULES else total_s - base_s
    return {
        "rule": name,
        "CPU ms": round(1e3 * own_s, 1),
        "MB per CPU s": round(megabytes / max(own_s, 1e-4)),
        "of a check without rules, %": round(100 * own_s / base_s, 1),
    }


if __name__ == "__main__":
    main()
