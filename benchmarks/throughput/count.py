"""Compare the CPU time of `cloudload count` with that of the bare tokenizer on the same texts.

    python -m benchmarks.throughput.count --corpus FOLDER --tokenizer FOLDER [--compression none]

    bare     strings in memory ─► token IDs, in batches as large as those of count
    count    shards in the store ─► read, check, unpack, decode, tokenize ─► a file of lengths

Each run is a separate process, so that the tokenizer's cache of words starts empty. In the run of
`bare`, only the calls of the tokenizer are timed. Neither time includes the comparison of its first
IDs with those of Hugging Face. MB are MB of text.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.documents import add_documents, read_documents, write_dataset
from benchmarks.figures import Row
from benchmarks.harness import Message, run_child
from benchmarks.options import Options, temporary_folder
from cloudload import Stream
from cloudload.config.rows import RowsConfig
from cloudload.data.cache.cache_folder import default_cache
from cloudload.data.storage.base import Retry
from cloudload.data.storage.locations import Location
from cloudload.loading.workers.document_reader import DocumentReader
from cloudload.rows.tokenization.backend import choose_backend
from cloudload.rows.tokenization.encoders import DocumentTokenizer
from cloudload.run.recipe import Recipe, open_recipe
from cloudload.tools.count.count import prepare_count
from cloudload.tools.count.group import BYTES_AT_ONCE, count_group, list_groups, open_meter

_WARM_UP = ["A text that any tokenizer can encode."] * 64


def main() -> None:
    options = Options(__doc__)
    add_documents(options)
    options.add_argument("--compression", choices=["zstd", "none"], default="zstd")
    options.add_amount("repeats", 5, 1, "number of runs per side")
    options.run(measure)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Run both sides in turns, and yield a table for each tokenizer."""
    compression = None if args.compression == "none" else args.compression
    texts = read_documents(args)
    data = write_dataset(texts, folder / "mds", compression=compression, shard_bytes=1 << 26)
    for tokenizer in args.tokenizer:
        found: dict[str, list[Message]] = {"bare": [], "count": []}
        for _ in range(args.repeats):
            for side, runs in found.items():
                runs.append(run_child(time_side, side=side, dataset=data, tokenizer=str(tokenizer)))
        [*_, bare], [*_, counted] = found.values()
        speeds = {
            side: [bare["bytes"] / 1e6 / each["seconds"] for each in runs]
            for side, runs in found.items()
        }
        row: Row = {f"{side}, MB per CPU s": values for side, values in speeds.items()}
        row["count / bare"] = median(speeds["count"]) / median(speeds["bare"])
        row["bytes of lengths per document"] = counted["stored"] / bare["documents"]
        yield f"{tokenizer.name}, {bare['backend']}, {bare['bytes'] / 1e6:.1f} MB", [row]


# ---------------------------------------------------------------- one run


def read_batches(reader: DocumentReader, recipe: Recipe) -> Iterator[list[str]]:
    """Yield the dataset's texts, in batches of about the size that count tokenizes at once."""
    starts = recipe.corpus.shard_starts.tolist()
    for start, stop in itertools.pairwise(starts):
        batch: list[str] = []
        size = 0
        for sample in range(start, stop):
            batch += [str(text) for text in reader.read_texts(np.array([sample]))]
            size += len(batch[-1])
            if size >= BYTES_AT_ONCE or sample == stop - 1:
                yield batch
                batch, size = [], 0


def time_bare(recipe: Recipe, backend: str, folder: Path) -> Message:
    """Measure the CPU seconds to tokenize all texts. Also counts the texts and their bytes."""
    tokenizer, spent, size, number = DocumentTokenizer(recipe.tokenizer, backend), 0.0, 0, 0
    tokenizer.encode_flat(_WARM_UP)
    wait_until_idle()
    with open_meter(recipe, backend, folder) as meter:
        for texts in read_batches(meter.reader, recipe):
            began = time.process_time()
            tokenizer.encode_flat(texts)
            spent += time.process_time() - began
            size += sum(len(text.encode()) for text in texts)
            number += len(texts)
    return {"seconds": spent, "bytes": size, "documents": number}


def time_count(recipe: Recipe, backend: str, folder: Path) -> Message:
    """Measure the CPU seconds to count all groups, and the bytes of the files of lengths."""
    DocumentTokenizer(recipe.tokenizer, backend).encode_flat(_WARM_UP)
    wait_until_idle()
    work = prepare_count(recipe, backend, Location(str(folder)))
    began = time.process_time()
    for group in list_groups(work, recipe.corpus.datasets[0]):
        count_group(work, group)
    spent = time.process_time() - began
    return {
        "seconds": spent,
        "stored": sum(path.stat().st_size for path in folder.rglob("*.lengths")),
    }


def wait_until_idle() -> None:
    """Wait until the threads that compare the first IDs with Hugging Face's have finished."""
    before = -1.0
    while time.process_time() - before > 0.01:
        before = time.process_time()
        time.sleep(0.5)


def time_side(side: str, dataset: str, tokenizer: str) -> Message:
    """Time one side in this process."""
    config = RowsConfig(streams=(Stream(dataset),), seq_len=1, bos=None, eos=None)
    recipe = open_recipe(config, tokenizer, Retry())
    backend = choose_backend(recipe.tokenizer.json, "auto", default_cache()).name
    with temporary_folder() as folder:
        time_it = time_bare if side == "bare" else time_count
        return {"backend": backend, **time_it(recipe, backend, folder)}


if __name__ == "__main__":
    main()
