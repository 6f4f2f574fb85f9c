"""Measure how long the elastic example takes to continue after one of its four ranks is killed.

    python -m benchmarks.membership --rounds 5

The job trains a tiny model on 2,000 documents, with one worker process per rank. The time is the
seconds from the SIGKILL to the line that reports the first step on three ranks.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cloudload.tools.count import count_tokens
from testkit.corpora import random_documents, write_mds

ROOT = Path(__file__).parent.parent
TOKENIZER = str(ROOT / "examples" / "tokenizer")
VICTIM, KILL_AFTER = "rank-2", "step 20 "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        data = write_mds(Path(folder, "data"), random_documents(3, 2_000), shard_bytes=100_000)
        count_tokens(data, tokenizer=TOKENIZER, progress=False)
        seconds = [measure(data, Path(folder, "cache")) for _ in range(rounds)]
    print(
        f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f}) from "
        f"the kill to the next step, {rounds} rounds, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}"
    )


def measure(data: str, cache: Path) -> float:
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
