"""Run cloudload's main use case from end to end, on this machine: `make demo`.

    sources and texts of this Python environment
      ─► MDS shards on a local S3 server ─► a small GPT, trained from s3://

    reference   2 ranks   ───────────────────────────────────────────►
    piece 1     2 ranks   ──────────┬──────✗ SIGKILL
    piece 2     1 rank              └────────────┐
    piece 3     4 ranks                          └────────────────────►

Every rank records a hash of every row that it receives. At the end, each row of the three pieces is
compared with the same row of the reference. The exit status is 1 if any row differs. Writes
summary.png, summary.json and the record of each run to demo-output.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from examples.demo.compare import compare, measure_state
from examples.demo.corpus import collect_corpus, convert
from examples.demo.plan import FULL, QUICK, describe, plan_runs
from examples.demo.report import draw, report
from examples.demo.torchrun import train
from testkit import ROOT
from testkit.servers import start_s3

BUCKET = "cloudload"
MOST_CORPUS_BYTES = 30_000_000


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Convert a corpus, train on it, kill the run, resume it on other numbers of "
        "ranks, and compare the rows with those of an uninterrupted run. Takes minutes."
    )
    parser.add_argument("--quick", action="store_true", help="use fewer steps and less text")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "demo-output",
        help="folder for the summary and logs, which is emptied first (default: demo-output)",
    )
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    length = QUICK if args.quick else FULL
    output = args.output.resolve()
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix="cloudload-demo-", ignore_cleanup_errors=True
    ) as temporary:
        work = Path(temporary)
        say(1, "Collecting source and text files of this Python environment as a corpus")
        collect_corpus(work / "corpus.jsonl", MOST_CORPUS_BYTES // (10 if args.quick else 1))
        with start_s3(BUCKET) as server:
            os.environ.update(server.environment())
            data = f"s3://{BUCKET}/corpus"
            say(2, f"Converting to MDS shards in {data}, on an S3 server at {server.endpoint}")
            convert(work / "corpus.jsonl", data)
            runs = plan_runs(length)
            for number, run in enumerate(runs, 3):
                say(number, describe(run, length))
                train(run, data, length, work, output / run.name.replace(" ", "-"))
        reference, *pieces = runs
        say(7, "Comparing the rows that each run trained on")
        summary = compare(reference, pieces, length)
        summary["state_bytes"] = measure_state(work / reference.checkpoints)
    draw(reference, pieces, output / "summary.png")
    summary["seconds"] = round(time.monotonic() - started, 1)
    (output / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    report(summary, output)
    return 0 if summary["identical"] else 1


def say(number: int, text: str) -> None:
    """Print the heading of a stage."""
    print(f"\n[{number}/7] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
