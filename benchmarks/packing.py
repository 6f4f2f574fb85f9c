"""How full the packings leave their rows, what they cost, and what the state of `best_fit` weighs.

    python -m benchmarks.packing --corpus FOLDER --tokenizer TOKENIZER-FOLDER
    python -m benchmarks.packing --only speed --corpus FOLDER --tokenizer ONE-FOLDER ANOTHER --json

FOLDER has *.jsonl.gz with a field `text`. Prints a table for each part, or with --json one object
with every value measured.

    fill     real tokens as a share of the emitted rows, beside best-fit-decreasing, which sees all documents at once. Documents
             have log-normal sizes, or those of the corpus, shuffled anew in each of several epochs. Rows still open at the end
             are not emitted; what they would add is beside it (a loader whose lanes end packs those tokens anew, as one tail).
    speed    rows a second through a loader with one worker, relative to concat. All sides share one core, which each has in
             short turns, with its trainer and its worker. By wall time, and by CPU time of the worker.
    cost     CPU time of the packers alone, on sizes; also without the residues, which rows would have to do without.
    state    bytes of a state, and the CPU time of state_dict(). Real packers have run on log-normal sizes until their lanes had
             open rows, but not through a loader: their cursors and residues are put into one.

Without --corpus, text is generated, and fill is of log-normal sizes only; without --tokenizer, the
example's is used.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from multiprocessing import active_children
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from benchmarks.loader import generate_texts, note, read_texts, serve_turns, take_turn
from cloudload.packing.packers import Packer, Packing

ROOT = Path(__file__).resolve().parents[1]

OPEN_ROWS = 16
SEQ_LEN, BATCH_SIZE, NUM_LANES, WARM_UP_ROWS, TURNS_A_ROUND = 2048, 8, 60, 2_400, 24
ROWS_OF_A_LIST = 32  # that a worker makes and sends at once; a turn ends where a list does
COST_WARM_UP, COST_DOCUMENTS = 2_000, 20_000
STATE_LANES, STATE_DOCUMENTS = (64, 960, 8192), 150
EPOCHS_OF_DOCUMENTS = 150_000

PACKINGS = {
    "concat": {"packing": "concat"},
    "best_fit": {"packing": "best_fit", "open_rows": OPEN_ROWS},
    "one_per_row, rows": {"packing": "one_per_row", "overflow": "rows"},
    "one_per_row, cut": {"packing": "one_per_row", "overflow": "cut"},
}

Row = dict[str, Any]
"""A row of a table by column. A list of numbers is shown as its median and extremes."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, metavar="FOLDER", help="with *.jsonl.gz")
    parser.add_argument(
        "--tokenizer", nargs="+", default=[str(ROOT / "examples" / "tokenizer")], metavar="FOLDER"
    )
    parser.add_argument(
        "--documents",
        type=int,
        default=1_000_000,
        help="of log-normal sizes (default: %(default)s)",
    )
    parser.add_argument(
        "--megabytes",
        type=float,
        default=24.0,
        help="of text that is generated (default: %(default)s)",
    )
    parser.add_argument("--repeats", type=int, default=5, help="default: %(default)s")
    parser.add_argument(
        "--only", nargs="+", choices=["fill", "speed", "cost", "state"], help="some parts"
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object in place of the tables"
    )
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        serve_side(**json.loads(args.side))
        return
    parts = args.only or ["fill", "speed", "cost", "state"]
    with tempfile.TemporaryDirectory(prefix="cloudload-bench-") as folder:
        tables = dict(measure(args, parts, Path(folder)))
    if args.json:
        print(json.dumps(tables))
        return
    for title, rows in tables.items():
        print_table(title, rows)


