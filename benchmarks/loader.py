"""Measure the time from a resume to the first batch, and the size of a state.

    python -m benchmarks.loader --corpus FOLDER --tokenizer FOLDER FOLDER

resume   seconds from the construction of a loader to its first batch, when it resumes from a state
         at 1%, 50% or 99% of an epoch, with an empty and with a filled cache. Each resume runs in a
         new process.
state    bytes of a state as JSON, and CPU time of state_dict() and load_state_dict(), for concat
         and for best_fit with open rows. The lanes have packed documents of log-normal lengths.

`make bench` compares the loader's speed with that of the bare tokenizer.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.documents import add_documents, read_or_generate, write_dataset
from benchmarks.figures import Row, print_tables
from benchmarks.harness import Message, Options, Side, Take, last_cores, note
from benchmarks.packing.sizes import draw_sizes
from cloudload import CloudLoader
from cloudload.rows.packing.packers import Packing
from cloudload.rows.packing.tables import CURSOR_SIZE
from cloudload.run.position import Position
from cloudload.system.arrays import Ints

SEQ_LEN, BATCH_SIZE, OPEN_ROWS = 2048, 8, 16
PLACES, QUICK_PLACES = (0.01, 0.5, 0.99), (0.5,)
LANES, DOCUMENTS_OF_A_LANE = (64, 960, 8192), 150


def main() -> None:
    options = Options(__doc__)
    add_documents(options)
    options.add_amount("repeats", 5, 1, "number of resumes at each place in the epoch")
    options.add_argument("--only", choices=["resume", "state"], help="run only this part")
    args = options.parse()
    with tempfile.TemporaryDirectory(prefix="cloudload-bench-") as folder:
        print_tables(measure(args, Path(folder)), as_json=args.json)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Measure the chosen parts, and yield the title and the rows of each table."""
    if args.only != "state":
        dataset = write_dataset(read_or_generate(args.corpus, 1e6 * args.megabytes), folder / "mds")
        for tokenizer in args.tokenizer:
            places = QUICK_PLACES if args.quick else PLACES
            rows = time_resumes(dataset, tokenizer, folder, args.repeats, places)
            yield f"resume, {tokenizer.name}", rows
    if args.only != "resume":
        lanes = LANES[:1] if args.quick else LANES
        yield "state", weigh_states(folder, args.tokenizer[0], lanes)


# ---------------------------------------------------------------- resume


def time_resumes(
    dataset: str, tokenizer: Path, folder: Path, repeats: int, places: Sequence[float]
) -> list[Row]:
    """Time resumes at `places`, fractions of an epoch, with an empty and with a filled cache."""
    rows: list[Row] = []
    for place in places:
        times: dict[str, list[float]] = {"empty": [], "filled": []}
        for repeat in range(repeats):
            request = {
                "dataset": dataset,
                "tokenizer": str(tokenizer),
                "place": place,
                "cache": str(folder / f"cache-{tokenizer.name}-{place}-{repeat}"),
            }
            for seconds in times.values():  # the first resume fills the empty cache
                with Side("benchmarks.loader_resume", cores=last_cores()) as side:
                    side.start(request)
                    seconds.append(side.take_turn()["seconds"])
        for cache, seconds in times.items():
            row: Row = {
                "resumed at": f"{place:.0%}",
                "cache": cache,
                "s to the first batch": seconds,
            }
            rows.append(row)
            note(f"  {row}")
    return rows


def prepare_resume(request: Message) -> Take:
    """Make a state at a place in the first epoch, and return a function that resumes from it."""

    def make_loader() -> CloudLoader:
        return CloudLoader(
            request["dataset"],
            tokenizer=request["tokenizer"],
            seq_len=SEQ_LEN,
            batch_size=BATCH_SIZE,
            num_workers=1,
            local=request["cache"],
        )

    # a state as a run would save it, with every lane one token into its document
    there = make_loader()
    cursors = np.ones((there.num_lanes, 2), np.int64)
    cursors[:, 0] = request["place"] * (there.num_samples // there.num_lanes)
    rows = int(request["place"] * 1000) * there.num_lanes
    table = base64.b64encode(cursors.astype("<i8").tobytes()).decode("ascii")
    state = {**there.state_dict(), "rows": rows, "table_rows": rows, "cursors": table}

    def take(_: Message) -> Message:
        started = time.perf_counter()
        with make_loader() as loader:
            loader.load_state_dict(state)
            next(iter(loader))
            return {"seconds": time.perf_counter() - started}

    return take


# ---------------------------------------------------------------- state


def weigh_states(folder: Path, tokenizer: Path, lane_counts: Sequence[int]) -> list[Row]:
    """Measure the bytes of a state as JSON, and the CPU time of saving and loading it."""
    documents = 2 * math.lcm(*lane_counts)  # divisible by each count, so no lane has a hole
    data = write_dataset(
        (f"document {number} of many" for number in range(documents)), folder / "short"
    )
    sizes = np.array(draw_sizes(100_000))
    rows: list[Row] = []
    for num_lanes in lane_counts:
        for name in ("concat", "best_fit"):
            with CloudLoader(
                data,
                tokenizer=str(tokenizer),
                seq_len=SEQ_LEN,
                batch_size=64,
                num_lanes=num_lanes,
                num_workers=0,
                local=folder / "cache",
                packing=name,
                open_rows=OPEN_ROWS,
            ) as loader:
                log = loader._run.log  # set directly, because the dataset's documents are short
                log.move_to(
                    run_lanes(log.position, Packing(name, SEQ_LEN, OPEN_ROWS, "cut"), sizes)
                )
                saving = time_calls(loader.state_dict, 200 if num_lanes < 4096 else 20)
                state = loader.state_dict()
                loading = time_calls(partial(loader.load_state_dict, state), 5)
                assert loader.state_dict() == state
            row: Row = {
                "packing": name,
                "lanes": num_lanes,
                "bytes of JSON": len(json.dumps(state)),
                "bytes of residues in it": len(str(state["residues"])),
                "CPU µs of state_dict()": saving,
                "CPU µs of load_state_dict()": loading,
            }
            rows.append(row)
            note(f"  state, {name}, {num_lanes} lanes: {row['bytes of JSON']:,} bytes")
    return rows


def run_lanes(start: Position, packing: Packing, sizes: Ints) -> Position:
    """Return `start` with each lane's cursor and residue after the lane has packed documents.

    The lanes pack 150 to 299 documents, whose sizes in tokens are drawn from `sizes`, int64 [n].
    """
    cursors = start.cursors.copy()
    residues = None if start.residues is None else start.residues.copy()
    num_lanes, rng = cursors.shape[1], np.random.default_rng(0)
    for lane in range(num_lanes):
        packer = packing.packer()
        drawn = rng.choice(sizes, DOCUMENTS_OF_A_LANE + lane % DOCUMENTS_OF_A_LANE).tolist()
        for ordinal, size in enumerate(drawn):
            packer.add(ordinal, size)
        last = packer.rows[-1]
        cursors[0, lane, :CURSOR_SIZE] = last.cursor
        if residues is not None:
            residues[0, lane] = last.residue
    rows = num_lanes * DOCUMENTS_OF_A_LANE
    return replace(start, rows=rows, table_rows=rows).with_lanes(cursors=cursors, residues=residues)


def time_calls(call: Callable[[], object], repeats: int) -> list[float]:
    """Return the CPU microseconds of each of `repeats` calls."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        call()
        times.append(1e6 * (time.process_time() - started))
    return times


if __name__ == "__main__":
    main()
