"""Compare the converter with other ways to write MDS, and check that its output is deterministic.

    python -m benchmarks.convert --corpus FOLDER

speed   The ways take turns to convert the same documents to zstd shards. Each file format of the
        input has its own table. MB are MB of text. CPU seconds include the worker processes. The
        coordinator is the process that starts the workers, and its share is a share of the CPU
        seconds. Peak memory is the largest resident set of any process that converts. Peak disk is
        the space of temporary files and caches.
store   The same for cloudload, with the input and the output in an S3 server on this machine.
hash    SHA-256 of all shards and the index, with 1, 2 and 5 processes. The exit status is 1 if the
        hashes differ.

cloudload       `convert_to_mds`, with segments of 64 MiB
MDSWriter       a pool of processes. Each reads its files and writes a folder with Streaming's
                MDSWriter, with the same columns and hashes as cloudload. The indexes are merged at
                the end.
llm-foundry     like its script `convert_dataset_json` without tokenization: Hugging Face datasets
                loads the files, and one process writes their text with MDSWriter, without hashes

The input repeats the corpus up to --distinct-mb, each time in a different order and with each
document rotated, and then repeats these files up to --megabytes. Without --corpus, the text is
generated.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.convert.inputs import FORMS, Input, write_inputs
from benchmarks.convert.sampling import Sampler
from benchmarks.convert.side import SEGMENT_BYTES, WAYS
from benchmarks.documents import add_documents, read_or_generate
from benchmarks.figures import Row, print_tables
from benchmarks.harness import Message, Options, Side, exit_on_sigterm, note
from cloudload import convert_to_mds
from cloudload.data.storage.objects import write_object
from testkit.servers import BUCKET, start_s3

MOST_TEXT_BYTES = 40e6
HASHED_PROCESSES = (1, 2, 5)
PARTS = ("speed", "store", "hash")


def main() -> None:
    options = Options(__doc__)
    add_documents(options, megabytes=1000.0)
    options.add_amount("distinct-mb", 250.0, 0.5, "megabytes of distinct text")
    options.add_amount("repeats", 5, 1, "number of turns per way")
    add = options.add_argument
    add(
        "--processes",
        type=int,
        nargs="+",
        default=[1, 2],
        help="numbers of processes (default: 1 2)",
    )
    add(
        "--forms",
        nargs="+",
        default=list(FORMS),
        choices=FORMS,
        help="use only these input formats",
    )
    add("--ways", nargs="+", default=list(WAYS), choices=list(WAYS), help="compare only these ways")
    add("--only", nargs="+", default=list(PARTS), choices=PARTS, help="run only these parts")
    args = options.parse()
    exit_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="cloudload-bench-") as folder, open_store(args):
        print_tables(measure(args, Path(folder)), as_json=args.json)


@contextlib.contextmanager
def open_store(args: argparse.Namespace) -> Iterator[None]:
    """Start an S3 server if a part needs it."""
    if "store" not in args.only:
        yield
        return
    with start_s3(BUCKET) as server:
        os.environ.update(server.environment())
        yield


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Measure the chosen parts, and yield the title and the rows of each table."""
    pool = read_or_generate(args.corpus, min(MOST_TEXT_BYTES, 1e6 * args.distinct_mb))
    for form in args.forms:
        data = write_inputs(folder, form, pool, 1e6 * args.distinct_mb, 1e6 * args.megabytes)
        title = f"{form}, {data.text_bytes / 1e6:,.0f} MB of text, {data.stored_bytes / 1e6:,.0f}"
        if "speed" in args.only:
            yield f"{title} MB stored", race(data, args, folder)
        if "store" in args.only:
            yield f"{title} MB stored in S3", convert_in_store(data, args, folder)
        data.remove()
    if "hash" in args.only:
        data = write_inputs(folder, "jsonl.gz", pool, 1e6 * args.distinct_mb, 0.0)
        yield "hash", hash_outputs(data, folder)


# ---------------------------------------------------------------- speed


