"""Measure the memory of a worker and of the training process during a long run.

    python -m benchmarks.memory --minutes 10

One worker reads the corpus repeatedly, as fast as it can. For each process, the table lists the
process's own memory (RssAnon and RssShmem) and its mapped files, such as shards (RssFile). The
kernel can reclaim the pages of mapped files at any time. All sizes are in MB of 2^20 bytes. Writes
MEMORY.md to --output.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.documents import beside, find_tokenizers, lay_out
from benchmarks.figures import Row, table
from benchmarks.harness import ROOT, Options, commit, hardware, note, shown_command
from benchmarks.run import BATCH_SIZE, SEQ_LEN
from cloudload import CloudLoader

MARKS = (1, 2, 5, 10, 20, 30, 60)
"""Minutes at which memory is measured, in addition to the end."""


def main() -> None:
    options = Options(__doc__, has_json=False)
    options.add_argument("--corpus", type=Path, default=beside("corpus"), metavar="FOLDER")
    options.add_argument("--tokenizers", type=Path, default=beside("tokenizers"), metavar="FOLDER")
    options.add_argument("--name", default="gpt2", help="tokenizer name (default: gpt2)")
    options.add_amount("minutes", 10.0, 0.05, "duration of the run, in minutes")
    options.add_amount("lanes", 960, 24, "number of lanes")
    options.add_amount("megabytes", 40.0, 0.5, "maximum megabytes of text")
    options.add_argument("--packing", default="concat")
    options.add_argument("--output", type=Path, default=ROOT / "benchmarks", metavar="FOLDER")
    args = options.parse()
    with TemporaryDirectory(dir=ROOT, ignore_cleanup_errors=True) as folder:
        text = table(list(measure(args, Path(folder))), {"minutes": "g"})
    facts = (
        f"{args.packing}, {args.name}, {args.lanes} lanes; {hardware()}; commit {commit()}; "
        f"{shown_command('benchmarks.memory')}"
    )
    print(text)
    (args.output / "MEMORY.md").write_text(f"# Memory of a long run\n\n{facts}\n\n{text}\n")


def measure(args: argparse.Namespace, work: Path) -> Iterator[Row]:
    """Run a loader, and yield the memory of both processes at each of `MARKS` and at the end."""
    documents = lay_out(args.corpus, work / "data", 1e6 * args.megabytes)
    [tokenizer] = find_tokenizers(args.tokenizers, [args.name], work)
    with CloudLoader(
        str(documents.folder / "mds"),
        tokenizer=str(tokenizer),
        seq_len=SEQ_LEN,
        batch_size=BATCH_SIZE,
        num_workers=1,
        num_lanes=args.lanes,
        packing=args.packing,
        local=work / "cache",
    ) as loader:
        marks = [*(mark for mark in MARKS if mark < args.minutes), args.minutes]
        started, tokens = time.monotonic(), 0
        for batch in loader:
            tokens += batch["input_ids"].numel()
            if time.monotonic() - started < 60 * marks[0]:
                continue
            [worker] = multiprocessing.active_children()
            own, mapped = memory_of(worker.pid)
            trainers_own, trainers_mapped = memory_of(None)
            row: Row = {
                "minutes": marks.pop(0),
                "tokens, million": tokens / 1e6,
                "worker's own, MB": own,
                "worker's mapped": mapped,
                "training process's own": trainers_own,
                "mapped": trainers_mapped,
            }
            note(f"{row}")
            yield row
            if not marks:
                return


def memory_of(pid: int | None) -> tuple[float, float]:
    """Return the MB (2^20 bytes) of a process's own memory and of its mapped files.

    `pid` None means this process.
    """
    fields = dict(
        line.split(":", 1)
        for line in Path("/proc", str(pid or "self"), "status").read_text().splitlines()
    )
    anonymous, shared, files = (
        int(fields[name].split()[0]) / 1024 for name in ("RssAnon", "RssShmem", "RssFile")
    )
    return anonymous + shared, files


if __name__ == "__main__":
    main()
