"""Measure the rows per second of a loader with one worker, for each packing.

If run as a program, this module is the side of one packing.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from benchmarks.figures import Row
from benchmarks.harness import Message, Side, Take, cpu_of, last_cores, note, serve
from benchmarks.packing.fill import count, run_packer
from cloudload import CloudLoader
from cloudload.config.choices import Overflow, PackingName
from cloudload.rows.packing.packers import Packing
from cloudload.rows.packing.tables import SPAN_START, SPAN_STOP

OPEN_ROWS = 16
PACKINGS: dict[str, tuple[PackingName, Overflow]] = {
    "concat": ("concat", "cut"),
    "best_fit": ("best_fit", "cut"),
    "one_per_row, rows": ("one_per_row", "rows"),
    "one_per_row, cut": ("one_per_row", "cut"),
}
"""The options (packing, overflow) of each side."""
SEQ_LEN, BATCH_SIZE, NUM_LANES = 2048, 8, 60
WARM_UP_ROWS, TURNS = 2_400, 24
QUICK_WARM_UP_ROWS, QUICK_TURNS = 64, 2
ROWS_AT_ONCE = 32
"""The number of rows in a worker's block. A turn is a whole number of blocks."""


def race(
    dataset: str, tokenizer: Path, sizes: Sequence[int], repeats: int, *, is_quick: bool
) -> list[Row]:
    """Measure the rows per second of each packing, in `repeats` rounds.

    In a round, each side reads about one epoch in a new process. One process per packing would not
    be enough, because a tokenizer's memory layout makes some processes permanently faster.
    """
    note(f"speed, {tokenizer.name}")
    num_turns = QUICK_TURNS if is_quick else TURNS
    rounds: dict[str, list[Message]] = {name: [] for name in PACKINGS}
    for number in range(repeats):
        turns: dict[str, list[Message]] = {name: [] for name in PACKINGS}
        with ExitStack() as running:
            sides = {}
            for name in PACKINGS:
                rows = count(run_packer(make_packing(name).packer(), sizes)).rows
                request = {
                    "dataset": dataset,
                    "tokenizer": str(tokenizer),
                    "name": name,
                    "turn_rows": ROWS_AT_ONCE * max(1, round(rows / num_turns / ROWS_AT_ONCE)),
                    "warm_up_rows": QUICK_WARM_UP_ROWS if is_quick else WARM_UP_ROWS,
                    "seed": number,
                }
                sides[name] = running.enter_context(
                    Side("benchmarks.packing.speed", cores=last_cores())
                )
                sides[name].start(request)
            for _ in range(num_turns):
                for name, side in sides.items():
                    turns[name].append(side.take_turn())
        for name, done in turns.items():
            rounds[name].append({key: sum(turn[key] for turn in done) for key in done[0]})
            note(f"  round {number}, {name}: {rounds[name][-1]}")
    return [compare(name, rounds[name], rounds["concat"]) for name in PACKINGS]


def make_packing(name: str) -> Packing:
    """Create the packing that a loader would create for the side `name`."""
    packing, overflow = PACKINGS[name]
    return Packing(packing, SEQ_LEN, OPEN_ROWS, overflow, fair_from=0)


def compare(name: str, rounds: Sequence[Message], base: Sequence[Message]) -> Row:
    """Return the speeds of a side, and their ratios to those of `base` in the same round."""

    def speeds(what: str, clock: str, side: Sequence[Message]) -> list[float]:
        return [done[what] / max(done[clock], 1e-9) for done in side]

    def shares(what: str, clock: str) -> list[float]:
        pairs = zip(speeds(what, clock, rounds), speeds(what, clock, base), strict=True)
        return [own / other for own, other in pairs]

    return {
        "packing": name,
        "rows/s, wall": speeds("rows", "wall", rounds),
        "rows / concat": shares("rows", "wall"),
        "tokens / concat": shares("tokens", "wall"),
        "rows/s, worker CPU": speeds("rows", "worker", rounds),
        "rows / concat, CPU": shares("rows", "worker"),
        "tokens / concat, CPU": shares("tokens", "worker"),
        "worker µs/row": [1e6 * done["worker"] / done["rows"] for done in rounds],
        "trainer µs/row": [1e6 * done["trainer"] / done["rows"] for done in rounds],
    }


# ---------------------------------------------------------------- the side


def start_loader(request: Message) -> Take:
    """Create a loader with one worker, warm it up, and return a function that takes turns."""
    packing, overflow = PACKINGS[request["name"]]
    loader = CloudLoader(
        request["dataset"],
        tokenizer=request["tokenizer"],
        seq_len=SEQ_LEN,
        batch_size=BATCH_SIZE,
        num_lanes=NUM_LANES,
        seed=request["seed"],
        num_workers=1,
        local=tempfile.mkdtemp(prefix="cache-", dir=Path(request["dataset"]).parent),
        packing=packing,
        overflow=overflow,
        open_rows=OPEN_ROWS,
    )
    batches = iter(loader)
    rows = request["turn_rows"]
    # warm up until the open rows are as full as they get; the first batch is a block by itself
    for _ in islice(batches, 1 + request["warm_up_rows"] // BATCH_SIZE):
        pass
    last = {"worker": worker_cpu(), "trainer": time.process_time()}

    def take(_: Message) -> Message:
        # the worker's CPU time after the last batch of a turn counts toward the next turn
        started, tokens = time.perf_counter(), 0
        for batch in islice(batches, rows // BATCH_SIZE):
            tokens += int((batch.spans[:, SPAN_STOP] - batch.spans[:, SPAN_START]).sum())
        wall = time.perf_counter() - started
        now = {"worker": worker_cpu(), "trainer": time.process_time()}
        spent = {name: seconds - last[name] for name, seconds in now.items()}
        last.update(now)
        return {"rows": rows, "tokens": tokens, "wall": wall, **spent}

    return take


def worker_cpu() -> float:
    """Return the CPU seconds that the worker process has used so far."""
    return sum(cpu_of(child.pid or 0) for child in multiprocessing.active_children())


if __name__ == "__main__":
    serve(start_loader)
