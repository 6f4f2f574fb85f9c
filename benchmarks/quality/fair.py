"""Measure how fair a sample of the documents the first rows of `best_fit` are.

    python -m benchmarks.quality.fair --corpus FOLDER --tokenizer FOLDER

Document sizes are log-normal, or, with --corpus, those of the corpus. A loader reads pre-tokenized
documents to the end, so every row has passed through the product. For each ten rows of all lanes,
three figures are compared with those of the whole run:

per row    documents per row
long       the share of tokens that are in documents longer than a row
size       the mean size of the documents that begin in these rows

A figure is fair if it differs by at most 10%, or by at most four standard errors of a random sample
of as many documents. "without" is a run that continues a state without `fair_start`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.documents import add_documents, read_documents
from benchmarks.figures import Row
from benchmarks.harness import note
from benchmarks.options import Options
from benchmarks.quality.sizes import count_tokens, draw_sizes, repeat_shuffled
from cloudload import CloudLoader
from cloudload.rows.packing.tables import SPAN_ROW, SPAN_SAMPLE, SPAN_START, SPAN_STOP

Floats = NDArray[np.float64]
FIGURES = ("per row", "long", "size")
NUM_LANES, QUICK_LANES, SEQ_LEN, ROWS_OF_WINDOW = 240, 6, 2048, 10
SHARD_BYTES = 1 << 22
_LEAST_BAR, _STANDARD_ERRORS = 0.1, 4


FORMS = {
    **dict.fromkeys(FIGURES, "+.1%"),
    **dict.fromkeys(("padding", "padding, rows 0 to 9", "tail"), ".1%"),
}


def main() -> None:
    options = Options(__doc__)
    add_documents(options)
    options.add_amount("documents", 60_000, 2_000, "number of documents with log-normal sizes")
    options.add_amount("seeds", 5, 1, "number of runs")
    options.run(measure, FORMS)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Measure the start of `best_fit` with log-normal sizes, and with those of the corpus."""
    sources = {"log-normal sizes": draw_sizes(args.documents)}
    if args.corpus:
        counted = count_tokens(read_documents(args), args.tokenizer[0])
        least = sum(sources["log-normal sizes"]) * len(counted) // sum(counted)
        sources[f"corpus, {args.tokenizer[0].name}"] = repeat_shuffled(counted, least)
    for number, (name, sizes) in enumerate(sources.items()):
        data = folder / f"fair-{number}"
        for title, rows in measure_fair(sizes, data, seeds=args.seeds, is_quick=args.quick):
            yield f"fair, {title}: {name}", rows


@dataclass(frozen=True)
class Run:
    """The figures of a run, relative to those of the whole run: 0 is equal."""

    differences: Floats
    """[windows, 3]"""
    bars: Floats
    """[windows, 3]: the largest differences that are fair."""
    padding: Floats
    """[windows]: the share of padding."""
    padding_of_run: float
    tail: float
    """The share of rows that are in the tail."""


def measure_fair(
    sizes: Sequence[int], folder: Path, *, seeds: int, is_quick: bool
) -> Iterator[tuple[str, list[Row]]]:
    """Yield the curves of runs with and without a fair start, and a summary of both."""
    note(f"fair start, {len(sizes):,} documents, {sum(sizes):,} tokens")
    dataset = write_documents(sizes, folder)
    num_lanes = QUICK_LANES if is_quick else NUM_LANES
    curves: list[Row] = []
    summary: list[Row] = []
    for name in ("with", "without"):
        runs = []
        for seed in range(seeds):
            note(f"  fair start: {name}, seed {seed}")
            runs.append(read_run(dataset, np.array(sizes), num_lanes, seed, is_fair=name == "with"))
        curves += list_curve(name, runs)
        summary.append(summarize(name, runs))
    yield "curves", curves
    yield "summary", summary


def write_documents(sizes: Sequence[int], folder: Path) -> str:
    """Write documents of these sizes, whose IDs are all 0, and return their location."""
    from streaming import MDSWriter

    columns = {"tokens": "ndarray:uint16"}
    with MDSWriter(
        out=str(folder), columns=columns, size_limit=SHARD_BYTES, hashes=["xxh64"]
    ) as writer:
        for size in sizes:
            writer.write({"tokens": np.zeros(size, np.uint16)})
    return str(folder)


