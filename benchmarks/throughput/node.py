"""Measure the CPU time and memory that a node's loaders need at a given training speed.

    python -m benchmarks.throughput.node --ranks 8 --tokenizer FOLDER
    python -m benchmarks.throughput.node --ranks 8 --tokenizer FOLDER --num-workers 4

Each rank is a process that takes batches as often as a training loop with --tokens-per-s would.
Memory is the proportional set size (PSS), in MB of 10^6 bytes. PSS divides a shared page among the
processes that share it. CPU time is counted after the first batch.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.documents import add_documents, read_documents, write_dataset
from benchmarks.figures import Row
from benchmarks.harness import ONE_THREAD, Child, cpu_of, descendants, memory_of, note, run_child
from benchmarks.options import Options

SEQ_LEN, BATCH_SIZE, SHARD_BYTES = 2048, 8, 4 << 20


def main() -> None:
    options = Options(__doc__)
    add_documents(options, 40.0)
    options.add_argument(
        "--num-workers", type=int, help="workers per rank (default: CloudLoader's default)"
    )
    options.add_amount("ranks", 8, 2, "number of ranks on the node")
    options.add_amount(
        "tokens-per-s", 100_000.0, 100_000.0, "training speed of each rank, in tokens/s"
    )
    options.add_amount("seconds", 60.0, 2.0, "duration of the measurement, in seconds")
    options.run(measure)


def measure(args: argparse.Namespace, work: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield a table with a row for each rank, and a table for the node."""
    texts = read_documents(args)
    data = write_dataset(texts, work / "mds", compression=None, shard_bytes=SHARD_BYTES)
    request: dict[str, Any] = {
        "data": data,
        "tokenizer": str(args.tokenizer[0]),
        "cache": str(work / "cache"),
        "num_workers": args.num_workers,
        "tokens_per_s": args.tokens_per_s,
    }
    # fill the cache with shards and the result of checking the tokenizer, as an earlier run would
    alone = ONE_THREAD | {"LOCAL_WORLD_SIZE": "1"}
    run_child(read, alone, **request, seconds=0.0, rank=0, size=1)
    variables = ONE_THREAD | {"LOCAL_WORLD_SIZE": str(args.ranks)}
    request |= {"seconds": args.seconds, "size": args.ranks}
    ranks = [Child(read, variables, **request, rank=rank) for rank in range(args.ranks)]
    found = []
    for rank in ranks:
        with rank:
            found.append(rank.answer())
        note(f"  {found[-1]}")
    yield "ranks", [{"rank": number, **row} for number, row in enumerate(found)]
    yield "node", [summarize(found)]


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
        workers = [pid for pid in workers if Path(f"/proc/{pid}").exists()]
        return {
            "workers": len(workers),
            "PSS of its workers, MB": sum(memory_of("Pss", pid) for pid in workers) / 1e6,
            "PSS, MB": memory_of("Pss") / 1e6,
            "workers' CPU s per million tokens": 1e6 * cpu / max(1, tokens),
            "training process's CPU s per million tokens": 1e6 * main_cpu / max(1, tokens),
            "cores of its workers": cpu / wall,
            "tokens per s": tokens / wall,
            "waited, %": 100 * waited_s / wall,
        }


if __name__ == "__main__":
    main()
