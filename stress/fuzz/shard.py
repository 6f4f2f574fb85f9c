"""Fuzz `Shard` and reads of its samples, with any bytes and with changed valid shards."""

from __future__ import annotations

import contextlib
import functools
import os
import struct
import tempfile
from pathlib import Path
from typing import Any

from cloudload.data.mds.index import Column, FileInfo, ShardInfo
from cloudload.data.mds.shard import Shard
from cloudload.data.mds.writer import ShardFormat, encode_sample
from cloudload.errors import DatasetError
from stress.fuzz.target import Choices, Target, expect, random_seeds
from testkit.corpora import encode_shard

_COLUMNS = (("id", "str"), ("meta", "json"), ("n", "int"), ("text", "str"), ("z", "bytes"))


@functools.cache
def sound_shards() -> list[tuple[bytes, int, Any]]:
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
    shard = Shard(
        shard_path(), ShardInfo(samples, columns, FileInfo("shard.mds", len(raw), {}), None, None)
    )
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
    return [bytes([number]) + raw for number, (raw, _, _) in enumerate(sound_shards())]


def run_shard(data: bytes) -> None:
    """Read any bytes as a shard with as many samples as their header says."""
    choices = Choices(data)
    _, _, columns = choices.pick(sound_shards())
    raw = choices.take(len(data))
    told = int.from_bytes(raw[:4], "little")
    read_shard(raw, told if 4 * (told + 2) <= len(raw) else 0, columns)


_WORDS = (0, 1, 4, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)


def run_shard_structured(data: bytes) -> None:
    """Read a valid shard in which the input changes words of 4 bytes, or single bytes."""
    choices = Choices(data)
    raw, samples, columns = choices.pick(sound_shards())
    spoiled = bytearray(raw)
    while choices:
        place = choices.number(len(spoiled))
        if choices.number(2):
            place = min(place - place % 4, len(spoiled) - 4)
            now = int.from_bytes(spoiled[place : place + 4], "little")
            word = choices.pick([*_WORDS, now + 1, now - 1, len(raw), len(raw) - 1])
            struct.pack_into("<I", spoiled, place, word % (1 << 32))
        else:
            spoiled[place] = choices.number(256)
    read_shard(bytes(spoiled), samples, columns)


SHARD = Target(run_shard, shard_seeds, sound_shards)
STRUCTURED = Target(run_shard_structured, random_seeds, sound_shards)
