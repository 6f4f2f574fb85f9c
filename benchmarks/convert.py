"""Measure the converter's speed, and check that its output does not depend on its processes.

    python -m benchmarks.convert --corpus FOLDER

speed   MB/s of uncompressed input, including the start of the worker processes. The input is JSON
        Lines, plain and gzipped, with the corpus repeated up to --megabytes.
hash    SHA-256 of all shards and the index, with 1, 2 and 5 processes. The exit status is 1 if the
        hashes differ.

Without --corpus, text is generated.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.documents import add_documents, read_or_generate
from benchmarks.figures import Row, print_tables
from benchmarks.harness import Options
from cloudload import convert_to_mds

MOST_TEXT_BYTES, FILE_BYTES = 40e6, 8e6
HASHED_PROCESSES = (1, 2, 5)
SEGMENT_BYTES = 32 << 20  # so that a few hundred MB are work for several processes


def main() -> None:
    options = Options(__doc__)
    add_documents(options, megabytes=400.0)
    options.add_amount("repeats", 5, 1, "conversions with each number of processes")
    options.add_argument(
        "--processes",
        type=int,
        nargs="+",
        default=[1, 2],
        help="numbers of processes (default: 1 2)",
    )
    args = options.parse()
    with tempfile.TemporaryDirectory(prefix="cloudload-bench-") as folder:
        print_tables(measure(args, Path(folder)), as_json=args.json)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield (title, rows) of each part's tables."""
    files = make_files(read_or_generate(args.corpus, min(MOST_TEXT_BYTES, 1e6 * args.megabytes)))
    for form in ("jsonl", "jsonl.gz"):
        size = write_inputs(folder / form, files, int(1e6 * args.megabytes))
        yield (
            f"{form}, {size / 1e6:.0f} MB uncompressed",
            time_conversions(folder / form, size, args),
        )
    yield "hash", hash_outputs(folder)


def make_files(texts: list[str]) -> list[bytes]:
    """Format the texts as JSON Lines, in files of about 8 MB."""
    files, lines, size = [], [], 0
    for text in texts:
        lines.append(json.dumps({"text": text}) + "\n")
        size += len(lines[-1])
        if size > FILE_BYTES:
            files.append("".join(lines).encode())
            lines, size = [], 0
    return [*files, "".join(lines).encode()] if lines else files


def write_inputs(folder: Path, files: list[bytes], target: int) -> int:
    """Write the files repeatedly until they have `target` uncompressed bytes; return their size."""
    folder.mkdir()
    form = folder.name
    stored = [gzip.compress(file, 6) if form.endswith(".gz") else file for file in files]
    size = number = 0
    while size < target:
        (folder / f"{number:05}.{form}").write_bytes(stored[number % len(files)])
        size += len(files[number % len(files)])
        number += 1
    return size


def time_conversions(inputs: Path, size: int, args: argparse.Namespace) -> list[Row]:
    """Measure MB/s for each number of processes. They take turns in each repeat."""
    speeds: dict[int, list[float]] = {processes: [] for processes in args.processes}
    for _ in range(args.repeats):
        for processes, measured in speeds.items():
            out = inputs.with_name("out")
            report = convert_to_mds(
                inputs,
                out,
                processes=processes,
                segment_bytes=SEGMENT_BYTES,
                progress=False,
                overwrite=True,
            )
            measured.append(size / 1e6 / report.seconds)
    return [{"processes": number, "MB/s": measured} for number, measured in speeds.items()]


def hash_outputs(folder: Path) -> list[Row]:
    """Hash the output for each number of processes. Raises `SystemExit` if the hashes differ."""
    rows: list[Row] = []
    for processes in HASHED_PROCESSES:
        out, inputs = folder / f"out{processes}", folder / "jsonl.gz"
        convert_to_mds(
            inputs,
            out,
            processes=processes,
            progress=False,
            shard_bytes=4 << 20,
            segment_bytes=SEGMENT_BYTES // 8,
        )
        digest = hashlib.sha256()
        for path in sorted([*out.rglob("shard.*"), out / "index.json"]):
            digest.update(str(path.relative_to(out)).encode() + path.read_bytes())
        rows.append({"processes": processes, "SHA-256": digest.hexdigest()})
    if len({row["SHA-256"] for row in rows}) > 1:
        raise SystemExit(f"the output depends on the number of processes: {rows}")
    return rows


if __name__ == "__main__":
    main()
