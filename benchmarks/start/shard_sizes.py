"""Measure how the shard size affects requests, bytes and the time to the first batch on S3.

    python -m benchmarks.start.shard_sizes --corpus FOLDER --tokenizer FOLDER

Writes the same documents as zstd shards of each raw size. The S3 server is on this machine, behind
a proxy that delays every request by --latency-ms.

first batch   the seconds from the construction of a loader to its first batch, and its requests and
              bytes until then. The loader has one worker and default options, and starts in a new
              process with an empty cache. The sizes take turns.
epoch         the requests and bytes of an epoch on one node
zstd          the number of raw bytes per stored byte
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.documents import add_documents, framing_of, read_documents, repeat
from benchmarks.figures import Row
from benchmarks.harness import note
from benchmarks.options import Options, temporary_folder
from benchmarks.start.first_batches import Store, open_store
from testkit.servers import BUCKET


@dataclass
class Measured:
    """The figures for one shard size."""

    shards: int
    ratio: float
    stored_bytes: int
    seconds: list[float] = field(default_factory=list)
    first_bytes: list[float] = field(default_factory=list)
    first_requests: list[float] = field(default_factory=list)
    epoch_requests: int = 0
    epoch_bytes: int = 0


def main() -> None:
    options = Options(__doc__)
    add_documents(options, megabytes=40.0)
    options.add_amount("dataset-mb", 1600.0, 4.0, "megabytes of text in the dataset")
    options.add_amount("latency-ms", 20.0, 2.0, "delay of every request, in milliseconds")
    options.add_amount("repeats", 5, 1, "number of timed starts per shard size")
    sizes = "shard sizes, in megabytes of text (default: 8 16 32 64)"
    options.add_argument("--shard-mb", type=float, nargs="+", default=[8, 16, 32, 64], help=sizes)
    options.run(measure)


def measure(args: argparse.Namespace, work: Path) -> Iterator[tuple[str, list[Row]]]:
    """Measure every shard size, and yield the title and the rows of the table."""
    pool = read_documents(args)
    [tokenizer] = args.tokenizer
    with open_store(tokenizer, framing_of(tokenizer)[0], args.latency_ms) as store:
        found = {size: write_shards(pool, size, args.dataset_mb) for size in args.shard_mb}
        for _ in range(args.repeats):
            for size, measured in found.items():
                run_to_first_batch(store, size, measured, work)
        for size, measured in found.items():
            run_epoch(store, size, measured, work)
    yield f"{args.dataset_mb:g} MB of text", [row_of(*item) for item in found.items()]


def url_of(size: float) -> str:
    return f"s3://{BUCKET}/shards-{size:g}"


def write_shards(pool: list[str], size: float, dataset_mb: float) -> Measured:
    """Write the dataset with shards of `size` MB."""
    from cloudload import convert_to_mds

    samples = repeat(pool, int(1e6 * dataset_mb))
    report = convert_to_mds(samples, url_of(size), shard_bytes=int(1e6 * size), progress=False)
    note(
        f"{size:g} MB per shard: {report.shards} shards, {report.stored_bytes / 1e6:.1f} MB stored"
    )
    return Measured(report.shards, report.raw_bytes / report.stored_bytes, report.stored_bytes)


def run_to_first_batch(store: Store, size: float, measured: Measured, work: Path) -> None:
    store.reset(0)
    with (
        temporary_folder(work) as cache,
        store.start("first_batch", "cloudload", 0, cache, data=url_of(size)) as process,
    ):
        result = process.answer()
        # count before the loader is closed, because until then it keeps downloading
        requests, size_of_all = store.requested(0), store.downloaded(0)
    measured.seconds.append(result["seconds"])
    measured.first_bytes.append(float(size_of_all))
    measured.first_requests.append(float(requests))
    note(
        f"{size:g} MB per shard: first batch after {result['seconds']:.2f} s, "
        f"{size_of_all / 1e6:.1f} MB, and {requests} requests"
    )


def run_epoch(store: Store, size: float, measured: Measured, work: Path) -> None:
    store.reset(0)
    with (
        temporary_folder(work) as cache,
        store.start("epoch", "cloudload", 0, cache, data=url_of(size)) as process,
    ):
        process.answer()
        measured.epoch_requests, measured.epoch_bytes = store.requested(0), store.downloaded(0)


def row_of(size: float, measured: Measured) -> Row:
    """Return the table row of a shard size, which is in MB."""
    return {
        "MB of a shard": size,
        "shards": measured.shards,
        "s to the first batch": measured.seconds,
        "MB until then": [size / 1e6 for size in measured.first_bytes],
        "requests until then": measured.first_requests,
        "requests of an epoch": measured.epoch_requests,
        "bytes of an epoch / dataset": measured.epoch_bytes / measured.stored_bytes,
        "raw bytes per stored byte": measured.ratio,
    }


if __name__ == "__main__":
    main()
