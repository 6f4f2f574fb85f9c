"""Join the finished segments: their notes become one index and one report.

    .convert/00000.done.json   shard.00000   ─┐
    .convert/00001.done.json   shard.00000   ─┴─► 00000/shard.00000, 00001/shard.00000 ─► index.json

Joining may run again, or in several processes at once, because all write the same bytes. A dataset
may have a million shards with index entries of 500 bytes each, so memory never holds all entries or
the whole index:

    entry of the index ─► its text, 1,000 of them compressed ─► index.json, piece by piece
                       └► a 64-bit key of name and size      ─► is the shard in the listing?
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash
import zstandard

from cloudload.data import JOURNAL_FOLDER, Location, shard_entries, urls
from cloudload.system import map_in_order
from cloudload.tools.convert import conversion_plan
from cloudload.tools.convert.conversion_report import Counts, sum_counts
from cloudload.tools.convert.output_location import collect_at, segment_folder
from cloudload.tools.convert.sample_encoding import rejects_name
from cloudload.tools.convert.segment import Note, note_name, read_note
from cloudload.tools.convert.segment_journal import Entries

_PACKED = 1_000

_NUM_THREADS = 16
_MOST_PARTS = 1_000


class JoinedShards:
    """Collects the index entries of shards, in order, and their totals."""

    def __init__(self) -> None:
        self.shards = self.documents = self.raw_bytes = self.stored_bytes = 0
        self._keys = array("Q")
        self._packed: list[bytes] = []
        self._texts: list[str] = []

    def add(self, folder: str, entries: Iterable[Mapping[str, Any]]) -> None:
        """Add the shards of a folder. "" is the folder of the dataset itself."""
        for entry in entries:
            files = {
                kind: {**entry[kind], "basename": urls.join_url(folder, entry[kind]["basename"])}
                if folder and entry[kind]
                else entry[kind]
                for kind in ("raw_data", "zip_data")
            }
            file = files["zip_data"] or files["raw_data"]
            self.shards += 1
            self.documents += entry["samples"]
            self.raw_bytes += files["raw_data"]["bytes"]
            self.stored_bytes += file["bytes"]
            self._keys.append(_key(file["basename"], file["bytes"]))
            self._texts.append(json.dumps({**entry, **files}, sort_keys=True))
            if len(self._texts) == _PACKED:
                self._packed.append(zstandard.compress(", ".join(self._texts).encode(), 1))
                self._texts.clear()

    def index(self) -> Iterator[bytes]:
        """Yield `index.json` in pieces, with the bytes that `mds.writer.encode_index` returns."""
        yield b'{"shards": ['
        for index, entries in enumerate(self._entries()):
            yield (b", " if index else b"") + entries
        yield b'], "version": 2}'

    def survey(self, listed: Iterable[tuple[str, int]]) -> tuple[list[str], list[str]]:
        """Return the names of the shards that a listing lacks, and of the indexes that it has.

        `listed` yields (name, bytes) of each stored object.
        """
        keys, indexes = array("Q"), []
        for name, size in listed:
            keys.append(_key(name, size))
            if name.endswith(shard_entries.INDEX_NAME):
                indexes.append(name)
        is_lost = ~np.isin(np.array(self._keys, np.uint64), np.array(keys, np.uint64))
        lost = set(np.flatnonzero(is_lost).tolist())
        names = self._names() if lost else ()
        return [name for index, name in enumerate(names) if index in lost], indexes

    def _entries(self) -> Iterator[bytes]:
        """Yield the texts of consecutive entries, separated by commas."""
        yield from map(zstandard.decompress, self._packed)
        if self._texts:
            yield ", ".join(self._texts).encode()

    def _names(self) -> Iterator[str]:
        for entries in self._entries():
            for entry in json.loads(b"[" + entries + b"]"):
                yield (entry["zip_data"] or entry["raw_data"])["basename"]


def _key(name: str, size: int) -> int:
    """Return a 64-bit hash of a stored file's name and size."""
    return xxhash.xxh3_64_intdigest(f"{size} {name}".encode())


@dataclass
class JoinedSegments:
    """The datasets of a conversion by split, and their counts."""

    datasets: dict[str, JoinedShards]
    new_shards: dict[int, int] = field(default_factory=dict)
    """The number of shards in each segment."""
    parts: list[Counts] = field(default_factory=list)
    """The counts of folders, in order. When there are 1,000, `add` replaces them with their sum."""
    with_bad: list[int] = field(default_factory=list)
    """The indices of the segments that have bad records."""

    @property
    def counts(self) -> Counts:
        """The counts of all folders."""
        return sum_counts(self.parts)

    @staticmethod
    def none(splits: Iterable[str]) -> JoinedSegments:
        """Return datasets that have no shards yet."""
        return JoinedSegments({split: JoinedShards() for split in splits})

    def add(self, folder: str, entries: Entries, counts: Counts) -> None:
        """Add the shards of a folder. "" is the folder of each dataset itself."""
        for split, several in entries.items():
            self.datasets[split].add(folder, several)
        self.parts.append(counts)
        if len(self.parts) == _MOST_PARTS:
            self.parts = [self.counts]

    @property
    def num_shards(self) -> int:
        """The number of shards in all datasets."""
        return sum(each.shards for each in self.datasets.values())


def list_finished(
    location: Location, segments: Iterable[int], plan: str, *, with_rejects: bool
) -> list[int]:
    """Return the segments that have a note, in order.

    With `with_rejects`, a segment with bad records must also have a file of rejects.
    """
    names = collect_at(
        location.join(JOURNAL_FOLDER), lambda found: {_base(name) for name, _ in found}
    )
    noted = [segment for segment in segments if _base(note_name(segment)) in names]
    if not with_rejects:
        return noted
    # normally empty, because each segment converted with rejects has a file of rejects
    unsure = [segment for segment in noted if _base(rejects_name(segment)) not in names]
    notes = read_notes(location, unsure, plan)
    lacking = {segment for segment, note in notes if note and note.counts.bad}
    return [segment for segment in noted if segment not in lacking]


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def read_notes(
    location: Location, segments: Sequence[int], plan: str
) -> Iterator[tuple[int, Note | None]]:
    """Yield (index, note) for each segment, in order. An unfinished segment has the note None.

    At most 33 notes are in memory at a time.
    """
    notes = map_in_order(
        lambda segment: read_note(location, segment, plan), segments, _NUM_THREADS, "cloudload-join"
    )
    return zip(segments, notes, strict=True)


def join_notes(
    location: Location,
    segments: Sequence[int],
    plan: conversion_plan.ConversionPlan,
    joined: JoinedSegments,
) -> tuple[JoinedSegments, list[int]]:
    """Add the finished segments to `joined`.

    Returns `joined`, and the indices of the unfinished segments.
    """
    missing = []
    for segment, note in read_notes(location, segments, plan.digest):
        if note is None:
            missing.append(segment)
        else:
            folder = segment_folder(segment) if plan.has_folders else ""
            joined.add(folder, note.entries, note.counts)
            joined.new_shards[segment] = sum(map(len, note.entries.values()))
            joined.with_bad += [segment] if note.counts.bad else []
    return joined, missing
