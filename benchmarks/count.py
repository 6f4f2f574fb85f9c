"""Time counting beside the bare tokenizer, on the same texts, by the CPU time of one process.

Counting reads, unpacks, checks and decodes the shards, too. Opening the tokenizer is left out of
both.

    python -m benchmarks.count MDS_FOLDER TOKENIZER [RUNS]

Prints one line of JSON: medians of MB of text per CPU second, their ratio, and bytes per document.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from cloudload import Stream
from cloudload.cache.folder import default_cache
from cloudload.cache.shard_cache import ShardCache
from cloudload.config.rows import RowsConfig
from cloudload.count.count import list_jobs
from cloudload.count.group import count_group
from cloudload.run.recipe import Recipe, open_recipe
from cloudload.storage.base import Retry
from cloudload.tokenization.backend import choose_backend
from cloudload.tokenization.tokenizer import DocumentTokenizer
from cloudload.workers.document_reader import DocumentReader

_DOCUMENTS_AT_ONCE = 1024


def time_bare(recipe: Recipe, texts: list[str], backend: str) -> float:
    """CPU seconds to tokenize all texts."""
    tokenizer = DocumentTokenizer(recipe.tokenizer, backend)
    tokenizer.encode_flat(texts[:64])
    began = time.process_time()
    for start in range(0, len(texts), _DOCUMENTS_AT_ONCE):
        tokenizer.encode_flat(texts[start : start + _DOCUMENTS_AT_ONCE])
    return time.process_time() - began


def read_texts(recipe: Recipe, folder: Path) -> list[str]:
    """All texts of the dataset."""
    cache = ShardCache(recipe.corpus, folder, Retry(), verify="off")
    reader = DocumentReader(recipe, cache)
    found = reader.read_texts(np.arange(recipe.corpus.num_samples))
    cache.close()
    return [text for text in found if isinstance(text, str)]


def main() -> None:
    dataset, tokenizer = sys.argv[1:3]
    runs = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    config = RowsConfig(streams=(Stream(dataset),), seq_len=1, bos=None, eos=None)
    recipe = open_recipe(config, tokenizer, Retry())
    backend = choose_backend(recipe.tokenizer.json, "auto", default_cache()).name
    bare, counted = [], []
    with tempfile.TemporaryDirectory() as folder:
        texts = read_texts(recipe, Path(folder))
        size = sum(len(text.encode()) for text in texts)
        for number in range(runs):
            bare.append(time_bare(recipe, texts, backend))
            jobs = list_jobs(recipe, backend, f"{folder}/lengths-{number}", Retry())
            began = time.process_time()
            for job in jobs:
                count_group(job)
            counted.append(time.process_time() - began)
        size_of_files = sum(path.stat().st_size for path in Path(folder).rglob("*.lengths"))
    speeds = [size / 1e6 / statistics.median(each) for each in (bare, counted)]
    result = {
        "backend": backend,
        "text_mb": round(size / 1e6, 1),
        "bare_mb_per_cpu_s": round(speeds[0], 1),
        "count_mb_per_cpu_s": round(speeds[1], 1),
        "ratio": round(speeds[1] / speeds[0], 3),
        "length_bytes_per_document": round(size_of_files / runs / len(texts), 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
