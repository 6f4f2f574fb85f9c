"""Compare the forecasts of `plan_run` with real runs of the same loaders.

    python -m benchmarks.quality.forecast --files CORPUS.jsonl.gz CORPUS.jsonl.gz CORPUS.jsonl.gz

Converts each file, then plans the runs in `RUNS` and reads them in two worlds, with and without
token lengths. Each row has a forecast, its range, and the actual value. The actual time to the
first batch is the median of 5 processes that start with an empty cache. With --quick, there is one
run, and one start.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.documents import TOKENIZER, read_documents, write_dataset
from benchmarks.figures import Row
from benchmarks.harness import run_child
from benchmarks.options import Options, temporary_folder
from cloudload import CloudLoader, convert_to_mds, count_tokens
from cloudload.forecast import Figure, plan_run
from testkit.plans import compare, read_run

WORLDS = ((1, 2), (4, 2))
RUNS = (
    "1 epoch",
    "2.5 epochs",
    "2.5 epochs, limited cache",
    "best_fit",
    "two streams",
    "two streams, 1 epoch",
    "two streams, first of 2 epochs, best_fit",
    "two streams, 1 and 3 epochs, one_per_row",
)
PARTS = ("first batch", *RUNS)
SHARD_BYTES, NUM_LANES = 1 << 19, 48
_ENDS: dict[str, dict[str, Any]] = {
    "1 epoch": {"epochs": 1},
    "first of 2 epochs, best_fit": {"epochs": 2, "stopping": "first", "packing": "best_fit"},
    "1 and 3 epochs, one_per_row": {"epochs": 1, "packing": "one_per_row", "overflow": "rows"},
}
"""The loader's options in each run of a mixture whose two streams end."""


def main() -> None:
    options = Options(__doc__)
    text = "JSON Lines files, one for each corpus (default: files of this Python environment)"
    options.add_argument("--files", nargs="+", type=Path, metavar="FILE", help=text)
    options.add_parts(PARTS)
    options.add_amount("megabytes", 20.0, 0.3, "megabytes of text in all corpora, without --files")
    options.add_amount("starts", 5, 1, "number of starts to the first batch")
    options.run(measure)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield a table for each corpus and part."""
    sources = write_sources(args, folder)
    runs = RUNS[:1] if args.quick else [run for run in RUNS if run in args.only]
    for number, source in enumerate(sources):
        if "first batch" in args.only:
            yield f"{source.name}, first batch", [time_first_batch(source, folder, args.starts)]
        other = sources[(number + 1) % len(sources)]
        for run in runs:
            rows = [
                row for world in WORLDS for row in _compare_run(run, world, (source, other), folder)
            ]
            yield f"{source.name}, {run}", rows


def write_sources(args: argparse.Namespace, folder: Path) -> list[Path]:
    """Convert each corpus, and count its tokens."""
    options: dict[str, Any] = {"compression": "zstd", "shard_bytes": SHARD_BYTES}
    sources = [folder / file.name.split(".")[0] for file in args.files or ()]
    for file, source in zip(args.files or (), sources, strict=True):
        convert_to_mds(file, source, processes=1, progress=False, **options)
    if not sources:
        sources = [folder / f"corpus-{number}" for number in range(1 if args.quick else 3)]
        texts = read_documents(argparse.Namespace(corpus=None, megabytes=args.megabytes))
        for number, source in enumerate(sources):
            write_dataset(texts[number :: len(sources)], source, **options)
    for source in sources:
        count_tokens(str(source), tokenizer=str(TOKENIZER), processes=1, progress=False)
    return sources


def time_first_batch(data: Path, root: Path, starts: int) -> Row:
    """Compare the predicted time to the first batch with real starts that have an empty cache."""
    options, _ = _options_of("first batch", data, data)
    # plan with worker processes, because real starts use them by default
    plan = plan_run(**options, steps=1, local=root / "plan")
    assert plan.first_batch_s is not None
    real: list[float] = []
    for _ in range(starts):
        with temporary_folder(root) as folder:
            real.append(run_child(start, None, options={**options, "local": str(folder)}))
    row = describe("s to the first batch", plan.first_batch_s, median(real))
    return {**row, "starts, s": real}


def start(options: dict[str, Any]) -> float:
    """Return the seconds to the first batch in this process."""
    began = time.monotonic()
    with CloudLoader(**options) as loader:
        next(iter(loader))
        return time.monotonic() - began


def describe(name: str, forecast: Figure, real: float) -> Row:
    """Return a row that compares a forecast with the actual value."""
    error = (forecast.value - real) / max(1, real)
    return {
        "figure": name,
        **{key: round(value, 3) for key, value in asdict(forecast).items() if key != "is_exact"},
        "is_exact": str(forecast.is_exact),
        "real": real,
        "stated_error": None if math.isnan(forecast.error) else round(forecast.error, 5),
        "real_error": round(error, 5),
        "is_in_range": str(forecast.low <= real <= forecast.high),
    }


def _options_of(run: str, data: Path, other: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a loader, and the run's length as options of `plan_run`."""
    options: dict[str, Any] = {
        "data": str(data),
        "tokenizer": str(TOKENIZER),
        "seq_len": 1_024,
        "batch_size": 4,
        "num_lanes": NUM_LANES,
    }
    if run == "1 epoch":
        return {**options, "epochs": 1}, {}
    if run == "best_fit":
        return {**options, "packing": "best_fit"}, {"steps": 40}
    if run.startswith("two streams"):
        from cloudload import Stream

        most = 3 if "1 and 3 epochs" in run else None
        streams = [
            Stream(str(data), proportion=0.7),
            Stream(str(other), proportion=0.3, max_epochs=most),
        ]
        options |= {"data": streams, **_ENDS.get(run.partition(", ")[2], {})}
        return options, {} if "epochs" in options else {"tokens": 2_000_000}
    if run.endswith("limited cache"):
        options["cache_limit"] = None  # the caller sets the limit from a plan without one
    return options, {"tokens": None}


def _compare_run(
    run: str, world: tuple[int, int], sources: tuple[Path, Path], root: Path
) -> Iterator[Row]:
    options, length = _options_of(run, *sources)
    shared: dict[str, Any] = {"nodes": world[0], "ranks_per_node": world[1], "measure": False}
    if length == {"tokens": None}:
        whole = plan_run(**options, epochs=1, local=root / "plan", **shared)
        length = {"tokens": int(2.5 * whole.tokens.value)}
    if "cache_limit" in options:
        options |= {"num_workers": 0, "download_threads": 1}
        unlimited = plan_run(**options, **length, local=root / "plan", **shared)
        needed = max(each.needed_bytes.value for each in unlimited.node_plans)
        total = max(each.all_bytes.value for each in unlimited.node_plans)
        options["cache_limit"] = max(int((needed + total) / 2), unlimited.least_cache_bytes)
    # a mixture with `epochs` needs token lengths
    for lengths in ("require", "off")[
        : 1 if isinstance(options["data"], list) and "epochs" in options else 2
    ]:
        options["lengths"] = lengths
        began = time.process_time()
        plan = plan_run(**options, **length, local=root / "plan", **shared)
        plan_s = round(time.process_time() - began, 2)
        with temporary_folder(root) as folder:
            steps = None if options.get("epochs") else int(plan.steps.value)
            real = read_run(options, folder, *world, steps)
        case = {"nodes": world[0], "ranks": world[0] * world[1]}
        figures = compare(plan, real)
        for figure in figures:
            line: Row = {**case, "lengths": lengths, "plan_cpu_s": plan_s}
            yield {**line, **describe(*figure)}


if __name__ == "__main__":
    main()