def read_run(dataset: str, sizes: Any, num_lanes: int, seed: int, *, is_fair: bool) -> Run:
    """Read a run of one epoch with a loader, and compute its figures."""
    loader = CloudLoader(
        dataset,
        tokenizer=None,
        tokens_key="tokens",
        seq_len=SEQ_LEN,
        batch_size=num_lanes,
        num_lanes=num_lanes,
        num_workers=0,
        packing="best_fit",
        epochs=1,
        seed=seed,
        local=f"{dataset}-cache",
    )
    state = loader.state_dict()
    if not is_fair:
        del state["fair_start"]
    loader.load_state_dict(state)
    spans, before_tail = [], 0
    with loader:
        for number, batch in enumerate(loader):
            spans.append(batch.spans.astype(np.int64))
            spans[-1][:, SPAN_ROW] += number * num_lanes
            before_tail += not loader.state_dict()["tail"]
    return compute(np.concatenate(spans), sizes, num_lanes, before_tail)


def compute(spans: Any, sizes: Any, num_lanes: int, before_tail: int) -> Run:
    """Compute the figures of a run from all its spans. `before_tail` counts the rows of a lane."""
    rows, whole = spans[:, SPAN_ROW], sizes[spans[:, SPAN_SAMPLE]]
    tokens, begins = spans[:, SPAN_STOP] - spans[:, SPAN_START], spans[:, SPAN_START] == 0
    windows = before_tail // ROWS_OF_WINDOW
    window = rows // (num_lanes * ROWS_OF_WINDOW)

    def add(values: Any) -> Floats:
        return np.bincount(window, values, minlength=windows + 1)[:windows].astype(np.float64)

    num_rows, num_tokens, num_begun = num_lanes * ROWS_OF_WINDOW, add(tokens), add(begins)
    per_row = add(np.ones(len(spans))) / num_rows
    long = add(tokens * (whole > SEQ_LEN)) / num_tokens
    found = np.stack([per_row, long, add(whole * begins) / num_begun], axis=1)
    total_rows = int(rows.max()) + 1
    is_long = sizes > SEQ_LEN
    of_run = np.array(
        [len(spans) / total_rows, (sizes * is_long).sum() / sizes.sum(), sizes.mean()]
    )
    # what one document adds to the numerator of a ratio, beyond its share in the denominator
    pieces, fill = -(-sizes // SEQ_LEN), sizes.sum() / total_rows / SEQ_LEN
    residuals = [
        pieces - of_run[0] * sizes / SEQ_LEN / fill,
        sizes * is_long - of_run[1] * sizes,
        sizes - sizes.mean(),
    ]
    scales = np.array([pieces.mean(), (sizes * is_long).mean(), sizes.mean()])
    errors = np.array([each.std() for each in residuals]) / scales / np.sqrt(num_begun)[:, None]
    return Run(
        differences=found / of_run - 1,
        bars=np.maximum(_LEAST_BAR, _STANDARD_ERRORS * errors),
        padding=1 - num_tokens / num_rows / SEQ_LEN,
        padding_of_run=1 - sizes.sum() / total_rows / SEQ_LEN,
        tail=1 - before_tail * num_lanes / total_rows,
    )


def list_curve(name: str, runs: Sequence[Run]) -> list[Row]:
    """List the mean differences of runs by window, as far as all runs have it."""
    windows = min(len(run.differences) for run in runs)
    means = np.mean([run.differences[:windows] for run in runs], axis=0)
    padding = np.mean([run.padding[:windows] for run in runs], axis=0)
    return [
        {
            "fair start": name,
            "rows of a lane from": ROWS_OF_WINDOW * number,
            **dict(zip(FIGURES, means[number].tolist(), strict=True)),
            "padding": float(padding[number]),
        }
        for number in range(windows)
    ]


def summarize(name: str, runs: Sequence[Run]) -> Row:
    """The largest differences in any window of any run, in bars, and the padding and the tail."""
    relative = [np.abs(run.differences) / run.bars for run in runs]

    def largest(part: Callable[[Floats], Floats]) -> dict[str, list[float]]:
        return {
            figure: [float(part(each)[:, column].max()) for each in relative]
            for column, figure in enumerate(FIGURES)
        }

    first, later = largest(lambda each: each[:1]), largest(lambda each: each[1:])
    return {
        "fair start": name,
        **{f"{figure}, rows 0 to 9": cell for figure, cell in first.items()},
        **{f"{figure}, later": cell for figure, cell in later.items()},
        "unfair windows": sum(int((each > 1).any(axis=1).sum()) for each in relative),
        "windows": sum(map(len, relative)),
        "padding, rows 0 to 9": [float(run.padding[0]) for run in runs],
        "padding": [run.padding_of_run for run in runs],
        "tail": [run.tail for run in runs],
    }


if __name__ == "__main__":
    main()
