"""The journal of an index of JSON Lines files, so that a rerun reads only the rest.

    parts      a.jsonl 0 1 2 3 … 15 │ a.jsonl 16 17  b.jsonl.gz │ …    about 1 GiB is a group
    journal    .index/5f3c….json      .index/77ab….json                stored once it is counted

The name of an entry is a digest of everything on which it depends: the files with their versions,
the ranges, and the columns. So a rerun with other files or options does not find it. Groups of
files without versions are not stored, nor is the only group of a small corpus.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cloudload._version import __version__
from cloudload.data import ColumnChoice, Location
from cloudload.system import map_in_order
from cloudload.tools.convert.input_files import FilePart, Range
from cloudload.tools.convert.journal import remove_if_empty
from cloudload.tools.engines.units import for_each

GROUP_BYTES = 1 << 30
"""About how many bytes of files an entry has."""
_FOLDER = ".index"
_NUM_THREADS = 16


class CountedLines(NamedTuple):
    """What is known of the lines of a shard once they were read."""

    stored: Range
    """The stored bytes that have the lines."""
    text: Range | None
    """The range of the lines in the decompressed members, as in `LineRange`."""
    lines: int
    """The number of line ends."""
    records: int
    bytes: int
    """The size of the decompressed lines."""
    digest: str
    keys: frozenset[str]
    """The names of the fields of the part's records, if they were asked for."""


class LineJournal:
    """The journal of counting `parts` of files, in the folder of their index."""

    def __init__(self, folder: Location, parts: Sequence[FilePart], choice: ColumnChoice) -> None:
        self._folder = folder.join(_FOLDER)
        self._entries: dict[Location, list[int]] = {}
        """The indices of the parts of each entry."""
        self._entry_of: dict[int, Location] = {}
        self._left: dict[Location, int] = {}
        """The number of parts of each entry that were not stored yet."""
        ends = list(itertools.accumulate(part.stored_bytes for part in parts))
        groups = itertools.groupby(range(len(parts)), lambda index: ends[index] // GROUP_BYTES)
        for indices in (list(found) for _, found in groups):
            own = [parts[index] for index in indices]
            if all(part.file.tag for part in own) and len(own) < len(parts):
                entry = self._folder.join(f"{_identify(own, choice)}.json")
                self._entries[entry], self._left[entry] = indices, len(indices)
                self._entry_of |= dict.fromkeys(indices, entry)

    def read(self) -> dict[int, list[CountedLines]]:
        """Read what earlier runs counted: the shards of each part, by its index.

        Raises `StoreError` if an entry cannot be read.
        """
        found = map_in_order(
            Location.read_if_exists, self._entries, _NUM_THREADS, "cloudload-journal"
        )
        counted: dict[int, list[CountedLines]] = {}
        for indices, data in zip(self._entries.values(), found, strict=True):
            counted |= dict(zip(indices, _decode(data), strict=True)) if data else {}
        return counted

    def store(self, index: int, counted: Mapping[int, list[CountedLines]]) -> None:
        """Store the entry of the part with this index, if it is the last of its parts.

        Call it once for each part that `read` did not return, after the part was counted.
        Raises `StoreError` if it cannot be written.
        """
        if (entry := self._entry_of.get(index)) is None:
            return
        self._left[entry] -= 1
        if not self._left[entry]:
            entry.create(_encode([counted[each] for each in self._entries[entry]]))

    def remove(self) -> None:
        """Remove the entries. Raises `StoreError` if one cannot be removed."""
        for_each(Location.delete, self._entries)
        remove_if_empty(self._folder)


def _identify(parts: Sequence[FilePart], choice: ColumnChoice) -> str:
    values = [(part.file.url, part.file.bytes, part.file.tag, part.range) for part in parts]
    return hashlib.sha256(repr((__version__, *choice, values)).encode()).hexdigest()[:32]


def _encode(counted: Sequence[list[CountedLines]]) -> bytes:
    values = [[[*each[:-1], sorted(each.keys)] for each in shards] for shards in counted]
    return json.dumps(values).encode()


def _decode(data: bytes) -> Iterator[list[CountedLines]]:
    for shards in json.loads(data):
        yield [_decode_shard(*values) for values in shards]


def _decode_shard(stored: Sequence[int], text: Sequence[int] | None, *rest: Any) -> CountedLines:
    lines, records, size, digest, keys = rest
    span = (text[0], text[1]) if text else None
    return CountedLines((stored[0], stored[1]), span, lines, records, size, digest, frozenset(keys))
