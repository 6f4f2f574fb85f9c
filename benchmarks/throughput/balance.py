"""Measure what the option `balance` costs a worker: tokens per CPU second without and with it.

    python -m benchmarks.throughput.balance --corpus FOLDER --tokenizer FOLDER

    off    the worker reads its lanes, in order
    on     it finds the pieces of all rows of its machine, divides the rows by their work, and reads
           the documents of its rows, which for some documents other ranks also do

Each run is a new process, which reads as one of 8 ranks of a machine, without worker processes. The
first batches are not counted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.documents import add_documents, read_documents, repeat, write_dataset
from benchmarks.figures import Row
from benchmarks.harness import ONE_THREAD, Message, run_child
from benchmarks.options import Options
from cloudload import CloudLoader, count_tokens

RANKS, BATCH_SIZE = 8, 4
CASES = [("concat", 2_048), ("concat", 8_192), ("concat", 32_768), ("best_fit", 8_192)]


def main() -> None:
    options = Options(__doc__)
    add_documents(options)
    options.add_amount("dataset", 200.0, 2.0, "megabytes of the dataset, which repeats the texts")
    options.add_amount("seconds", 5.0, 0.2, "CPU seconds per run")
    options.add_amount("repeats", 5, 1, "number of runs per side")
    options.run(measure)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Run both sides in turns, and yield a table for each tokenizer."""
    texts = [each["text"] for each in repeat(read_documents(args), 1e6 * args.dataset)]
    data = write_dataset(texts, folder / "mds", shard_bytes=1 << 24, compression=None)
    for tokenizer in args.tokenizer:
        count_tokens(data, tokenizer=str(tokenizer), processes=1, progress=False)
        rows: list[Row] = []
        for packing, seq_len in CASES:
            speeds: dict[str, list[float]] = {"off": [], "on": []}
            for _ in range(args.repeats):
                for side, found in speeds.items():
                    answer = run_child(
                        time_side,
                        ONE_THREAD,
                        data=data,
                        tokenizer=str(tokenizer),
                        options={"packing": packing, "seq_len": seq_len},
                        balance="attention" if side == "on" else None,
                        seconds=args.seconds,
                    )
                    found.append(answer["tokens"] / answer["seconds"] / 1e6)
            row: Row = {"packing": packing, "seq_len": seq_len}
            row |= {f"{side}, M tokens per CPU s": found for side, found in speeds.items()}
            row["on / off"] = median(speeds["on"]) / median(speeds["off"])
            rows.append(row)
        yield f"balance: {tokenizer.name}", rows


def time_side(
    data: str, tokenizer: str, options: Message, balance: str | None, seconds: float
) -> Message:
    """Read as rank 0 for a number of CPU seconds, and return these and the number of tokens."""
    loader = CloudLoader(
        data,
        tokenizer=tokenizer,
        **options,
        balance=balance,  # type: ignore[arg-type]
        batch_size=BATCH_SIZE,
        num_workers=0,
        dp_rank=0,
        dp_world_size=RANKS,
    )
    with loader:
        batches = iter(loader)
        next(batches)
        next(batches)
        began, tokens = time.process_time(), 0
        while (spent := time.process_time() - began) < seconds:
            tokens += next(batches)["input_ids"].numel()
        return {"tokens": tokens, "seconds": spent}


if __name__ == "__main__":
    main()
