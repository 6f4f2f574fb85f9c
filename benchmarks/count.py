"""Compare the CPU time of `cloudload count` with that of the bare tokenizer on the same texts.

    bare     strings in memory ─► token IDs, in batches as large as those of count
    count    shards in the store ─► read, check, unpack, decode, tokenize ─► a file of lengths

Each run is a separate process, so that the tokenizer's cache of words starts empty. In the run of
`bare`, only the calls of the tokenizer are timed. Neither time includes the comparison of its first
IDs with those of Hugging Face.

    python -m benchmarks.count MDS_FOLDER TOKENIZER [RUNS]

Prints one line of JSON with the minimum, median and maximum MB of text per CPU second of each side,
the ratio of the medians, and the bytes per document in the files of lengths.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cloudload import Stream
from cloudload.config.rows import RowsConfig
from cloudload.data.cache.folder import default_cache
from cloudload.data.storage.base import Retry
from cloudload.loading.workers.document_reader import DocumentReader
from cloudload.rows.tokenization.backend import choose_backend
from cloudload.rows.tokenization.document_tokenizer import DocumentTokenizer
from cloudload.run.recipe import Recipe, open_recipe
from cloudload.tools.count.count import prepare
from cloudload.tools.count.group import BYTES_AT_ONCE, count_group, list_groups, open_meter

_WARM_UP = ["A text that any tokenizer can encode."] * 64


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


def time_bare(recipe: Recipe, backend: str, folder: Path) -> dict[str, Any]:
    """Measure the CPU seconds to tokenize all texts. Also counts the texts and their bytes."""
    tokenizer, spent, size, number = DocumentTokenizer(recipe.tokenizer, backend), 0.0, 0, 0
    tokenizer.encode_flat(_WARM_UP)
    wait_until_idle()
    with open_meter(recipe, backend, folder, Retry()) as meter:
        for texts in read_batches(meter.reader, recipe):
            began = time.process_time()
            tokenizer.encode_flat(texts)
            spent += time.process_time() - began
            size += sum(len(text.encode()) for text in texts)
            number += len(texts)
    return {"seconds": spent, "bytes": size, "documents": number}


def time_count(recipe: Recipe, backend: str, folder: Path) -> dict[str, Any]:
    """Measure the CPU seconds to count all groups, and the bytes of the files of lengths."""
    DocumentTokenizer(recipe.tokenizer, backend).encode_flat(_WARM_UP)
    wait_until_idle()
    work = prepare(recipe, backend, str(folder), Retry())
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


def run_once(side: str, dataset: str, tokenizer: str) -> None:
    """Time one side, and print the result as JSON."""
    config = RowsConfig(streams=(Stream(dataset),), seq_len=1, bos=None, eos=None)
    recipe = open_recipe(config, tokenizer, Retry())
    backend = choose_backend(recipe.tokenizer.json, "auto", default_cache()).name
    with tempfile.TemporaryDirectory() as folder:
        measure = time_bare if side == "bare" else time_count
        print(json.dumps({"backend": backend, **measure(recipe, backend, Path(folder))}))


def main() -> None:
    if sys.argv[1] in ("bare", "count"):
        run_once(*sys.argv[1:4])
        return
    dataset, tokenizer = sys.argv[1:3]
    runs = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    found: dict[str, list[dict[str, Any]]] = {"bare": [], "count": []}
    for _ in range(runs):
        for side, results in found.items():
            command = [sys.executable, "-m", "benchmarks.count", side, dataset, tokenizer]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            results.append(json.loads(done.stdout))
    size, documents = found["bare"][0]["bytes"], found["bare"][0]["documents"]
    speeds = {
        side: [round(size / 1e6 / each["seconds"], 1) for each in results]
        for side, results in found.items()
    }
    medians = {side: statistics.median(each) for side, each in speeds.items()}
    result = {
        "backend": found["bare"][0]["backend"],
        "text_mb": round(size / 1e6, 1),
        **{f"{side}_mb_per_cpu_s": [min(s), medians[side], max(s)] for side, s in speeds.items()},
        "ratio": round(medians["count"] / medians["bare"], 3),
        "length_bytes_per_document": round(found["count"][0]["stored"] / documents, 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
