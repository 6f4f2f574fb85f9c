"""Join the finished segments: their notes become one index and one report.

    .convert/00000.done.json   shard.00000   ─┐
    .convert/00001.done.json   shard.00000   ─┴─► 00000/shard.00000, 00001/shard.00000 ─► index.json

Joining may run again, or in several processes at once, because all write the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from cloudload.convert.output import segment_folder
from cloudload.convert.rejects import rejects_name
from cloudload.convert.report import Counts, sum_counts
from cloudload.convert.segment import Note, note_name, read_note
from cloudload.convert.work import Entries
from cloudload.errors import StoreError
from cloudload.mds.survey import JOURNAL_FOLDER
from cloudload.storage.objects import list_objects
from cloudload.storage.urls import join_url
from cloudload.system.ordered_results import run_in_order

_NUM_THREADS = 16


@dataclass
class JoinedShards:
    """The shards of a dataset: their index entries as text, and totals."""

    texts: list[str] = field(default_factory=list)
    stored: dict[str, int] = field(default_factory=dict)
    """Maps the name of each stored file to its size in bytes."""
    documents: int = 0
    raw_bytes: int = 0

    def add(self, folder: str, entries: Iterable[Mapping[str, Any]]) -> None:
        """Add the shards of a folder, "" for the dataset's own."""
        for entry in entries:
            files = {
                kind: {**entry[kind], "basename": join_url(folder, entry[kind]["basename"])}
                if folder and entry[kind]
                else entry[kind]
                for kind in ("raw_data", "zip_data")
            }
            self.texts.append(json.dumps({**entry, **files}, sort_keys=True))
            file = files["zip_data"] or files["raw_data"]
            self.stored[file["basename"]] = file["bytes"]
            self.documents += entry["samples"]
            self.raw_bytes += files["raw_data"]["bytes"]

    def index(self) -> bytes:
        """The bytes of `index.json`, as `mds.writer.encode_index` encodes them."""
        return f'{{"shards": [{", ".join(self.texts)}], "version": 2}}'.encode()


@dataclass
class Joined:
    """The datasets of a conversion by split, and their counts."""

    datasets: dict[str, JoinedShards]
    shards: dict[str, int] = field(default_factory=dict)
    """The number of shards in each folder."""
    parts: list[Counts] = field(default_factory=list)
    with_bad: list[int] = field(default_factory=list)
    """The segments that have bad records."""

    @property
    def counts(self) -> Counts:
        """The counts of all folders."""
        return sum_counts(self.parts)

    @staticmethod
    def none(splits: Iterable[str]) -> Joined:
        """Datasets without shards."""
        return Joined({split: JoinedShards() for split in splits})

    def add(self, folder: str, entries: Entries, counts: Counts) -> None:
        """Add the shards of a folder, "" for each dataset's own."""
        for split, several in entries.items():
            self.datasets[split].add(folder, several)
        self.shards[folder] = sum(map(len, entries.values()))
        self.parts.append(counts)

    def shards_of(self, segment: int) -> int:
        """The number of a segment's shards."""
        return self.shards.get(segment_folder(segment), 0)


def list_finished(
    location: str, numbers: Iterable[int], plan: str, *, with_rejects: bool
) -> list[int]:
    """Return the segments that have a note, in order.

    With `with_rejects`, segments with bad records must also have rejects.
    """
    try:
        found = list_objects(join_url(location, JOURNAL_FOLDER))
    except StoreError as error:
        if not error.is_missing:
            raise
        found = []
    names = {item.url.rpartition("/")[2] for item in found}
    noted = [number for number in numbers if _base(note_name(number)) in names]
    if not with_rejects:
        return noted
    # normally none, because each segment converted with rejects has a file of rejects
    unsure = [number for number in noted if _base(rejects_name(number)) not in names]
    notes = read_notes(location, unsure, plan)
    lacking = {number for number, note in notes if note and note.counts.bad}
    return [number for number in noted if number not in lacking]


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def read_notes(
    location: str, numbers: Sequence[int], plan: str
) -> Iterator[tuple[int, Note | None]]:
    """Yield (number, note) for each segment, in order. The note of an unfinished one is None.

    Only a few notes are in memory at a time.
    """
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        yield from run_in_order(
            lambda number: threads.submit(read_note, location, number, plan),
            numbers,
            4 * _NUM_THREADS,
        )


def join_notes(
    location: str, numbers: Sequence[int], plan: str, joined: Joined
) -> tuple[Joined, list[int]]:
    """Add the finished segments to `joined`, and return it and the numbers of the others."""
    missing = []
    for number, note in read_notes(location, numbers, plan):
        if note is None:
            missing.append(number)
        else:
            joined.add(segment_folder(number), note.entries, note.counts)
            joined.with_bad += [number] if note.counts.bad else []
    return joined, missing
