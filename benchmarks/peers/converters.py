"""Convert files to zstd MDS shards, for `benchmarks.throughput.convert`."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Message, Take, UnavailableError, family_cpu, serve

SEGMENT_BYTES = 64 << 20
COLUMNS = {"id": "str", "text": "str"}


@dataclass(frozen=True)
class Way:
    """A way to convert all files of a folder, with `convert(inputs, out, processes)`.

    `modules` are imported before the first turn, so that no turn includes their imports.
    """

    convert: Callable[[str, str, int], object]
    is_parallel: bool
    modules: tuple[str, ...]


def convert_by_cloudload(inputs: str, out: str, processes: int) -> None:
    from cloudload import convert_to_mds

    convert_to_mds(inputs, out, processes=processes, segment_bytes=SEGMENT_BYTES, progress=False)


# ---------------------------------------------------------------- MDSWriter in a pool


def convert_by_pool(inputs: str, out: str, processes: int) -> None:
    files = [str(path) for path in sorted(Path(inputs).iterdir())]
    processes = min(processes, len(files))
    if processes == 1:
        write_files((files, out))
        return
    from streaming.base.util import merge_index

    shares = [(files[number::processes], f"{out}/{number}") for number in range(processes)]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        pool.map(write_files, shares, chunksize=1)
        pool.close()
        pool.join()
    merge_index([f"{folder}/index.json" for _, folder in shares], out)


def write_files(share: tuple[list[str], str]) -> None:
    """Write the documents of several files to one folder, as a process of the pool."""
    from streaming import MDSWriter

    files, out = share
    with MDSWriter(out=out, columns=COLUMNS, compression="zstd", hashes=["xxh64"]) as writer:
        for file in files:
            for row in read_rows(file):
                writer.write({"id": row["id"], "text": row["text"]})


def read_rows(file: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file, read with the usual library for its format."""
    if file.endswith(".parquet"):
        import pyarrow.parquet

        for batch in pyarrow.parquet.ParquetFile(file).iter_batches(1000):
            yield from batch.to_pylist()
        return
    with open_lines(file) as lines:
        for line in lines:
            yield json.loads(line)


def open_lines(file: str) -> Any:
    if file.endswith(".gz"):
        return gzip.open(file, "rb")
    if file.endswith(".zst"):
        import zstandard

        return zstandard.open(file, "rt", encoding="utf-8")
    return open(file, "rb")


# ---------------------------------------------------------------- llm-foundry's way


def convert_by_datasets(inputs: str, out: str, _: int) -> None:
    import datasets
    from streaming import MDSWriter

    files = [str(path) for path in sorted(Path(inputs).iterdir())]
    kind = "parquet" if files[0].endswith(".parquet") else "json"
    data = datasets.load_dataset(
        kind, data_files=files, split="train", cache_dir=os.environ["TMPDIR"]
    )
    with MDSWriter(out=out, columns={"text": "str"}, compression="zstd") as writer:
        for row in data:
            writer.write({"text": row["text"]})


WAYS = {
    "cloudload": Way(convert_by_cloudload, True, ("cloudload.convert", "pyarrow.parquet")),
    "MDSWriter": Way(convert_by_pool, True, ("streaming", "pyarrow.parquet")),
    "llm-foundry": Way(convert_by_datasets, False, ("streaming", "datasets")),
}


def start(request: Message) -> Take:
    """Import the modules of a way, and return a function that converts the input once."""
    way = WAYS[request["way"]]
    for module in way.modules:
        try:
            __import__(module)
        except ImportError as error:
            raise UnavailableError(str(error)) from None

    def take(question: Message) -> Message:
        os.environ["TMPDIR"] = tempfile.tempdir = question["scratch"]
        began, cpu, own = time.perf_counter(), family_cpu(), time.process_time()
        way.convert(question["inputs"], question["out"], question["processes"])
        return {
            "wall": time.perf_counter() - began,
            "cpu": family_cpu() - cpu,
            "own_cpu": time.process_time() - own,
            **describe_output(question["out"]),
        }

    return take


def describe_output(out: str) -> Message:
    """Return the number of documents and of stored bytes that an output's index lists."""
    from cloudload.data.mds.shard_table import parse_index
    from cloudload.data.storage.locations import Location

    shards = parse_index(Location(f"{out}/index.json").read(), out)
    return {
        "documents": sum(shard.samples for shard in shards),
        "written": sum(shard.stored.bytes for shard in shards),
    }


if __name__ == "__main__":
    serve(start)
