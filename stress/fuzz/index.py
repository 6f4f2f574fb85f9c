"""Fuzz `parse_index`, and everything that depends only on the index."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cloudload.data.cache.folder import dataset_folder
from cloudload.data.mds.codecs import compression_extension
from cloudload.data.mds.dataset import Corpus, Dataset
from cloudload.data.mds.document_columns import check_text_column
from cloudload.data.mds.hashes import fastest_hash
from cloudload.data.mds.index_parser import parse_index
from stress.fuzz.target import Target, expect


def index_seeds() -> list[bytes]:
    """Return valid indexes with no shard, with raw shards, with zipped shards, and with both."""
    shard = {
        "column_encodings": ["str", "int", "bytes"],
        "column_names": ["a", "b", "text"],
        "column_sizes": [None, 8, None],
        "compression": None,
        "format": "mds",
        "hashes": ["xxh64"],
        "raw_data": {
            "basename": "shard.00000.mds",
            "bytes": 4000,
            "hashes": {"xxh64": "0123456789abcdef"},
        },
        "samples": 20,
        "size_limit": 67108864,
        "version": 2,
        "zip_data": None,
    }
    zipped = {
        **shard,
        "compression": "zstd:7",
        "raw_data": {"basename": "b/shard.00001.mds", "bytes": 4000, "hashes": {}},
        "zip_data": {"basename": "b/shard.00001.mds.zstd", "bytes": 400, "hashes": {"sha1": "a"}},
    }
    lists: list[list[Any]] = [[], [shard], [shard, zipped], [zipped]]
    return [json.dumps({"version": 2, "shards": shards}).encode() for shards in lists]


def run_index(data: bytes) -> None:
    """Parse an index, and check everything that depends only on the index."""
    dataset = Dataset("s3://bucket/folder", parse_index(data, "s3://bucket/folder"), "0" * 64)
    root = Path("/cache")
    folder = dataset_folder(root, dataset)
    files = [
        folder / file.name
        for shard in dataset.shards
        for file in (shard.raw, shard.zipped)
        if file is not None
    ]
    for path in files:
        inside = os.path.normpath(path)
        expect(
            inside == str(path) and inside.startswith(f"{folder}/"),
            f"{path} is outside the dataset's cache folder",
        )
        expect(
            not inside.endswith((".part", ".lock")),
            f"{path} has a suffix that only the cache's own files may have",
        )
    expect(len(set(files)) == len(files), "two files of the index have the same path in the cache")
    for shard in dataset.shards:
        expect(
            4 * (shard.samples + 2) <= shard.raw.bytes < 1 << 32,
            f"a shard with {shard.samples} samples cannot have {shard.raw.bytes} bytes",
        )
        fastest_hash(shard.stored.hashes)
        if shard.compression:
            compression_extension(shard.compression)
    corpus = Corpus((dataset, dataset))
    expect(
        corpus.num_samples == 2 * sum(shard.samples for shard in dataset.shards),
        "the corpus has a different number of samples than its shards in total",
    )
    corpus.fingerprint(range(2))
    check_text_column(corpus.datasets, "text")


INDEX = Target(run_index, index_seeds)
