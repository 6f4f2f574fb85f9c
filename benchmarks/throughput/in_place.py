"""Compare reading files where they are with converting them, and with reading converted shards.

    python -m benchmarks.throughput.in_place --corpus FOLDER [--megabytes 256]

    index      files ─► an index of virtual shards. Of Parquet, only the footers are read
    fetch      stored shards on a disk ─► raw shards in a file
    convert    files ─► samples in memory: what a conversion does before it cuts and stores shards

The files have the same documents in each format. `mds` has converted shards with zstd, which are
only fetched. Each run is a separate process. MB are MB of text, per second of CPU time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from benchmarks.documents import add_documents, read_documents
from benchmarks.figures import Row
from benchmarks.harness import Message, run_child
from benchmarks.options import Options
from benchmarks.throughput.convert_inputs import FORMS, Input, write_inputs
from cloudload import convert_to_mds
from cloudload.convert import index_files
from cloudload.data.mds.dataset import open_corpus
from cloudload.data.mds.download import download_shard
from cloudload.data.storage.locations import Location
from cloudload.tools.convert.config import ConvertConfig
from cloudload.tools.convert.input_files import FilePart, InputFile
from cloudload.tools.convert.inputs import group_units, with_format
from cloudload.tools.convert.output_location import Output
from cloudload.tools.convert.sample_encoding import ShardContext, encode_block
from cloudload.tools.convert.segment import read_blocks
from cloudload.tools.convert.segment_journal import InputPosition, SegmentJournal


def main() -> None:
    options = Options(__doc__)
    add_documents(options, megabytes=256.0)
    options.add_amount("repeats", 3, 1, "number of runs")
    options.run(measure)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Run each step on the files of each format, and yield a table for each."""
    pool = read_documents(args)
    size = 1e6 * args.megabytes
    for form in (*FORMS, "mds"):
        inputs = write_inputs(folder, "jsonl" if form == "mds" else form, pool, size, size)
        if form == "mds":
            convert_to_mds(str(inputs.folder), str(folder / "mds"), progress=False)
        row = _measure(form, inputs, folder, args.repeats)
        inputs.remove()
        yield f"{form}, {args.megabytes:g} MB of text, MB per CPU second", [row]


def _measure(form: str, inputs: Input, folder: Path, repeats: int) -> Row:
    files, index = str(inputs.folder), str(folder / ("mds" if form == "mds" else f"{form}-index"))
    steps: dict[str, tuple[Callable[..., Message], dict[str, str]]] = {
        "index": (time_index, {"files": files, "index": index}),
        "fetch": (time_fetch, {"index": index}),
        "convert": (time_convert, {"files": files}),
    }
    row: Row = {}
    for name in ["fetch"] if form == "mds" else steps:
        step, places = steps[name]
        runs = [run_child(step, **places) for _ in range(repeats)]
        row[name] = [inputs.text_bytes / 1e6 / each["seconds"] for each in runs]
    return row


# ---------------------------------------------------------------- one run


def time_index(files: str, index: str) -> Message:
    """Measure the CPU seconds to index files in this process."""
    began = time.process_time()
    index_files(files, index, processes=1, progress=False)
    return {"seconds": time.process_time() - began}


def time_fetch(index: str) -> Message:
    """Measure the CPU seconds to fetch and decode each shard of an index."""
    [dataset] = open_corpus([Location(index)]).datasets
    began = 0.0
    for info in [dataset.shards[0], *dataset.shards]:
        with tempfile.TemporaryFile() as file:
            location, target = dataset.locate(info), cast("BinaryIO", file)
            found = download_shard(
                location, info, target, checks_hash=True, count_bytes=lambda _: None
            )
            assert found.fault is None
        began = began or time.process_time()  # after the first shard, which imports packages
    return {"seconds": time.process_time() - began}


def time_convert(files: str) -> Message:
    """Measure the CPU seconds to read files as a conversion does, and to encode the samples."""
    paths = sorted(Path(files).iterdir())
    listed = [InputFile(str(path), path.name, path.stat().st_size) for path in paths]
    parts = [FilePart(with_format(file, "auto")) for file in listed]
    config, journal = ConvertConfig(), SegmentJournal(Output(Location("out")), "")
    context = ShardContext(config, config.shard_format([]), journal)
    began = 0.0
    for several in (parts[:1], parts):
        units = list(group_units(several, config.block_bytes))
        for _, block in read_blocks(units, InputPosition(), config):
            encode_block(context, block)
        began = began or time.process_time()
    return {"seconds": time.process_time() - began}


if __name__ == "__main__":
    main()
