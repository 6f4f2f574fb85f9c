"""Measure the time from a resume to the first batch.

    python -m benchmarks.start.resume --corpus FOLDER --tokenizer FOLDER FOLDER

The time is the seconds from the construction of a loader to its first batch, when it resumes from
a state at 1%, 50% or 99% of an epoch, with an empty and with a filled cache. Each resume runs in a
new process, on one core.
"""

from __future__ import annotations

import argparse
import base64
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.documents import add_documents, read_documents, write_dataset
from benchmarks.figures import Row
from benchmarks.harness import ONE_THREAD, last_cores, note, pinned, run_child
from benchmarks.options import Options
from cloudload import CloudLoader

SEQ_LEN, BATCH_SIZE = 2048, 8
SHARES, QUICK_SHARES = (0.01, 0.5, 0.99), (0.5,)


def main() -> None:
    options = Options(__doc__)
    add_documents(options)
    options.add_amount("repeats", 5, 1, "number of resumes at each share of an epoch")
    options.run(measure)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield the title and the rows of a table for each tokenizer."""
    dataset = write_dataset(read_documents(args), folder / "mds")
    for tokenizer in args.tokenizer:
        shares = QUICK_SHARES if args.quick else SHARES
        rows = time_resumes(dataset, tokenizer, folder, args.repeats, shares)
        yield f"resume, {tokenizer.name}", rows


def time_resumes(
    dataset: str, tokenizer: Path, folder: Path, repeats: int, shares: Sequence[float]
) -> list[Row]:
    """Time resumes at shares of an epoch, with an empty and with a filled cache."""
    rows: list[Row] = []
    for share in shares:
        times: dict[str, list[float]] = {"empty": [], "filled": []}
        for number in range(repeats):
            cache = str(folder / f"cache-{tokenizer.name}-{share}-{number}")
            request = {"dataset": dataset, "tokenizer": str(tokenizer), "cache": cache}
            for seconds in times.values():  # the first resume fills the empty cache
                with pinned(last_cores()):
                    seconds.append(run_child(time_resume, ONE_THREAD, **request, share=share))
        for state, seconds in times.items():
            rows.append(
                {"resumed at": f"{share:.0%}", "cache": state, "s to the first batch": seconds}
            )
            note(f"  {rows[-1]}")
    return rows


def time_resume(dataset: str, tokenizer: str, cache: str, share: float) -> float:
    """Make a state at a share of the first epoch, and return the seconds to resume from it."""

    def open_again() -> CloudLoader:
        return CloudLoader(
            dataset,
            tokenizer=tokenizer,
            seq_len=SEQ_LEN,
            batch_size=BATCH_SIZE,
            num_workers=1,
            local=cache,
        )

    # a state as a run would save it, with every lane one token into its document
    there = open_again()
    cursors = np.ones((there.num_lanes, 2), np.int64)
    cursors[:, 0] = share * (there.num_samples // there.num_lanes)
    rows = int(share * 1000) * there.num_lanes
    table = base64.b64encode(cursors.astype("<i8").tobytes()).decode("ascii")
    state = {**there.state_dict(), "rows": rows, "table_rows": rows, "cursors": table}
    started = time.perf_counter()
    with open_again() as loader:
        loader.load_state_dict(state)
        next(iter(loader))
        return time.perf_counter() - started


if __name__ == "__main__":
    main()
