"""Fingerprints of datasets, which a state stores and a resume compares.

index      SHA-256 of `index.json`, in 64 hex digits; only for the table of a whole index
data       sample counts, columns, and identities (raw sizes and raw hashes) of the shards, in order
samples    sample counts, columns and `SAMPLES_HASH` of the shards, in order

`data` and `samples` do not depend on the location. A shard's header names its compression, hashes,
and size limit, so `data` depends on these. `samples` does not. The index of a copy lists the
identities of the original shards, so `data` is the same for both. A virtual shard has an identity,
but no `SAMPLES_HASH`.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence

from cloudload.data.mds import shard_entries
from cloudload.data.mds.shard_table import ShardTable, SharedTable
from cloudload.system import array_files, file_locks, temp_files

INDEX, DATA, SAMPLES = "index", "data", "samples"
KINDS = (DATA, SAMPLES)

SUFFIX = ".fingerprints"
"""The suffix of the files that hold the fingerprints of several mapped tables together."""

_DATASET, _DIGITS = b"dataset\n", 32
_MOST_WAIT_S = 60.0


def fingerprint(tables: Sequence[ShardTable], kind: str) -> str:
    """32 hex digits that identify the shards of datasets; "" if a shard lacks a `SAMPLES_HASH`.

    `kind` is `DATA` or `SAMPLES`. A table stores its own fingerprints, of both kinds. The joint
    fingerprints of several mapped tables are stored in a file beside the first table's file. The
    processes of a node share this file.
    """
    if len(tables) != 1:
        origins = [table.origin for table in tables if table.origin is not None]
        is_mapped = len(origins) == len(tables) > 0
        return (_hash_once(tables, origins) if is_mapped else _hash(tables))[kind]
    [table] = tables
    if kind not in table.fingerprints:
        table.fingerprints.update(_hash(tables))
    return table.fingerprints[kind]


def find_beginning(table: ShardTable, wanted: str, kind: str) -> int | None:
    """Find how many shards at the start of a dataset together have the fingerprint `wanted`.

    Returns None if no number of shards has this fingerprint.
    """
    digest = hashlib.sha256(_DATASET)
    for count, [line] in enumerate(_encode(table, [kind]) if wanted else (), 1):
        digest.update(line)
        if digest.hexdigest()[:_DIGITS] == wanted:
            return count
    return None


def _hash_once(tables: Sequence[ShardTable], origins: Sequence[SharedTable]) -> dict[str, str]:
    """Read both fingerprints of mapped tables from their file, or compute and write them."""
    parts = "\n".join(f"{each.key} {each.start} {each.stop}" for each in origins)
    key = hashlib.sha256(parts.encode()).hexdigest()
    path = origins[0].path.with_name(f"{key[:32]}{SUFFIX}")
    if (kept := array_files.map_arrays(path, key)) is not None:
        return kept.facts
    with contextlib.ExitStack() as stack:
        can_write = False
        with contextlib.suppress(OSError):
            what = "compute the fingerprints of the data"
            lock = file_locks.locked(
                temp_files.lock_path(path), what=what, most_wait_s=_MOST_WAIT_S
            )
            can_write = stack.enter_context(lock)
            if (kept := array_files.map_arrays(path, key)) is not None:
                return kept.facts
        found = _hash(tables)
        if can_write:
            with contextlib.suppress(OSError):
                array_files.write_arrays(path, key, found, [])
        return found


def _hash(tables: Sequence[ShardTable]) -> dict[str, str]:
    """Compute both kinds in one pass, because reading the texts of all shards is slow."""
    forms = (form for table in tables for form in table.count_forms())
    has_samples = all(form.has_samples_hash for form in forms)
    kinds = KINDS if has_samples else (DATA,)
    digests = [hashlib.sha256() for _ in kinds]
    for table in tables:
        for digest in digests:
            digest.update(_DATASET)
        for lines in _encode(table, kinds):
            for digest, line in zip(digests, lines, strict=True):
                digest.update(line)
    found = {
        kind: digest.hexdigest()[:_DIGITS] for kind, digest in zip(kinds, digests, strict=True)
    }
    return {SAMPLES: ""} | found


def _encode(table: ShardTable, kinds: Sequence[str]) -> Iterator[list[bytes]]:
    """Yield for each shard the lines that the fingerprints of these kinds hash."""
    last: tuple[shard_entries.Column, ...] = ()
    columns = "[]"
    for samples, own, identity, samples_hash in table.identities():
        if own is not last:
            last = own
            columns = str([(column.name, column.encoding) for column in own])
        yield [
            f"{samples} {identity if kind == DATA else samples_hash} {columns}\n".encode()
            for kind in kinds
        ]
