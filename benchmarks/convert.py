"""How fast the converter is, and whether the number of processes shows in its output.

    python -m benchmarks.convert [CORPUS...] [--repeats 5] [--megabytes 400]

Prints MB/s of uncompressed input with 1 and 2 processes (median, and the range), start of the
worker processes included, and the SHA-256 of all shards and the index with 1, 2 and 5 processes.
Without a corpus it takes `../shared/corpus/*.jsonl.gz` where that exists, or makes one. The corpus
is repeated, gzipped and plain, to the megabytes asked for.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import random
import statistics
import tempfile
from pathlib import Path

from cloudload.convert.convert import convert_to_mds

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Run the benchmark and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", nargs="*", type=Path, help="files of JSON lines, gzipped")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=400, help="uncompressed input of each run")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-convert-") as folder:
        data = _corpus(options.corpus)
        for form in ("jsonl", "jsonl.gz"):
            size = _write(Path(folder, form), data, form, options.megabytes * 1_000_000)
            _time(Path(folder), form, size, options)
        _hash(Path(folder))


def _corpus(files: list[Path]) -> list[bytes]:
    files = files or sorted((ROOT.parent / "shared" / "corpus").glob("*.jsonl.gz"))
    if files:
        return [gzip.decompress(path.read_bytes()) for path in files]
    draw = random.Random(1)
    words = [f"w{number}" for number in range(20_000)]
    return [
        b"".join(
            json.dumps({"text": " ".join(draw.choices(words, k=700))}).encode() + b"\n"
            for _ in range(10_000)
        )
    ]


def _write(folder: Path, data: list[bytes], form: str, target: int) -> int:
    """Files until `target` uncompressed bytes are there; returns how many there are."""
    folder.mkdir()
    size = number = 0
    packed = [gzip.compress(part, 6) if form.endswith(".gz") else part for part in data]
    while size < target:
        (folder / f"{number:05}.{form}").write_bytes(packed[number % len(data)])
        size += len(data[number % len(data)])
        number += 1
    return size


def _time(folder: Path, form: str, size: int, options: argparse.Namespace) -> None:
    print(f"{form}: {size / 1e6:.0f} MB uncompressed")
    speeds: dict[int, list[float]] = {processes: [] for processes in options.processes}
    for _ in range(options.repeats):
        for processes, measured in speeds.items():
            report = convert_to_mds(
                folder / form, folder / "out", processes=processes, progress=False, overwrite=True
            )
            measured.append(size / 1e6 / report.seconds)
    for processes, measured in speeds.items():
        median = statistics.median(measured)
        print(
            f"  {processes} processes  {median:6.1f} MB/s  ({min(measured):.1f} to "
            f"{max(measured):.1f}, {len(measured)} runs)"
        )


def _hash(folder: Path) -> None:
    print("SHA-256 of all shards and the index")
    for processes in (1, 2, 5):
        out = folder / f"out{processes}"
        convert_to_mds(
            folder / "jsonl.gz", out, processes=processes, progress=False, shard_bytes=4 << 20
        )
        digest = hashlib.sha256()
        for path in sorted([*out.glob("shard.*"), out / "index.json"]):
            digest.update(path.name.encode() + path.read_bytes())
        print(f"  {processes} processes  {digest.hexdigest()}")


if __name__ == "__main__":
    main()