def race(data: Input, args: argparse.Namespace, folder: Path) -> list[Row]:
    """Run the ways in turns, and return a row for each way and number of processes."""
    turns: dict[tuple[str, int], list[Message]] = {
        (way, processes): []
        for way in args.ways
        for processes in args.processes
        if processes == 1 or WAYS[way].is_parallel
    }
    with open_sides(args.ways) as sides:
        for number in range(args.repeats):
            for (way, processes), found in turns.items():
                found.append(take_turn(sides[way], str(data.folder), None, processes, folder))
                note(f"{data.form}, turn {number + 1}, {way}, {processes=}: {found[-1]}")
    for (way, _), found in turns.items():
        for turn in found:
            if turn["documents"] != data.documents:
                raise SystemExit(
                    f"{way} wrote {turn['documents']} documents, but its input has {data.documents}"
                )
    return [row_of(way, number, found, data) for (way, number), found in turns.items()]


@contextlib.contextmanager
def open_sides(ways: list[str]) -> Iterator[dict[str, Side]]:
    """Start a process for each way. A process is stopped except during its turns."""
    with contextlib.ExitStack() as stack:
        sides = {way: stack.enter_context(Side("benchmarks.convert.side")) for way in ways}
        for way, side in sides.items():
            side.start({"way": way})
        yield sides


def take_turn(
    side: Side, inputs: str, out: str | None, processes: int, folder: Path
) -> dict[str, float]:
    """Convert the input once, and return the seconds, the bytes and the number of documents."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="turn-") as work:
        scratch = Path(work, "scratch")
        scratch.mkdir()
        question = {"inputs": inputs, "out": out or f"{work}/out", "processes": processes}
        with Sampler(side.pid, scratch) as sampler:
            answer = side.take_turn(question | {"scratch": str(scratch)})
        return answer | {"memory": sampler.memory(processes), "disk": sampler.disk}


def row_of(way: str, processes: int, turns: list[Message], data: Input) -> Row:
    """Return the table row of a way. Lists of values, one per turn, are shown as spreads."""
    return {
        "way": way,
        "processes": processes,
        "MB/s": [data.text_bytes / 1e6 / turn["wall"] for turn in turns],
        "MB per CPU s": [data.text_bytes / 1e6 / turn["cpu"] for turn in turns],
        "CPU s": [turn["cpu"] for turn in turns],
        "coordinator's share": None
        if processes == 1
        else f"{max(turn['own_cpu'] / turn['cpu'] for turn in turns):.1%}",
        "peak MB of memory": max(turn["memory"] for turn in turns) / 1e6,
        "peak MB of disk": max(turn["disk"] for turn in turns) / 1e6,
        "MB written": turns[0]["written"] / 1e6,
    }


# ---------------------------------------------------------------- store


def convert_in_store(data: Input, args: argparse.Namespace, folder: Path) -> list[Row]:
    """Convert from and to an S3 server with each number of processes."""
    rows, inputs = [], f"s3://{BUCKET}/{data.form}"
    for path in sorted(data.folder.iterdir()):
        write_object(f"{inputs}/{path.name}", path.read_bytes())
    for processes in args.processes:
        with open_sides(["cloudload"]) as sides:
            turn = take_turn(sides["cloudload"], inputs, f"{inputs}-{processes}", processes, folder)
        rows.append(row_of("cloudload", processes, [turn], data))
    return rows


# ---------------------------------------------------------------- hash


def hash_outputs(data: Input, folder: Path) -> list[Row]:
    """Convert with each number of processes, and hash the output.

    Raises `SystemExit` if the hashes differ.
    """
    rows: list[Row] = []
    for processes in HASHED_PROCESSES:
        out = folder / f"out{processes}"
        convert_to_mds(
            data.folder,
            out,
            processes=processes,
            progress=False,
            shard_bytes=4 << 20,
            segment_bytes=SEGMENT_BYTES // 16,
        )
        digest = hashlib.sha256()
        for path in sorted([*out.rglob("shard.*"), out / "index.json"]):
            digest.update(str(path.relative_to(out)).encode() + path.read_bytes())
        rows.append({"processes": processes, "SHA-256": digest.hexdigest()})
    if len({row["SHA-256"] for row in rows}) > 1:
        raise SystemExit(
            "convert_to_mds must write the same output with any number of processes, but wrote "
            f"{rows}"
        )
    return rows


if __name__ == "__main__":
    main()
