"""How long it takes to find what the model read far beyond a checkpoint, and whether it is what the
run read.

    python -m benchmarks.trace --corpus corpus/*.jsonl.gz --tokenizer gpt2-folder --steps 10000

Trains nothing: a run is read through, keeping its state after the first step and the rows of the
last ten. These are then traced from that state and the data alone. Without --corpus, text is
generated; without --tokenizer, the example's is used.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.loader import make_dataset, note
from cloudload import CloudLoader
from cloudload.provenance import find_document, open_run, trace_steps

ROOT = Path(__file__).resolve().parents[1]

TRACED = 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--corpus",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help=".jsonl or .jsonl.gz with a field `text`",
    )
    parser.add_argument("--tokenizer", default=str(ROOT / "examples" / "tokenizer"))
    parser.add_argument(
        "--megabytes", type=float, default=24.0, help="of text, at most (default: %(default)s)"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=10_000,
        help="between the state and what is traced (default: %(default)s)",
    )
    parser.add_argument("--global-batch", type=int, default=8, help="rows (default: %(default)s)")
    parser.add_argument("--seq-len", type=int, default=256, help="default: %(default)s")
    parser.add_argument("--packing", default="concat", help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=2, help="default: %(default)s")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cloudload-bench-") as folder:
        rows = measure(args, make_dataset(args, Path(folder)), Path(folder, "cache"))
    print("| measure | |\n|---|---:|")
    for name, value in rows:
        print(f"| {name} | {value} |")


def measure(args: argparse.Namespace, dataset: str, cache: Path) -> list[tuple[str, str]]:
    last = 1 + args.steps + TRACED
    loader = CloudLoader(
        dataset,
        tokenizer=args.tokenizer,
        seq_len=args.seq_len,
        batch_size=args.global_batch,
        packing=args.packing,
        num_workers=args.workers,
        local=cache,
    )
    note(f"a run of {last:,} steps")
    started = time.perf_counter()
    kept = []
    for step, batch in enumerate(loader.take(last), 1):
        if step == 1:
            state = loader.state_dict()
        if step > last - TRACED:
            kept.append(batch)
    seconds_of_run = time.perf_counter() - started
    expected = [loader.trace(batch) for batch in kept]
    loader.close()
    run = open_run(state)
    steps = range(last - TRACED + 1, last + 1)

    note("the rows of its last steps, traced")
    started = time.perf_counter()
    traced = [
        spans for _, spans in trace_steps(run, steps, num_workers=args.workers, local=str(cache))
    ]
    seconds = time.perf_counter() - started
    assert traced == expected, "the rows traced are not those that the run read"
    note("one row of its last step, traced")
    started = time.perf_counter()
    [(_, of_row)] = trace_steps(run, steps[-1:], args.global_batch - 1, local=str(cache))
    seconds_of_row = time.perf_counter() - started
    assert of_row == [
        span for span in expected[-1] if span.row == kept[-1].first_row + args.global_batch - 1
    ]
    note("a document of its last step, found")
    stream, epoch, sample = (int(number) for number in kept[-1].spans[0, 1:4])
    started = time.perf_counter()
    found = list(find_document(run, stream, sample, last, local=str(cache)))
    seconds_of_document = time.perf_counter() - started
    assert any(occurrence.epoch == epoch for occurrence in found)
    tokens = last * args.global_batch * args.seq_len
    return [
        (f"tokens of the run, {args.packing}", f"{tokens:,}"),
        (f"s to read it, {args.workers} workers", f"{seconds_of_run:.1f}"),
        (
            f"s to trace {TRACED} steps, {args.steps:,} steps after the state; equal to those read",
            f"{seconds:.1f}",
        ),
        ("s to trace one row of the last step", f"{seconds_of_row:.1f}"),
        (f"s to find the {len(found)} rows of a document", f"{seconds_of_document:.1f}"),
    ]


if __name__ == "__main__":
    main()
