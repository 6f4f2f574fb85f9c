"""Fingerprints of datasets, which a state stores and a resume compares.

data       sample counts, columns, raw sizes and raw hashes of the shards, in order
samples    sample counts, columns and `SAMPLES_HASH`: the same after the data is written again with
           another compression, other hashes or another size limit, which the header names

They do not depend on location or compression.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from cloudload.mds.index import ShardInfo
from cloudload.mds.shard_table import ShardTable

DATA, SAMPLES = "data", "samples"
KINDS = (DATA, SAMPLES)

_DATASET, _DIGITS = b"dataset\n", 32


def fingerprint(tables: Sequence[ShardTable], kind: str) -> str:
    """32 hex digits that identify the shards of datasets; "" if a shard lacks a `SAMPLES_HASH`.

    `kind` is `DATA` or `SAMPLES`. A table keeps its own fingerprint.
    """
    if len(tables) != 1:
        return _hash(tables, kind)
    [table] = tables
    if kind not in table.fingerprints:
        table.fingerprints[kind] = _hash(tables, kind)
    return table.fingerprints[kind]


def find_beginning(table: ShardTable, wanted: str, kind: str) -> int | None:
    """The number of shards at the start of a dataset that have the fingerprint `wanted`.

    None if no number of shards has it.
    """
    digest = hashlib.sha256(_DATASET)
    for number, line in enumerate(_encode(table, kind) if wanted else (), 1):
        digest.update(line)
        if digest.hexdigest()[:_DIGITS] == wanted:
            return number
    return None


def _hash(tables: Sequence[ShardTable], kind: str) -> str:
    forms = (form for table in tables for form in table.count_forms())
    if kind == SAMPLES and not all(form.has_samples_hash for form in forms):
        return ""
    digest = hashlib.sha256()
    for table in tables:
        digest.update(_DATASET)
        for line in _encode(table, kind):
            digest.update(line)
    return digest.hexdigest()[:_DIGITS]


def _encode(table: ShardTable, kind: str) -> Iterator[bytes]:
    describe = _describe_data if kind == DATA else _describe_samples
    for shard in table:
        columns = [(column.name, column.encoding) for column in shard.columns]
        yield f"{shard.samples} {describe(shard)} {columns}\n".encode()


def _describe_data(shard: ShardInfo) -> str:
    return f"{shard.raw.bytes} {sorted(shard.raw.hashes.items())}"


def _describe_samples(shard: ShardInfo) -> str:
    return str(shard.samples_hash)
