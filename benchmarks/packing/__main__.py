"""Measure how full each packing's rows are, and how fast it is.

    python -m benchmarks.packing --corpus FOLDER --tokenizer FOLDER
    python -m benchmarks.packing --only speed --corpus FOLDER --tokenizer FOLDER FOLDER --json
    python -m benchmarks.packing --only fair --corpus FOLDER --tokenizer FOLDER

fill     the share of the emitted rows' tokens that is not padding, compared with that of
         best-fit-decreasing, which sees all documents at once. Document sizes are log-normal, or
         those of the corpus, reshuffled in each of several epochs. Rows that are still open at the
         end are not emitted. A second column includes them, although a finite loader would pack
         their tokens into one tail.
speed    rows per second of a loader with one worker, relative to concat, by wall time and by the
         worker's CPU time. The sides take short turns on one core. A side is a training process and
         its worker.
fair     how fair a sample of the documents the first rows of best_fit are; see `fair`. It takes
         minutes, and runs only if --only names it.

Without --corpus, the text is generated, and fill uses only log-normal sizes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.documents import add_documents, read_or_generate, write_dataset
from benchmarks.figures import Row, print_tables
from benchmarks.harness import Options, exit_on_sigterm
from benchmarks.packing.fair import measure_fair
from benchmarks.packing.fill import measure_fill
from benchmarks.packing.sizes import count_tokens, draw_sizes, repeat_shuffled
from benchmarks.packing.speed import race

FORMS = {
    **dict.fromkeys(("fill", "with open rows", "left out"), ".2%"),
    **dict.fromkeys(("per row", "long", "size"), "+.1%"),
    **dict.fromkeys(("padding", "padding, rows 0 to 9", "tail"), ".1%"),
}
FAIR_DOCUMENTS = 60_000
LEAST_DOCUMENTS = 150_000
"""The fill of a corpus is measured on at least this many documents, by repeating its epochs."""


def main() -> None:
    options = Options(__doc__)
    add_documents(options)
    options.add_amount("documents", 1_000_000, 2_000, "number of documents with log-normal sizes")
    options.add_amount("repeats", 5, 1, "number of rounds in `speed`, and of seeds in `fair`")
    options.add_argument(
        "--only", nargs="+", choices=["fill", "speed", "fair"], help="run only these parts"
    )
    args = options.parse()
    exit_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="cloudload-bench-") as folder:
        print_tables(measure(args, Path(folder)), as_json=args.json, forms=FORMS)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Measure the chosen parts, and yield the title and the rows of each table."""
    parts = args.only or ["fill", "speed"]
    if "fair" in parts:
        yield from measure_fairness(args, folder)
    if not {*parts} - {"fair"}:
        return
    texts = read_or_generate(args.corpus, 1e6 * args.megabytes)
    if "fill" in parts:
        lane_counts = (1, 12) if args.quick else (1, 960)
        yield "fill: log-normal sizes", measure_fill(draw_sizes(args.documents), lane_counts)
        if args.corpus:
            sizes = repeat_shuffled(
                count_tokens(texts, args.tokenizer[0]), min(LEAST_DOCUMENTS, args.documents)
            )
            yield f"fill: corpus, {args.tokenizer[0].name}", measure_fill(sizes, (1, 12))
    if "speed" in parts:
        dataset = write_dataset(texts, folder / "mds")
        for tokenizer in args.tokenizer:
            sizes = count_tokens(texts, tokenizer)
            title = f"speed: one worker, relative to concat, {tokenizer.name}"
            yield title, race(dataset, tokenizer, sizes, args.repeats, is_quick=args.quick)


def measure_fairness(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Measure the start of `best_fit` with log-normal sizes, and with those of the corpus."""
    number = min(FAIR_DOCUMENTS, args.documents)
    sources = {"log-normal sizes": draw_sizes(number)}
    if args.corpus:
        texts = read_or_generate(args.corpus, 1e6 * args.megabytes)
        counted = count_tokens(texts, args.tokenizer[0])
        least = sum(sources["log-normal sizes"]) * len(counted) // sum(counted)
        sources[f"corpus, {args.tokenizer[0].name}"] = repeat_shuffled(counted, least)
    for place, (name, sizes) in enumerate(sources.items()):
        data = folder / f"fair-{place}"
        for title, rows in measure_fair(sizes, data, seeds=args.repeats, is_quick=args.quick):
            yield f"fair, {title}: {name}", rows


if __name__ == "__main__":
    main()
