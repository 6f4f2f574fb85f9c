"""Measure what documents that are not selected cost: tokens per CPU second with a selection.

    python -m benchmarks.throughput.selected --corpus FOLDER --tokenizer FOLDER

    100%    all documents are read
     50%    one of two documents is read, as a file lists
      1%    one of a hundred documents is read

All sides read the same documents, so an epoch has the same tokens. The others have one character.
Each run is a new process without worker processes, whose shards are on disk. The sides take turns.
The first batches, before which the order of the epoch is built, are not counted.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.documents import add_documents, read_documents, repeat, write_dataset
from benchmarks.figures import Row
from benchmarks.harness import ONE_THREAD, Message, run_child
from benchmarks.options import Options
from cloudload import CloudLoader, Stream

SEQ_LEN, BATCH_SIZE, PACKINGS = 2_048, 4, ("concat", "best_fit")
SHARES = {"100%": 1, "50%": 2, "1%": 100}
"""For each side, the number of documents of which one is read."""


def main() -> None:
    options = Options(__doc__)
    add_documents(options)
    options.add_amount("dataset", 100.0, 4.0, "megabytes of the texts, which are repeated")
    options.add_amount(
        "characters", 2_000, 2_000, "number of characters of a text, of which the rest is left out"
    )
    options.add_amount("lanes", 96, 12, "number of lanes")
    options.add_amount("seconds", 3.0, 0.2, "CPU seconds per run")
    options.add_amount("repeats", 5, 1, "number of runs per side")
    options.run(measure)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Run all sides in turns, and yield a table for each packing."""
    pool = [text[: args.characters] for text in read_documents(args)]
    texts = [each["text"] for each in repeat(pool, 1e6 * args.dataset)]
    streams = {side: write_side(texts, folder / side, of) for side, of in SHARES.items()}
    for tokenizer in args.tokenizer:
        for packing in PACKINGS:
            speeds: dict[str, list[float]] = {side: [] for side in SHARES}
            tokens, passed = dict.fromkeys(SHARES, 0.0), dict.fromkeys(SHARES, 0.0)
            for _ in range(args.repeats):
                for side, found in speeds.items():
                    answer = run_child(
                        time_side,
                        ONE_THREAD,
                        stream=streams[side],
                        tokenizer=str(tokenizer),
                        options={"packing": packing, "num_lanes": args.lanes},
                        seconds=args.seconds,
                    )
                    found.append(answer["tokens"] / answer["seconds"] / 1e6)
                    tokens[side] += answer["tokens"]
                    passed[side] += answer["deselected"]
            row: Row = {"lanes": args.lanes, "documents": len(texts)}
            row |= {f"{side}, M tokens per CPU s": found for side, found in speeds.items()}
            row["ns per document passed at 1%"] = _cost_of_passing(speeds, tokens, passed)
            yield f"selected, {packing}: {tokenizer.name}", [row]


def _cost_of_passing(
    speeds: dict[str, list[float]], tokens: dict[str, float], passed: dict[str, float]
) -> float:
    """CPU nanoseconds for each document that is not selected, at 1%."""
    per_token = 1 / median(speeds["1%"]) - 1 / median(speeds["100%"])
    return 1e3 * per_token * tokens["1%"] / max(1, passed["1%"])


def write_side(texts: Sequence[str], folder: Path, of: int) -> Message:
    """Write a dataset in which one of `of` documents is a text. Returns the stream's options."""
    every = (text for real in texts for text in (real, *["-"] * (of - 1)))
    data = write_dataset(every, folder / "mds", shard_bytes=1 << 24, compression=None)
    if of == 1:
        return {"remote": data}
    sizes = [
        shard["samples"] for shard in json.loads((folder / "mds/index.json").read_text())["shards"]
    ]
    starts, path = np.cumsum([0, *sizes]), folder / "list.csv"
    real = np.arange(0, starts[-1], of)
    shards = np.searchsorted(starts, real, side="right") - 1
    np.savetxt(
        path,
        np.stack([shards, real - starts[shards]], axis=1),
        "%d",
        ",",
        header="shard,index",
        comments="",
    )
    return {"remote": data, "select": str(path)}


def time_side(stream: Message, tokenizer: str, options: Message, seconds: float) -> Message:
    """Read for a number of CPU seconds. Returns these, and the tokens and documents of that time.

    The documents are those that were passed, but are not selected.
    """
    loader = CloudLoader(
        Stream(**stream),
        tokenizer=tokenizer,
        **options,
        seq_len=SEQ_LEN,
        batch_size=BATCH_SIZE,
        num_workers=0,
    )
    with loader:
        batches = iter(loader)
        # each lane reads ahead at its first row, so a round of all lanes comes first
        for _ in range(-(-options["num_lanes"] // BATCH_SIZE)):
            next(batches)
        before, tokens, began = loader.stats().deselected, 0, time.process_time()
        while (spent := time.process_time() - began) < seconds:
            tokens += next(batches)["input_ids"].numel()
        passed = loader.stats().deselected - before
        return {"tokens": tokens, "seconds": spent, "deselected": passed}


if __name__ == "__main__":
    main()
