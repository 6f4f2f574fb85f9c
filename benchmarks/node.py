"""Measure the CPU time and memory that a node's loaders need at a given training speed.

    python -m benchmarks.node --ranks 8 --name llama3
    python -m benchmarks.node --ranks 8 --name llama3 --num-workers 4

Each rank is a process that takes batches as often as a training loop with --tokens-per-s would.
Memory is the proportional set size (PSS), in MB of 10^6 bytes. PSS divides a shared page among the
processes that share it. CPU time is counted after the first batch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.documents import beside, find_tokenizers, lay_out
from benchmarks.figures import Row, print_tables
from benchmarks.harness import ONE_THREAD, ROOT, Options, cpu_of, descendants, note
from benchmarks.run import BATCH_SIZE, SEQ_LEN


def main() -> None:
    options = Options(__doc__)
    options.add_argument("--corpus", type=Path, default=beside("corpus"), metavar="FOLDER")
    options.add_argument("--tokenizers", type=Path, default=beside("tokenizers"), metavar="FOLDER")
    options.add_argument("--name", default="llama3", help="tokenizer name (default: llama3)")
    options.add_argument(
        "--num-workers", type=int, help="workers per rank (default: CloudLoader's default)"
    )
    options.add_amount("ranks", 8, 2, "number of ranks on the node")
    options.add_amount(
        "tokens-per-s", 100_000.0, 100_000.0, "training speed of each rank, in tokens/s"
    )
    options.add_amount("seconds", 60.0, 2.0, "duration of the measurement, in seconds")
    options.add_amount("megabytes", 40.0, 0.5, "maximum megabytes of text")
    options.add_argument("--request", type=json.loads, help=argparse.SUPPRESS)
    args = options.parse()
    if args.request:
        print(json.dumps(read(**args.request)))
        return
    with tempfile.TemporaryDirectory(dir=ROOT, ignore_cleanup_errors=True) as folder:
        print_tables(measure(args, Path(folder)), as_json=args.json)


def measure(args: argparse.Namespace, work: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield a table with a row for each rank, and a table for the node."""
    documents = lay_out(args.corpus, work / "data", 1e6 * args.megabytes)
    [tokenizer] = find_tokenizers(args.tokenizers, [args.name], work)
    request = {
        "data": str(documents.folder / "mds"),
        "tokenizer": str(tokenizer),
        "cache": str(work / "cache"),
        "num_workers": args.num_workers,
        "tokens_per_s": args.tokens_per_s,
        "seconds": args.seconds,
        "size": args.ranks,
    }
    # fill the cache with shards and the result of checking the tokenizer, as an earlier run would
    start({**request, "rank": 0, "size": 1, "seconds": 0.0}).communicate()
    ranks = [start({**request, "rank": rank}) for rank in range(args.ranks)]
    found = []
    for rank in ranks:
        output, _ = rank.communicate()
        if rank.returncode:
            raise SystemExit(f"a rank exited with status {rank.returncode}. See its error above")
        found.append(json.loads(output))
        note(f"  {found[-1]}")
    yield "ranks", [{"rank": number, **row} for number, row in enumerate(found)]
    yield "node", [summarize(found)]


def start(request: dict[str, Any]) -> subprocess.Popen[str]:
    """Start a rank in a separate process."""
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.node", "--request", json.dumps(request)],
        cwd=ROOT,
        env=os.environ | ONE_THREAD | {"LOCAL_WORLD_SIZE": str(request["size"])},
        stdout=subprocess.PIPE,
        text=True,
    )


def summarize(ranks: list[dict[str, Any]]) -> Row:
    """Add up the ranks' cores and memory, average their CPU time, and find the longest wait."""
    workers = sum(rank["workers"] for rank in ranks)
    return {
        "processes per rank": 1 + workers / len(ranks),
        "PSS of all workers, MB": sum(rank["PSS of its workers, MB"] for rank in ranks),
        "PSS of all training processes, MB": sum(rank["PSS, MB"] for rank in ranks),
        "workers' CPU s per million tokens": sum(
            rank["workers' CPU s per million tokens"] for rank in ranks
        )
        / len(ranks),
        "cores of all workers": sum(rank["cores of its workers"] for rank in ranks),
        "waited, most, %": max(rank["waited, %"] for rank in ranks),
    }


# ---------------------------------------------------------------- a rank


def read(
    *,
    data: str,
    tokenizer: str,
    cache: str,
    num_workers: int | None,
    tokens_per_s: float,
    seconds: float,
    rank: int,
    size: int,
) -> Row:
    """Take batches as often as a training loop would, and measure this rank's processes."""
    from cloudload import CloudLoader

    with CloudLoader(
        data,
        tokenizer=tokenizer,
        seq_len=SEQ_LEN,
        batch_size=BATCH_SIZE,
        num_workers=num_workers,
        local=cache,
        dp_rank=rank,
        dp_world_size=size,
    ) as loader:
        batches = iter(loader)
        next(batches)
        workers = descendants(os.getpid())
        every_s = BATCH_SIZE * SEQ_LEN / tokens_per_s
        began, cpu, main_cpu = time.monotonic(), sum(map(cpu_of, workers)), time.process_time()
        tokens, waited_s, due = 0, 0.0, began
        while due < began + seconds:
            due += every_s
            time.sleep(max(0.0, due - time.monotonic()))
            asked = time.monotonic()
            tokens += next(batches)["input_ids"].numel()
            waited_s += time.monotonic() - asked
        wall = max(1e-9, time.monotonic() - began)
        cpu = sum(map(cpu_of, workers)) - cpu
        main_cpu = time.process_time() - main_cpu
        # a process that builds an order in the background may have exited
        workers = [pid for pid in workers if is_alive(pid)]
        return {
            "workers": len(workers),
            "PSS of its workers, MB": sum(map(pss_of, workers)),
            "PSS, MB": pss_of(os.getpid()),
            "workers' CPU s per million tokens": 1e6 * cpu / max(1, tokens),
            "training process's CPU s per million tokens": 1e6 * main_cpu / max(1, tokens),
            "cores of its workers": cpu / wall,
            "tokens per s": tokens / wall,
            "waited, %": 100 * waited_s / wall,
        }


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def pss_of(pid: int) -> float:
    """The proportional set size of a process, in MB of 10^6 bytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


if __name__ == "__main__":
    main()
