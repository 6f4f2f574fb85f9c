"""Measure the memory of a worker and of the training process during a long run.

    python -m benchmarks.scale.memory --minutes 10

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

from benchmarks.documents import add_documents, read_documents, write_dataset
from benchmarks.figures import Row, facts, table
from benchmarks.harness import memory_of, note
from benchmarks.options import Options, temporary_folder
from cloudload import CloudLoader

MARKS = (1, 2, 5, 10, 20, 30, 60)
"""Minutes at which memory is measured, in addition to the end."""
SEQ_LEN, BATCH_SIZE, SHARD_BYTES = 2048, 8, 4 << 20


def main() -> None:
    options = Options(__doc__, has_json=False)
    add_documents(options, 40.0)
    options.add_output()
    options.add_amount("minutes", 10.0, 0.05, "duration of the run, in minutes")
    options.add_amount("lanes", 960, 24, "number of lanes")
    options.add_argument("--packing", default="concat", help="default: %(default)s")
    args = options.parse()
    with temporary_folder() as folder:
        text = table(list(measure(args, folder)), {"minutes": "g"})
    found = facts()
    conditions = [f"{args.packing}, {args.tokenizer[0].name}, {args.lanes} lanes"]
    conditions += [found[name] for name in ("hardware", "cloudload", "date", "command")]
    print(text)
    (args.output / "MEMORY.md").write_text(
        f"# Memory of a long run\n\n{'; '.join(conditions)}\n\n{text}\n"
    )


def measure(args: argparse.Namespace, work: Path) -> Iterator[Row]:
    """Run a loader, and yield the memory of both processes at each of `MARKS` and at the end."""
    texts = read_documents(args)
    data = write_dataset(texts, work / "mds", compression=None, shard_bytes=SHARD_BYTES)
    with CloudLoader(
        data,
        tokenizer=str(args.tokenizer[0]),
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
            own, mapped = split_memory(worker.pid)
            trainers_own, trainers_mapped = split_memory(None)
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


def split_memory(pid: int | None) -> tuple[float, float]:
    """Return the MB (2^20 bytes) of a process's own memory and of its mapped files.

    `pid` None means this process.
    """
    anonymous, shared, files = (
        memory_of(field, pid) / (1 << 20) for field in ("RssAnon", "RssShmem", "RssFile")
    )
    return anonymous + shared, files


if __name__ == "__main__":
    main()
