"""Compare the rate of the first pass over new text with that of a later pass.

    python -m benchmarks.throughput.first_pass --tokenizer FOLDER [--corpus FOLDER]

The tokenizer caches the IDs of words that it has seen, so its first pass over a text is slower than
later ones. Each tokenizer runs in its own process, and the loader has no worker processes. The CPU
time of that process therefore includes all work. The rates are harmonic means.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import harmonic_mean

from benchmarks.documents import add_documents, count_bytes, read_documents, write_dataset
from benchmarks.figures import Row
from benchmarks.harness import Message, run_child
from benchmarks.options import Options, temporary_folder
from cloudload import CloudLoader

_PARTS, _PASSES, _BATCHES_PER_LOOK = 16, 3, 8


def main() -> None:
    options = Options(__doc__)
    add_documents(options, megabytes=300)
    options.run(measure)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    texts = read_documents(args)
    data = write_dataset(texts, folder / "mds", shard_bytes=1 << 25)
    rows: list[Row] = []
    for tokenizer in args.tokenizer:
        found = run_child(time_passes, dataset=data, tokenizer=str(tokenizer))
        first, later = found["first"], found["later"]
        rows.append(
            {
                "tokenizer": tokenizer.name,
                "first part of the first pass": first[0],
                "first pass": harmonic_mean(first),
                "third pass": harmonic_mean(later),
                "first / third": harmonic_mean(first) / harmonic_mean(later),
            }
        )
    yield f"Million tokens per CPU s, {count_bytes(texts) / 1e6:.1f} MB of text", rows


def time_passes(dataset: str, tokenizer: str) -> Message:
    """Measure the rate of each part of three passes, in million tokens per CPU s."""
    rates: list[list[float]] = [[] for _ in range(_PASSES)]
    with temporary_folder() as cache:
        loader = CloudLoader(
            dataset, tokenizer=tokenizer, seq_len=2048, batch_size=16, num_workers=0, local=cache
        )
        next(iter(loader))
        began, tokens, end = time.process_time(), 0, 1
        for number, batch in enumerate(loader):
            tokens += batch.num_tokens
            if number % _BATCHES_PER_LOOK:
                continue
            [stream] = loader.stats().streams.values()
            if stream.epoch * _PARTS >= end:
                now = time.process_time()
                rates[(end - 1) // _PARTS].append(tokens / 1e6 / (now - began))
                end, began, tokens = int(stream.epoch * _PARTS) + 1, now, 0
            if end > _PARTS * _PASSES:
                return {"first": rates[0], "later": rates[-1]}
    raise AssertionError("a run without epochs does not end")


if __name__ == "__main__":
    main()
