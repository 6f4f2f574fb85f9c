"""Fuzz the code that reads datasets: `parse_index`, `Shard`, and `decompress`."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import struct
import tempfile
from pathlib import Path
from typing import Any

import brotli
import cramjam

from cloudload.data.cache.cache_folder import dataset_folder
from cloudload.data.mds.codecs import compress, compression_extension, decompress
from cloudload.data.mds.dataset import Corpus, Dataset
from cloudload.data.mds.document_columns import check_text_column
from cloudload.data.mds.hashes import fastest_hash
from cloudload.data.mds.shard import Shard
from cloudload.data.mds.shard_entries import Column, FileInfo, ShardInfo
from cloudload.data.mds.shard_table import parse_index
from cloudload.data.mds.writer import ShardFormat, encode_sample
from cloudload.data.storage.locations import Location
from cloudload.errors import DatasetError
from stress.fuzz.engine import Choices, Target, expect
from testkit.corpora import encode_shard

# ---------------------------------------------------------------- index


def index_seeds() -> list[bytes]:
    """Return valid indexes with no shard, with raw shards, with zipped shards, and with both."""
    raw = {"basename": "shard.00000.mds", "bytes": 4000, "hashes": {"xxh64": "0123456789abcdef"}}
    columns = [Column.of(*each) for each in (("a", "str"), ("b", "int"), ("text", "bytes"))]
    form = ShardFormat(tuple(columns), None, ("xxh64",))
    shard = {**form.config(), "samples": 20, "raw_data": raw, "zip_data": None}
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
    dataset = Dataset(
        Location("s3://bucket/folder"), parse_index(data, "s3://bucket/folder"), "0" * 64
    )
    folder = dataset_folder(Path("/cache"), dataset)
    names = [file.name for shard in dataset.shards for file in (shard.raw, shard.zipped) if file]
    files = [folder / name for name in names]
    for path in files:
        inside = os.path.normpath(path)
        is_inside = inside == str(path) and inside.startswith(f"{folder}/")
        expect(is_inside, f"{path} is outside the dataset's cache folder")
        is_free = not inside.endswith((".part", ".lock"))
        expect(is_free, f"{path} has a suffix that only the cache's own files may have")
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
    check_text_column(dataset, "text")


INDEX = Target(run_index, index_seeds)


# ---------------------------------------------------------------- shards

_COLUMNS = (("id", "str"), ("meta", "json"), ("n", "int"), ("text", "str"), ("z", "bytes"))
_WORDS = (0, 1, 4, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)


@functools.cache
def valid_shards() -> list[tuple[bytes, int, Any]]:
    """Return valid shards, with one and several columns, as (bytes, number of samples, columns)."""
    several = tuple(Column.of(name, encoding) for name, encoding in _COLUMNS)
    values = [
        {"id": f"d{i}", "n": i, "meta": {"i": [i]}, "text": "aé狐"[: i % 4], "z": bytes([i])}
        for i in range(4)
    ]
    shards = []
    for columns in ((Column.of("text", "str"),), several):
        for count in (0, 1, 4):
            samples = [encode_sample(columns, sample) for sample in values[:count]]
            shards.append((encode_shard(ShardFormat(columns, None, ()), samples), count, columns))
    return shards


@functools.cache
def shard_path() -> Path:
    """Return the file to which every input is written, in /dev/shm if that is writable."""
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="cloudload-fuzz-", dir=folder)) / "shard.mds"


def read_shard(raw: bytes, samples: int, columns: Any) -> None:
    """Open bytes as a shard, and read up to 64 samples in every way, ignoring `DatasetError`s."""
    shard_path().write_bytes(raw)
    info = ShardInfo(samples, columns, FileInfo("shard.mds", len(raw), {}), None, None)
    shard = Shard(shard_path(), info)
    text = shard.column_index("text")
    for sample in range(min(samples, 64)):
        with contextlib.suppress(DatasetError):
            shard.read(sample)
        with contextlib.suppress(DatasetError):
            [found] = shard.read_texts([sample], text)
            expect(
                found.encode() == shard.read_bytes(sample, text),
                f"read_texts and read_bytes return different bytes for sample {sample}",
            )
        shard.where(sample)


def shard_seeds() -> list[bytes]:
    """Return valid shards, each after a byte that chooses the columns."""
    return [bytes([number]) + raw for number, (raw, _, _) in enumerate(valid_shards())]


def run_shard(data: bytes) -> None:
    """Read any bytes as a shard with as many samples as their header says."""
    choices = Choices(data)
    _, _, columns = choices.pick(valid_shards())
    raw = choices.take(len(data))
    samples = int.from_bytes(raw[:4], "little")
    read_shard(raw, samples if 4 * (samples + 2) <= len(raw) else 0, columns)


def run_shard_structured(data: bytes) -> None:
    """Read a valid shard in which the input changes words of 4 bytes, or single bytes."""
    choices = Choices(data)
    raw, samples, columns = choices.pick(valid_shards())
    changed = bytearray(raw)
    while choices:
        at = choices.number(len(changed))
        if choices.number(2):
            at = min(at - at % 4, len(changed) - 4)
            now = int.from_bytes(changed[at : at + 4], "little")
            word = choices.pick([*_WORDS, now + 1, now - 1, len(raw), len(raw) - 1])
            struct.pack_into("<I", changed, at, word % (1 << 32))
        else:
            changed[at] = choices.number(256)
    read_shard(bytes(changed), samples, columns)


SHARD = Target(run_shard, shard_seeds, valid_shards)
SHARD_STRUCTURED = Target(run_shard_structured, prepare=valid_shards)


# ---------------------------------------------------------------- compression

_RAW = b"the quick brown fox " * 40
_BUGS = (MemoryError, RecursionError, AssertionError, TypeError, AttributeError, LookupError)
_CODECS = {
    "zstd": functools.partial(compress, "zstd"),
    "gz": functools.partial(compress, "gz"),
    "bz2": functools.partial(compress, "bz2"),
    "br": brotli.compress,
    "snappy": lambda raw: bytes(cramjam.snappy.compress_raw(raw)),
}


def decompress_seeds() -> list[bytes]:
    """Return valid streams and decompression bombs, each after a byte that chooses the codec."""
    return [
        bytes([number]) + pack(raw)
        for number, pack in enumerate(_CODECS.values())
        for raw in (_RAW, b"", bytes(1 << 20))
    ]


def run_decompress(data: bytes) -> None:
    """Decompress the input with the codec that its first byte chooses.

    At most one byte more than the index says may be returned. The cache treats an exception of a
    codec as a damaged file, so only exceptions that suggest a bug are findings.
    """
    choices = Choices(data)
    codec = choices.pick(list(_CODECS))
    try:
        raw = decompress(codec, choices.take(len(data)), len(_RAW))
    except _BUGS:
        raise
    except Exception:
        return
    limit = len(_RAW) + 1
    expect(len(raw) <= limit, f"{codec} returned {len(raw)} bytes, but may return at most {limit}")


DECOMPRESS = Target(run_decompress, decompress_seeds)
