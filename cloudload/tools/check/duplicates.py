"""Find repeated documents by exact hashes of their bytes, in bounded memory.

    hashes of each group ─► parts by hash, in temporary files ─► each part: sort, compare neighbors

A record has 24 bytes: a 128-bit hash, and the document's shard and sample. Parts are read one at a
time. For up to 1.4 * 10^9 documents, only the temporary files grow with the dataset, not memory.
With 10^9 documents, the probability that two different documents have the same hash is below
10^-20.
"""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from cloudload.system import temp_files
from cloudload.tools.check import document_rules
from cloudload.tools.check.findings import MOST_LISTED, Findings, find

Records = NDArray[np.uint64]
"""uint64 [documents, 3]: the halves of the hash, then shard · 2^32 + sample."""

_NOUNS = {document_rules.REPEATED_TEXT: "text", document_rules.REPEATED_ID: "ID"}
_COLUMNS = 3
_RECORD_BYTES = 8 * _COLUMNS
PART_BYTES = 128 << 20
_MOST_PARTS = 256  # limited because each part of each rule is an open file
MEMORY_BYTES = 1 << 18  # maximum size of a part in memory; a larger part moves to a file


class Repeat(NamedTuple):
    """A document that repeats an earlier one. Shard indices count only shards that are read."""

    shard: int
    sample: int
    first_shard: int
    first_sample: int


class DuplicateFinder:
    """Collects the hashes of documents by rule, and finds equal hashes."""

    def __init__(self, rules: Sequence[str], num_samples: int) -> None:
        needed = -(-num_samples * _RECORD_BYTES // PART_BYTES)
        self._num_parts = max(1, min(needed, _MOST_PARTS))
        self._parts = {
            name: [tempfile.SpooledTemporaryFile(MEMORY_BYTES) for _ in range(self._num_parts)]
            for name in rules
        }

    @property
    def rules(self) -> Collection[str]:
        """The rules for which hashes are collected."""
        return self._parts.keys()

    def add(self, shard: int, hashes: Mapping[str, bytes]) -> None:
        """Add a shard's records. `hashes` maps each rule to the result of `encode_records`."""
        for name, data in hashes.items():
            moved = _decode(data).copy()
            moved[:, 2] += np.uint64(shard << 32)
            owners = moved[:, 0] % np.uint64(self._num_parts)
            order = np.argsort(owners, kind="stable")
            ends = np.searchsorted(owners[order], np.arange(self._num_parts - 1), side="right")
            with temp_files.explained_full_disk():
                for part, own in zip(self._parts[name], np.split(moved[order], ends), strict=True):
                    part.write(own.tobytes())

    def find(self, name: str, most: int) -> tuple[int, list[Repeat]]:
        """Return the number of repeated documents, and the first `most` of them as `Repeat`s."""
        count, first = 0, list[Repeat]()
        for part in self._parts[name]:
            part.seek(0)
            repeats, firsts = _find_repeats(_decode(part.read()))
            count += len(repeats)
            chosen = np.argsort(repeats)[:most]
            found = map(_describe, repeats[chosen].tolist(), firsts[chosen].tolist())
            first = heapq.nsmallest(most, [*first, *found])
        return count, first

    def close(self) -> None:
        """Remove the temporary files."""
        for parts in self._parts.values():
            for part in parts:
                part.close()


def encode_records(values: Iterable[tuple[int, bytes]]) -> bytes:
    """Hash a shard's (sample, value) pairs. The shard index is 0 until `add` sets it."""
    digests = [(xxhash.xxh3_128_digest(value), sample) for sample, value in values]
    records = np.empty((len(digests), _COLUMNS), "<u8")
    joined = b"".join(digest for digest, _ in digests)
    records[:, :2] = np.frombuffer(joined, "<u8").reshape(-1, 2)
    records[:, 2] = [sample for _, sample in digests]
    return records.tobytes()


def _decode(data: bytes) -> Records:
    return np.frombuffer(data, "<u8").reshape(-1, _COLUMNS)


def _describe(index: int, first: int) -> Repeat:
    return Repeat(index >> 32, index & 0xFFFFFFFF, first >> 32, first & 0xFFFFFFFF)


def _find_repeats(records: Records) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the locations of repeated documents and of their first copies: uint64 [repeats] each.

    A location is shard · 2^32 + sample. For example, if the hashes at 5 6 7 8 are A B A A, the
    result is 7 8 (the repeated documents) and 5 5 (their first copies).
    """
    if not len(records):
        return records[:, 2], records[:, 2]
    order = np.argsort(records[:, 0])
    halves = records[order, 0]
    is_equal = halves[1:] == halves[:-1]
    is_near = np.append(is_equal, False) | np.append(False, is_equal)
    near = records[order[is_near]]  # usually few records, so sorting is cheap
    near = near[np.lexsort((near[:, 2], near[:, 1], near[:, 0]))]
    is_repeat = (near[1:, :2] == near[:-1, :2]).all(axis=1)
    starts = np.flatnonzero(np.append(True, ~is_repeat))[: len(near)]
    lengths = np.diff(np.append(starts, len(near)))
    firsts = np.repeat(near[starts, 2], lengths)
    return near[1:, 2][is_repeat], firsts[1:][is_repeat]


def add_repeats(
    duplicates: DuplicateFinder,
    findings: Findings,
    name_samples: Callable[[int, Sequence[int]], tuple[str, list[str]]],
) -> None:
    """Add findings for the documents that repeat an earlier one.

    `name_samples` takes a shard's index and samples, and returns the shard's name and the
    samples' descriptions.
    """
    for kind, noun in _NOUNS.items():
        if kind not in duplicates.rules:
            continue
        count, repeats = duplicates.find(kind, MOST_LISTED)
        by_shard: dict[int, set[int]] = {}
        for shard, sample in [index for each in repeats for index in (each[:2], each[2:])]:
            by_shard.setdefault(shard, set()).add(sample)
        named = {}
        for shard, samples in by_shard.items():
            name, described = name_samples(shard, sorted(samples))
            named[shard] = name, dict(zip(sorted(samples), described, strict=True))
        for each in repeats:
            (name, texts), (first_name, first) = named[each.shard], named[each.first_shard]
            what = f"{texts[each.sample]} has the same {noun} as {first[each.first_sample]}"
            findings.add([find(kind, name, f"{what} of {first_name}")])
        findings.add_unlisted(kind, count - len(repeats))
