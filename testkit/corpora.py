"""Tiny corpora: random documents, MDS datasets in any store, and a byte tokenizer.

write_mds(store_url, ["aaa", "bb"])                               # one shard, one column `text`
write_mds(path, random_documents(0, 100), shard_bytes=1_000)      # several shards
write_mds(path, ["aaa"], extra={"source": ("str", ["a book"])})   # more columns
"""

from __future__ import annotations

import functools
import io
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from cloudload.data.mds.codecs import compress, compression_extension
from cloudload.data.mds.hashes import hash_bytes
from cloudload.data.mds.shard_entries import INDEX_NAME, PARQUET, Column
from cloudload.data.mds.writer import ShardFormat, encode_sample, encode_shard_head
from cloudload.data.storage.locations import Location
from cloudload.data.storage.urls import join_url

_WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "lazy",
    "dog",
    "one",
    "two",
    "three",
    "Grüße",
    "Füchse",
    "狐",
    "🦊",
]

EOS = "<eos>"
EOS_ID = 256


@functools.cache
def byte_tokenizer() -> Tokenizer:
    """A tokenizer with one token per byte, and `<eos>`, so that tests can write tokens by hand."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.add_special_tokens([EOS])
    return tokenizer


def random_documents(seed: int, count: int, *, max_words: int = 30) -> list[str]:
    """Documents of 1 to `max_words` random words. Each starts with its index, so all differ."""
    words = random.Random(seed)
    return [
        " ".join([f"{number}:", *words.choices(_WORDS, k=words.randint(1, max_words))])
        for number in range(count)
    ]


def write_mds(
    folder: str | PathLike[str],
    documents: Iterable[Any],
    *,
    shard_bytes: int = 1 << 20,
    shard_samples: Sequence[int] | None = None,
    compression: str | None = None,
    hashes: Sequence[str] = ("xxh64",),
    column: str = "text",
    encoding: str = "str",
    extra: Mapping[str, tuple[str, Sequence[Any]]] | None = None,
) -> str:
    """Write `documents` as an MDS dataset, the index last, and return its location.

    `shard_bytes` is the maximum size of a shard, unless a single document is larger.
    `shard_samples` sets the number of documents in each shard instead. `encoding` is the MDS
    encoding of `documents`. `extra` maps the name of each additional column to its encoding and to
    its values, one for each document. With the compression `parquet`, each shard is a Parquet file
    of one row group, and there is no index, so a loader reads the files where they are.
    """
    texts, extra = list(documents), dict(extra or {})
    columns = [
        Column.of(column, encoding),
        *(Column.of(name, encoding) for name, (encoding, _) in extra.items()),
    ]
    columns.sort(key=lambda each: each.name)
    codec = None if compression == PARQUET else compression
    form = ShardFormat(tuple(columns), codec, tuple(hashes), shard_bytes)
    samples = [
        encode_sample(
            columns, {column: text} | {name: values[number] for name, (_, values) in extra.items()}
        )
        for number, text in enumerate(texts)
    ]
    parts = (
        cut_into_shards(form, samples)
        if shard_samples is None
        else _cut_by_number(samples, shard_samples)
    )
    if compression == PARQUET:
        values = {column: texts} | {name: values for name, (_, values) in extra.items()}
        _write_row_groups(str(folder), values, list(map(len, parts)))
        return str(folder)
    shards = [_write_shard(str(folder), form, number, part) for number, part in enumerate(parts)]
    Location(join_url(str(folder), INDEX_NAME)).write(
        json.dumps({"version": 2, "shards": shards}, sort_keys=True).encode()
    )
    return str(folder)


def encode_shard(form: ShardFormat, samples: Sequence[bytes]) -> bytes:
    """The raw bytes of a shard that contains these encoded samples."""
    sizes = np.fromiter(map(len, samples), np.int64, len(samples))
    return b"".join([encode_shard_head(form, sizes), *samples])


def cut_into_shards(form: ShardFormat, samples: Iterable[bytes]) -> list[list[bytes]]:
    """Group consecutive samples into shards. Each shard gets as many as fit `form.shard_bytes`."""
    shards: list[list[bytes]] = []
    size = form.shard_bytes + 1
    for sample in samples:
        size += 4 + len(sample)
        if size > form.shard_bytes:
            shards.append([])
            size = form.empty_bytes() + 4 + len(sample)
        shards[-1].append(sample)
    return shards


def _cut_by_number(samples: Sequence[bytes], numbers: Sequence[int]) -> list[Sequence[bytes]]:
    starts = [sum(numbers[:place]) for place in range(len(numbers))]
    return [samples[start : start + number] for start, number in zip(starts, numbers, strict=True)]


def _write_shard(
    folder: str, form: ShardFormat, number: int, samples: Sequence[bytes]
) -> dict[str, Any]:
    raw = encode_shard(form, samples)
    name, zipped = f"shard.{number:05}.mds", None
    entry = {
        **form.config(),
        "samples": len(samples),
        "raw_data": _describe(name, raw, form.hashes),
        "zip_data": None,
    }
    if form.compression is not None:
        name += f".{compression_extension(form.compression)}"
        zipped = compress(form.compression, raw)
        entry["zip_data"] = _describe(name, zipped, form.hashes)
    Location(join_url(folder, name)).write(raw if zipped is None else zipped)
    return entry


def _write_row_groups(
    folder: str, values: Mapping[str, Sequence[Any]], numbers: Sequence[int]
) -> None:
    import pyarrow
    import pyarrow.parquet

    table, start = pyarrow.table(values), 0
    for number, size in enumerate(numbers):
        file = io.BytesIO()
        pyarrow.parquet.write_table(table.slice(start, size), file, write_page_checksum=True)
        Location(join_url(folder, f"shard.{number:05}.parquet")).write(file.getvalue())
        start += size


def _describe(name: str, data: bytes, hashes: Sequence[str]) -> dict[str, Any]:
    return {
        "basename": name,
        "bytes": len(data),
        "hashes": {algorithm: hash_bytes(algorithm, data) for algorithm in hashes},
    }