def measure(
    args: argparse.Namespace, parts: Sequence[str], folder: Path
) -> Iterator[tuple[str, list[Row]]]:
    """The tables of all parts."""
    drawn = draw_sizes(args.documents)
    sizes: dict[str, list[int]] = {}
    if set(parts) & {"fill", "speed", "cost"}:
        texts = read_corpus(args)
        wanted = args.tokenizer if "speed" in parts else args.tokenizer[:1]
        sizes = {tokenizer: count_tokens(texts, tokenizer) for tokenizer in wanted}
    first = args.tokenizer[0]
    if "fill" in parts:
        yield "fill: log-normal sizes", measure_fill(drawn, (1, 960))
        if args.corpus:
            yield (
                f"fill: corpus, {Path(first).name}",
                measure_fill(repeat_shuffled(sizes[first], EPOCHS_OF_DOCUMENTS), (1, 12)),
            )
    if "cost" in parts:
        corpus = repeat_shuffled(sizes[first], COST_WARM_UP + COST_DOCUMENTS)
        of_corpus = time_packers(
            f"{'corpus' if args.corpus else 'generated'}, {Path(first).name}", corpus, args.repeats
        )
        yield (
            "cost: CPU time of the packers alone",
            time_packers("log-normal", drawn, args.repeats) + of_corpus,
        )
    if "speed" in parts:
        dataset = write_dataset(texts, folder)
        for tokenizer in args.tokenizer:
            yield (
                f"speed: one worker, relative to concat, {Path(tokenizer).name}",
                race(dataset, tokenizer, sizes[tokenizer], args.repeats),
            )
    if "state" in parts:
        yield (
            f"state: best_fit, {OPEN_ROWS} open rows, seq_len {SEQ_LEN}",
            weigh_states(folder, first, drawn),
        )


# ---------------------------------------------------------------- tables

FORMS = {
    "seq_len": "d",
    "rows": ",d",
    "fill": ".2%",
    "with open rows": ".2%",
    "left out": ".2%",
    "µs/document": ".2f",
    "µs/row": ".1f",
    "s": ".1f",
}


def print_table(title: str, rows: list[Row]) -> None:
    """Plain columns; numbers to the right."""
    columns = list(rows[0])
    texts = [columns, *([show(row[column], column) for column in columns] for row in rows)]
    widths = [max(len(text[number]) for text in texts) for number in range(len(columns))]
    is_text = [isinstance(rows[0][column], str) for column in columns]
    print(f"\n{title}\n")
    for text in texts:
        cells = zip(text, widths, is_text, strict=True)
        print(
            "  ".join(
                cell.ljust(width) if left else cell.rjust(width) for cell, width, left in cells
            ).rstrip()
        )


def show(value: Any, column: str) -> str:
    """A value of a table as text."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    form = FORMS.get(column, ".3f" if "/ concat" in column else ",.0f")
    if isinstance(value, list):
        return f"{statistics.median(value):{form}} ({min(value):{form}} to {max(value):{form}})"
    return format(value, form)


# ---------------------------------------------------------------- documents


def draw_sizes(count: int) -> list[int]:
    """Log-normal sizes, as those of web pages are: 493 tokens at the median, 902 on average."""
    drawn = np.random.default_rng(0).lognormal(6.2, 1.1, count)
    return [int(size) for size in np.maximum(1, drawn.round())]


def read_corpus(args: argparse.Namespace) -> list[str]:
    """The texts of all files in one fixed shuffle."""
    files = sorted(args.corpus.glob("*.jsonl.gz")) if args.corpus else []
    if args.corpus and not files:
        sys.exit(f"no *.jsonl.gz in {args.corpus}")
    texts = list(read_texts(files, float("inf")) if files else generate_texts(args.megabytes * 1e6))
    note(f"{len(texts):,} documents, {sum(len(text.encode()) for text in texts) / 1e6:.1f} MB")
    return [texts[place] for place in np.random.default_rng(0).permutation(len(texts))]


def count_tokens(texts: Sequence[str], tokenizer: str) -> list[int]:
    """The tokens of each text as the loader counts them, with what frames a document."""
    from cloudload.tokenization.tokenizer import DocumentTokenizer, load_tokenizer

    encoder = DocumentTokenizer(load_tokenizer(tokenizer))
    frame = sum(token is not None for token in encoder.frames[0])
    chunks = [texts[start : start + 64] for start in range(0, len(texts), 64)]
    bounds = [encoder.encode_flat(chunk)[1] for chunk in chunks]
    sizes = [int(size) + frame for offsets in bounds for size in np.diff(offsets)]
    note(
        f"{Path(tokenizer).name}: {sum(sizes):,} tokens, "
        f"{np.median(sizes):.0f} a document at the median"
    )
    return sizes


def repeat_shuffled(sizes: Sequence[int], least: int) -> list[int]:
    """Whole epochs, each shuffled anew, until there are `least` documents."""
    dice = np.random.default_rng(0)
    epochs = [dice.permutation(sizes) for _ in range(-(-least // len(sizes)))]
    return [int(size) for size in np.concatenate(epochs)]


# ---------------------------------------------------------------- fill


class Fill(NamedTuple):
    """Rows and the real tokens in them."""

    rows: int
    tokens: int

    def share(self, seq_len: int) -> float:
        """Of the rows' positions."""
        return self.tokens / max(1, self.rows * seq_len)


