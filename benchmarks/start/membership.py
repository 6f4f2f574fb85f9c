"""Measure how long the elastic example takes to continue after one of its four ranks is killed.

    python -m benchmarks.start.membership --rounds 5

The job trains a tiny model on 2,000 documents, with one worker process per rank. The time is the
seconds from the SIGKILL to the line that reports the first step on three ranks.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.documents import TOKENIZER
from benchmarks.figures import Row
from benchmarks.harness import ROOT
from benchmarks.options import Options
from cloudload.tools.count import count_tokens
from testkit.corpora import random_documents, write_mds

VICTIM, KILL_AFTER = "rank-2", "step 20 "


def main() -> None:
    options = Options(__doc__)
    options.add_amount("rounds", 5, 1, "number of kills")
    options.run(measure)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield the table of the seconds from a kill to the next step."""
    data = write_mds(folder / "data", random_documents(3, 2_000), shard_bytes=100_000)
    count_tokens(data, tokenizer=str(TOKENIZER), progress=False)
    seconds = [time_kill(data, folder / "cache") for _ in range(args.rounds)]
    yield "membership", [{"killed": VICTIM, "s to the next step": seconds}]


def time_kill(data: str, cache: Path) -> float:
    """Run the example, kill a rank, and return the seconds to the first step on three ranks."""
    options = ["--steps", "100000", "--workers", "1", "--seq-len", "64", "--width", "32"]
    command = [sys.executable, str(ROOT / "examples" / "train_elastic.py"), data, *options]
    job = subprocess.Popen(
        [*command, "--cache", str(cache)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    pids, killed_at = {}, 0.0
    assert job.stdout is not None
    try:
        for line in job.stdout:
            if match := re.match(r"(rank-\d) is process (\d+)", line):
                pids[match[1]] = int(match[2])
            elif line.startswith(KILL_AFTER):
                killed_at = time.monotonic()
                os.kill(pids[VICTIM], signal.SIGKILL)
            elif killed_at and line.endswith("3 ranks\n"):
                return time.monotonic() - killed_at
        raise RuntimeError(
            f"examples/train_elastic.py exited with status {job.wait()} before a step on three "
            "ranks. Run it by itself to see its error"
        )
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


if __name__ == "__main__":
    main()
