"""Measure how long it takes to trace steps far past a checkpoint, and check the result.

    python -m benchmarks.start.trace --corpus FOLDER --tokenizer FOLDER --steps 10000

Reads a run without training, and keeps the state after its first step and the documents of its last
ten steps. Then traces the last ten steps from only that state and the data. The exit status is 1 if
the traced documents differ from those of the run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.documents import add_documents, read_documents, write_dataset
from benchmarks.figures import Row
from benchmarks.harness import note
from benchmarks.options import Options
from cloudload import Batch, CloudLoader
from cloudload.provenance import find_document, open_run, trace_steps
from cloudload.rows.packing.tables import SPAN_EPOCH, SPAN_SAMPLE, SPAN_STREAM

TRACED = 10


def main() -> None:
    options = Options(__doc__)
    add_documents(options)
    options.add_amount(
        "steps", 10_000, 200, "number of steps between the saved state and the traced steps"
    )
    options.add_argument(
        "--global-batch", type=int, default=8, help="rows per step (default: %(default)s)"
    )
    options.add_argument(
        "--seq-len", type=int, default=256, help="tokens per row (default: %(default)s)"
    )
    options.add_argument("--packing", default="concat", help="default: %(default)s")
    options.add_argument(
        "--workers", type=int, default=2, help="worker processes (default: %(default)s)"
    )
    options.run(measure)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Read a run, then trace its last ten steps and one row, and find the rows of a document.

    Raises `SystemExit` if a trace differs from the run.
    """
    dataset, cache = write_dataset(read_documents(args), folder / "mds"), folder / "cache"
    last = 1 + args.steps + TRACED
    loader = CloudLoader(
        dataset,
        tokenizer=str(args.tokenizer[0]),
        seq_len=args.seq_len,
        batch_size=args.global_batch,
        packing=args.packing,
        num_workers=args.workers,
        local=cache,
    )
    note(f"reading a run of {last:,} steps")
    kept: list[Batch] = []
    with loader, Clock() as reading:
        for step, batch in enumerate(loader.take(last), 1):
            if step == 1:
                state = loader.state_dict()
            if step > last - TRACED:
                kept.append(batch)
        expected = [loader.trace(batch) for batch in kept]
    run = open_run(state)
    steps = range(last - TRACED + 1, last + 1)
    note(f"tracing the rows of the last {TRACED} steps")
    with Clock() as tracing:
        found = trace_steps(run, steps, num_workers=args.workers, local=str(cache))
        traced = [spans for _, spans in found]
    if traced != expected:
        raise SystemExit(
            f"for the last {TRACED} steps, trace_steps returned documents that differ from those "
            "that the run read"
        )
    note("tracing one row of the last step")
    row = args.global_batch - 1
    with Clock() as tracing_row:
        [(_, of_row)] = trace_steps(run, steps[-1:], row, local=str(cache))
    if of_row != [span for span in expected[-1] if span.row == kept[-1].first_row + row]:
        raise SystemExit(
            f"for row {row} of step {last}, trace_steps returned documents that differ from those "
            "that the run read"
        )
    note("finding the rows of a document of the last step")
    stream, epoch, sample = kept[-1].spans[0, [SPAN_STREAM, SPAN_EPOCH, SPAN_SAMPLE]].tolist()
    with Clock() as finding:
        rows = list(find_document(run, stream, sample, last, local=str(cache)))
    if not any(occurrence.epoch == epoch for occurrence in rows):
        raise SystemExit(
            f"find_document did not find sample {sample} of stream {stream} in epoch {epoch}, "
            f"which the run read in step {last}"
        )
    row_of_run: Row = {
        "packing": args.packing,
        "tokens of the run": last * args.global_batch * args.seq_len,
        "s to read it": reading.seconds,
        "steps after the state": args.steps,
        f"s to trace {TRACED} steps": tracing.seconds,
        "s to trace one row": tracing_row.seconds,
        "rows of a document": len(rows),
        "s to find them": finding.seconds,
    }
    yield "trace", [row_of_run]


class Clock:
    """A clock that measures the wall time of a `with` block, in `seconds`."""

    def __enter__(self) -> Clock:
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._started


if __name__ == "__main__":
    main()