def measure_fill(sizes: Sequence[int], lane_counts: Iterable[int]) -> list[Row]:
    """How full the rows of each packing are, and how full they could be with all documents in
    sight."""
    total = sum(sizes)
    table: list[Row] = []
    for seq_len in (2048, 4096):
        settings = [
            ("best_fit", open_rows, "cut", lanes)
            for lanes in lane_counts
            for open_rows in (4, 16, 64)
        ]
        for name, open_rows, overflow, lanes in [
            *settings,
            ("one_per_row", 1, "rows", 1),
            ("one_per_row", 1, "cut", 1),
        ]:
            packing = Packing(name, seq_len, open_rows, overflow)
            what = f"best_fit, {open_rows} open" if name == "best_fit" else f"{name}, {overflow}"
            truncated = sum(max(0, size - seq_len) for size in sizes) if packing.cuts else 0
            left_out = truncated / total
            table.append(
                {
                    "rows by": what,
                    "lanes": lanes,
                    "left out": left_out,
                    **fill_row(seq_len, pack_lanes, packing, sizes, lanes),
                }
            )
        offline = {"rows by": "best-fit-decreasing, offline", "lanes": None, "left out": 0.0}
        table.append(offline | fill_row(seq_len, pack_decreasing, sizes, seq_len))
        bound = Fill(-(-total // seq_len), total)
        table.append(
            offline
            | {"rows by": "no padding but in the last row"}
            | fill_row(seq_len, lambda bound=bound: (bound, bound))
        )
    return table


def fill_row(seq_len: int, pack: Callable[..., tuple[Fill, Fill]], *arguments: Any) -> Row:
    """What `pack` gives: the rows without those that were open at the end, and with them."""
    started = time.perf_counter()
    emitted, whole = pack(*arguments)
    return {
        "seq_len": seq_len,
        "rows": emitted.rows,
        "fill": emitted.share(seq_len),
        "with open rows": whole.share(seq_len),
        "s": time.perf_counter() - started,
    }


def pack_lanes(packing: Packing, sizes: Sequence[int], num_lanes: int) -> tuple[Fill, Fill]:
    """Deal the documents round the lanes, and pack each: what was emitted, and what it is with the
    rows open at the end."""
    emitted, whole = Fill(0, 0), Fill(0, 0)
    # nobody resumes from these rows, and residues do not show in them
    with patch("cloudload.pack.encode_residue", lambda *_: b""):
        for lane in range(num_lanes):
            packer = packing.packer()
            before = count(run_packer(packer, sizes[lane::num_lanes]))
            packer.finish()
            after = count([*take_rows(packer)])
            emitted = Fill(emitted.rows + before.rows, emitted.tokens + before.tokens)
            whole = Fill(
                whole.rows + before.rows + after.rows, whole.tokens + before.tokens + after.tokens
            )
    return emitted, whole


def run_packer(packer: Packer, sizes: Iterable[int], first: int = 0) -> Iterator[int]:
    """The tokens of each row that comes of the documents."""
    for ordinal, size in enumerate(sizes, first):
        packer.add(ordinal, size)
        if packer.rows:
            yield from take_rows(packer)


def take_rows(packer: Packer) -> Iterator[int]:
    """The tokens of each row that waits."""
    while packer.rows:
        yield sum(piece.stop - piece.start for piece in packer.rows.popleft().pieces)


def count(lengths: Iterable[int]) -> Fill:
    rows = tokens = 0
    for length in lengths:
        rows += 1
        tokens += length
    return Fill(rows, tokens)


def pack_decreasing(sizes: Sequence[int], seq_len: int) -> tuple[Fill, Fill]:
    """Best-fit-decreasing: longer documents give whole rows first, then the largest piece goes
    where it leaves least.

    `rooms` counts the rows by free space, and is all that is known of them; bit f of `is_there`
    says whether there is one.
    """
    rest = sorted((size % seq_len for size in sizes), reverse=True)
    rows = sum(size // seq_len for size in sizes)
    rooms, is_there = [0] * (seq_len + 1), 0
    for size in rest:
        if not size:
            break
        fitting = is_there >> size
        if fitting:
            free = size + (fitting & -fitting).bit_length() - 1
            rooms[free] -= 1
            if not rooms[free]:
                is_there ^= 1 << free
        else:
            free = seq_len
            rows += 1
        if free > size:
            rooms[free - size] += 1
            is_there |= 1 << (free - size)
    fill = Fill(rows, sum(sizes))
    return fill, fill


# ---------------------------------------------------------------- cost


def time_packers(documents: str, sizes: Sequence[int], repeats: int) -> list[Row]:
    """CPU time of each packer on its own, in turns."""
    sizes = sizes[: COST_WARM_UP + COST_DOCUMENTS]
    kinds = [(name, True) for name in PACKINGS] + [("best_fit", False)]
    seconds: dict[tuple[str, bool], list[float]] = {kind: [] for kind in kinds}
    rows: dict[tuple[str, bool], int] = {}
    for _ in range(repeats):
        for kind in kinds:
            rows[kind], spent = time_packer(*kind, sizes)
            seconds[kind].append(spent)
    count = len(sizes) - COST_WARM_UP
    return [
        {
            "documents": documents,
            "packing": name if has_residues else f"{name}, no residues",
            "µs/document": [1e6 * spent / count for spent in seconds[name, has_residues]],
            "µs/row": [
                1e6 * spent / rows[name, has_residues] for spent in seconds[name, has_residues]
            ],
        }
        for name, has_residues in kinds
    ]


def time_packer(name: str, has_residues: bool, sizes: Sequence[int]) -> tuple[int, float]:
    """Rows and CPU seconds of one run, after a warm-up that opens as many rows as are ever open."""
    from cloudload.pack import encode_residue

    packer = make_packing(name).packer()
    with patch("cloudload.pack.encode_residue", encode_residue if has_residues else lambda *_: b""):
        for ordinal, size in enumerate(sizes[:COST_WARM_UP]):
            packer.add(ordinal, size)
        packer.rows.clear()
        rows, started = 0, time.process_time()
        for ordinal, size in enumerate(sizes[COST_WARM_UP:], COST_WARM_UP):
            packer.add(ordinal, size)
            while packer.rows:
                packer.rows.popleft()
                rows += 1
        return rows, time.process_time() - started


def make_packing(name: str) -> Packing:
    """A packing of the table, as a loader makes it."""
    arguments = {"open_rows": OPEN_ROWS, "overflow": "cut", **PACKINGS[name]}
    return Packing(
        str(arguments["packing"]), SEQ_LEN, int(arguments["open_rows"]), str(arguments["overflow"])
    )


# ---------------------------------------------------------------- speed


def write_dataset(texts: Sequence[str], folder: Path) -> str:
    """An MDS dataset of the texts."""
    from cloudload import convert_to_mds

    (folder / "mds").mkdir()
    convert_to_mds(
        iter([{"text": text} for text in texts]),
        folder / "mds",
        shard_bytes=1 << 20,
        progress=False,
    )
    return str(folder / "mds")


def race(dataset: str, tokenizer: str, sizes: Sequence[int], repeats: int) -> list[Row]:
    """Rows a second of each packing. In a round each side reads about an epoch, in processes of its
    own: how a tokenizer happens to lie in memory makes some faster than others for as long as they
    live."""
    note(f"speed, {Path(tokenizer).name}")
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in PACKINGS}
    for number in range(repeats):
        turns: dict[str, list[dict[str, float]]] = {name: [] for name in PACKINGS}
        with start_sides(dataset, tokenizer, sizes, seed=number) as sides:
            for _ in range(TURNS_A_ROUND):
                for name, side in sides.items():
                    turns[name].append(take_turn(side))
        for name, done in turns.items():
            rounds[name].append({key: sum(turn[key] for turn in done) for key in done[0]})
            note(f"  round {number}, {name}: {rounds[name][-1]}")
    return [compare(name, rounds[name], rounds["concat"]) for name in PACKINGS]


def compare(
    name: str, rounds: Sequence[Mapping[str, float]], base: Sequence[Mapping[str, float]]
) -> Row:
    """A side's speeds, and each as a share of those of `base` in the same round."""

    def speeds(what: str, clock: str, side: Sequence[Mapping[str, float]]) -> list[float]:
        return [done[what] / done[clock] for done in side]

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


@contextmanager
def start_sides(
    dataset: str, tokenizer: str, sizes: Sequence[int], seed: int
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """A process group for each packing, ready and stopped."""
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    sides: dict[str, subprocess.Popen[str]] = {}
    try:
        for name in PACKINGS:
            rows = count(run_packer(make_packing(name).packer(), sizes)).rows
            turn_rows = ROWS_OF_A_LIST * max(1, round(rows / TURNS_A_ROUND / ROWS_OF_A_LIST))
            request = {
                "dataset": dataset,
                "tokenizer": tokenizer,
                "name": name,
                "turn_rows": turn_rows,
                "seed": seed,
            }
            command = [sys.executable, __file__, "--side", json.dumps(request)]
            sides[name] = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            output = sides[name].stdout
            assert output
            assert output.readline() == "ready\n"
            os.killpg(sides[name].pid, signal.SIGSTOP)
        yield sides
    finally:
        for side in sides.values():
            assert side.stdin
            os.killpg(side.pid, signal.SIGCONT)
            side.stdin.close()  # which ends it
            side.wait()


def serve_side(dataset: str, tokenizer: str, name: str, turn_rows: int, seed: int) -> None:
    """A side of the race: a loader with one worker, warm, on one core."""
    from cloudload import CloudLoader

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with (
        tempfile.TemporaryDirectory(prefix="cloudload-bench-") as cache,
        CloudLoader(
            dataset,
            tokenizer=tokenizer,
            seq_len=SEQ_LEN,
            batch_size=BATCH_SIZE,
            num_lanes=NUM_LANES,
            seed=seed,
            num_workers=1,
            local=cache,
            **PACKINGS[name],  # type: ignore[arg-type]
        ) as loader,
    ):
        batches = iter(loader)

        def turns() -> Iterator[dict[str, float]]:
            # from one turn to the next: what the worker does after its last batch is of the next
            # one
            worker, trainer = worker_cpu(), time.process_time()
            while True:
                tokens = sum(
                    count_real_tokens(batch.spans)
                    for batch in islice(batches, turn_rows // BATCH_SIZE)
                )
                spent = {"worker": worker_cpu() - worker, "trainer": time.process_time() - trainer}
                worker, trainer = worker + spent["worker"], trainer + spent["trainer"]
                yield {"rows": turn_rows, "tokens": tokens, **spent}

        # until open rows are as full as they ever will be. The first batch comes in a list of its
        # own
        for _ in islice(batches, 1 + WARM_UP_ROWS // BATCH_SIZE):
            pass
        serve_turns(turns())


def count_real_tokens(spans: np.ndarray[Any, Any]) -> int:
    return int((spans[:, 5] - spans[:, 4]).sum())


def worker_cpu() -> float:
    """CPU seconds of the worker process."""
    stats = [Path("/proc", str(child.pid), "stat").read_text() for child in active_children()]
    ticks = [int(field) for stat in stats for field in stat.rpartition(")")[2].split()[11:13]]
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


# ---------------------------------------------------------------- state


def weigh_states(folder: Path, tokenizer: str, sizes: Sequence[int]) -> list[Row]:
    """The bytes of a state as JSON, and the CPU time that saving and loading it take."""
    from cloudload import CloudLoader, convert_to_mds

    data = folder / "short-documents"
    convert_to_mds(
        iter([{"text": f"document {number} of many"} for number in range(20_000)]),
        data,
        progress=False,
    )
    table = []
    for num_lanes in STATE_LANES:
        for name in ("concat", "best_fit"):
            with CloudLoader(
                str(data),
                tokenizer=tokenizer,
                seq_len=SEQ_LEN,
                batch_size=64,
                num_lanes=num_lanes,
                num_workers=0,
                local=folder / "cache",
                **PACKINGS[name],  # type: ignore[arg-type]
            ) as loader:
                position = run_lanes(loader._history[-1], make_packing(name), sizes)
                loader._start_at(position)
                saving = time_calls(loader.state_dict, 200 if num_lanes < 4096 else 20)
                state = loader.state_dict()
                loading = time_calls(
                    lambda loader=loader, state=state: loader.load_state_dict(state), 5
                )
                assert loader.state_dict() == state
            raw = (
                None
                if position.residues is None
                else sum(map(len, position.residues.ravel().tolist()))
            )
            table.append(
                {
                    "packing": name,
                    "lanes": num_lanes,
                    "bytes of JSON": len(json.dumps(state)),
                    "of residues": len(state["residues"]),
                    "residues, raw": raw,
                    "CPU µs of state_dict()": saving,
                    "CPU µs of load_state_dict()": loading,
                }
            )
            note(f"  state, {name}, {num_lanes} lanes: {len(json.dumps(state)):,} bytes")
    return table


def run_lanes(start: Any, packing: Packing, sizes: Sequence[int]) -> Any:
    """The position `start` with each lane as its packer leaves it, after some more or fewer
    documents."""
    from dataclasses import replace

    cursors, residues = (
        start.cursors.copy(),
        None if start.residues is None else start.residues.copy(),
    )
    num_lanes, dice, drawn = cursors.shape[1], np.random.default_rng(0), np.array(sizes)
    for lane in range(num_lanes):
        packer = packing.packer()
        for ordinal, size in enumerate(
            dice.choice(drawn, STATE_DOCUMENTS + lane % STATE_DOCUMENTS).tolist()
        ):
            packer.add(ordinal, size)
        last = packer.rows[-1]
        cursors[0, lane] = last.cursor
        if residues is not None:
            residues[0, lane] = last.residue
    rows = num_lanes * STATE_DOCUMENTS
    return replace(start, rows=rows, table_rows=rows).with_lanes(cursors=cursors, residues=residues)


def time_calls(call: Any, repeats: int) -> list[float]:
    """CPU microseconds of each call."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        call()
        times.append(1e6 * (time.process_time() - started))
    return times


if __name__ == "__main__":
    main()
