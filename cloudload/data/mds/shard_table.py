"""The shards of an index, stored as columns that are compact, fast to sum, and can be mapped.

    index.json   {"samples": 9000, "raw_data": …}, {"samples": 8700, "raw_data": …}, …
    numbers      samples 9000 8700 …   raw bytes …   stored bytes …   form 0 0 …
    forms        0: columns, compression and names of hashes, which most shards share
    texts        ["shard.00000.mds","shard.00000.mds.zstd","5f3c…"],[…    names and digests

A table is a sequence of `ShardInfo` objects, which it creates on access. It takes about 200 bytes
per shard. The processes of a node map one file, so a process needs memory only for the shards that
it looks up. `parse_index` makes a table from an untrusted `index.json`.
"""

from __future__ import annotations

import contextlib
import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from cloudload.data.mds import shard_entries
from cloudload.errors import CacheError, DatasetError
from cloudload.system import Flags, Ids, Ints, array_files, verified_files

_FORMAT = 3
"""The version of the file's format. Increase it when the arrays or facts of the file change."""
_SAMPLES, _RAW_BYTES, _STORED_BYTES, _FORM = range(4)
_AT_ONCE = 1 << 12
_ENCODER = json.JSONEncoder(separators=(",", ":"))


class Form(NamedTuple):
    """The fields of a shard that are the same for most shards of a dataset."""

    columns: tuple[shard_entries.Column, ...]
    compression: str | None
    raw_hashes: tuple[str, ...]
    """The names of the hashes of the raw file."""
    zipped_hashes: tuple[str, ...] | None
    """The names of the hashes of the stored file; None for an uncompressed shard."""
    has_samples_hash: bool
    has_original: bool
    """Whether the index has the identity of each shard's original."""


class SharedTable(NamedTuple):
    """The file from which a table is mapped, and the table's range of shards in this file."""

    path: Path
    key: str
    inode: tuple[int, int]
    start: int
    stop: int

    def is_there(self) -> bool:
        """Whether the path still leads to this file."""
        with contextlib.suppress(OSError):
            found = self.path.lstat()
            return (found.st_dev, found.st_ino) == self.inode
        return False

    def cut(self, start: int, stop: int) -> SharedTable:
        """Return the origin of the shards [start, stop) of this origin's shards."""
        return self._replace(start=self.start + start, stop=self.start + stop)


class ShardTable(Sequence[shard_entries.ShardInfo]):
    """The shards of an index, in order.

    `numbers` (int64 [4, shards]) has the samples, raw bytes, stored bytes, and form of each shard.
    `texts` (uint8 [bytes]) has the names and digests of each shard as JSON, and `starts` (int64
    [shards + 1]) has the offset of each shard in `texts`. `origin` is the file from which the table
    is mapped, or None.
    """

    def __init__(
        self,
        forms: tuple[Form, ...],
        numbers: Ints,
        starts: Ints,
        texts: Ids,
        fingerprints: dict[str, str] | None = None,
        *,
        folder: str = "",
        origin: SharedTable | None = None,
    ) -> None:
        self._forms, self._numbers, self._starts, self._texts = forms, numbers, starts, texts
        self.folder = folder
        """The URL of the folder of the stored files; "" for the folder of the index."""
        self.origin = origin
        """The file from which the table is mapped, or None."""
        self.fingerprints = {} if fingerprints is None else fingerprints
        """The fingerprints of these shards computed so far, by kind (see `fingerprints`)."""

    @staticmethod
    def of(shards: Iterable[shard_entries.ShardInfo]) -> ShardTable:
        """Build a table of `shards`."""
        builder = TableBuilder()
        for shard in shards:
            builder.add(shard)
        return builder.build()

    @property
    def samples(self) -> Ints:
        """Number of samples in each shard: int64 [shards]. May be read-only."""
        return self._column(_SAMPLES)

    @property
    def raw_bytes(self) -> Ints:
        """Bytes of each raw shard: int64 [shards]. May be read-only."""
        return self._column(_RAW_BYTES)

    @property
    def identity_bytes(self) -> Ints:
        """The size in the identity of each shard: int64 [shards]. May be read-only.

        It is the number of raw bytes, except for a copy, where it is that of the original.
        """
        if not any(form.has_original for form in self._forms):
            return self.raw_bytes
        return np.array([shard.identity_bytes for shard in self], np.int64)

    @property
    def stored_bytes(self) -> Ints:
        """Bytes of each stored file: int64 [shards]. May be read-only."""
        return self._column(_STORED_BYTES)

    @property
    def is_zipped(self) -> Flags:
        """Whether each shard is compressed: bool [shards]."""
        of_forms = [form.compression is not None for form in self._forms] or [False]
        is_zipped: Flags = np.array(of_forms)[self._numbers[_FORM]]
        return is_zipped

    def _column(self, row: int) -> Ints:
        column: Ints = self._numbers[row]
        return column

    def find_form(self, index: int) -> Form:
        """The form of the shard with index `index`."""
        return self._forms[int(self._numbers[_FORM, index])]

    def count_forms(self) -> dict[Form, int]:
        """The number of shards of each form, in the order of their first shards."""
        found, firsts, counts = np.unique(
            self._numbers[_FORM], return_index=True, return_counts=True
        )
        order = np.argsort(firsts).tolist()
        return {self._forms[int(found[index])]: int(counts[index]) for index in order}

    def column_sets(self) -> list[tuple[shard_entries.Column, ...]]:
        """The distinct columns that shards have, in the order of their first shards."""
        return list(dict.fromkeys(form.columns for form in self.count_forms()))

    def __len__(self) -> int:
        return int(self._numbers.shape[1])

    @overload
    def __getitem__(self, index: int) -> shard_entries.ShardInfo: ...
    @overload
    def __getitem__(self, index: slice) -> ShardTable: ...
    def __getitem__(self, index: int | slice) -> shard_entries.ShardInfo | ShardTable:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return ShardTable.of(self[each] for each in range(start, stop, step))
            return self._cut(start, max(start, stop))
        shard = range(len(self))[index]  # an index below 0 counts from the end
        return next(self._make(shard, shard + 1))

    def __iter__(self) -> Iterator[shard_entries.ShardInfo]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self._make(start, min(start + _AT_ONCE, len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardTable):
            return NotImplemented
        if self is other or len(self) != len(other):
            return self is other
        if not np.array_equal(self._numbers[:_FORM], other._numbers[:_FORM]):
            return False
        return all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # unhashable, like a list

    def __reduce__(self) -> tuple[Any, ...]:
        if self.origin is not None and self.origin.is_there():
            origin = self.origin  # a worker maps the file, so do not send its content
            verified_files.mark_used(origin.path)  # so that it is not removed before that
            return _map_part, (origin.path, origin.key, origin.start, origin.stop)
        first, end = int(self._starts[0]), int(self._starts[-1])
        numbers, starts = np.array(self._numbers), self._starts - first
        texts = np.array(self._texts[first:end])
        make = partial(ShardTable, folder=self.folder)
        return make, (self._forms, numbers, starts, texts, self.fingerprints)

    def _cut(self, start: int, stop: int) -> ShardTable:
        if stop - start == len(self):
            return self
        origin = self.origin and self.origin.cut(start, stop)
        numbers, starts = self._numbers[:, start:stop], self._starts[start : stop + 1]
        return ShardTable(
            self._forms, numbers, starts, self._texts, folder=self.folder, origin=origin
        )

    def _make(self, start: int, stop: int) -> Iterator[shard_entries.ShardInfo]:
        """Yield the shards from `start` to `stop`."""
        first, end = self._starts[start], self._starts[stop]
        texts = json.loads(b"[%b]" % self._texts[first:end].tobytes()[:-1])
        numbers = self._numbers[:, start:stop].T.tolist()
        for (samples, raw_bytes, stored_bytes, form), words in zip(numbers, texts, strict=True):
            yield _make_shard(self._forms[form], samples, raw_bytes, stored_bytes, iter(words))

    def write(self, path: Path, key: str) -> None:
        """Write the table to a file for `map_table`, atomically, unless a valid file exists.

        Raises `OSError` if the file cannot be written.
        """
        first, end = int(self._starts[0]), int(self._starts[-1])
        forms = json.loads(json.dumps(self._forms, default=_encode_column))
        facts = {"format": _FORMAT, "forms": forms, "fingerprints": self.fingerprints}
        facts["folder"] = self.folder
        numbers, starts = self._numbers.astype("<i8"), (self._starts - first).astype("<i8")
        array_files.write_arrays(path, key, facts, [numbers, starts, self._texts[first:end]])


def map_table(path: Path, key: str) -> ShardTable | None:
    """Map a table that `write` wrote with this `key`. Returns None if there is no valid file."""
    found = array_files.map_arrays(path, key)
    if found is None or found.facts["format"] != _FORMAT:
        return None
    forms = tuple(map(_decode_form, found.facts["forms"]))
    numbers, starts, texts = found.arrays
    origin = SharedTable(path, key, found.inode, 0, len(starts) - 1)
    fingerprints, folder = found.facts["fingerprints"], found.facts["folder"]
    return ShardTable(forms, numbers, starts, texts, fingerprints, folder=folder, origin=origin)


def _map_part(path: Path, key: str, start: int, stop: int) -> ShardTable:
    table = map_table(path, key)
    if table is None:
        raise CacheError(
            f"{path} was removed or changed while a worker started. Start the run again, and "
            "clear a cache folder only when no run uses it"
        )
    return table[start:stop]


class TableBuilder:
    """Builds a table shard by shard, without keeping the `ShardInfo` objects."""

    def __init__(self) -> None:
        self._forms: dict[Form, int] = {}
        self._known: dict[tuple[int, tuple[Any, ...]], int] = {}
        """The index of each form, by the `id()` of its columns and by its other fields."""
        self._columns: list[tuple[shard_entries.Column, ...]] = []
        self._numbers, self._starts, self._texts = array("q"), array("q", [0]), bytearray()
        self.names: list[str] = []
        """The names of all raw and stored files, in order, for `check_names`."""

    def __len__(self) -> int:
        return len(self._starts) - 1

    def add(self, shard: shard_entries.ShardInfo) -> None:
        """Add a shard to the end."""
        raw, zipped = shard.raw, shard.zipped
        zipped_hashes = None if zipped is None else tuple(zipped.hashes)
        words = [raw.name, *raw.hashes.values()]
        if zipped is not None:
            words += [zipped.name, *zipped.hashes.values()]
        if shard.samples_hash is not None:
            words.append(shard.samples_hash)
        if shard.original is not None:
            words.append(shard.original)
        own = shard.samples_hash is not None, shard.original is not None
        rest = shard.compression, tuple(raw.hashes), zipped_hashes, *own
        # most shards share one columns object, and looking up its ID is faster than comparing it
        if (form := self._known.get((id(shard.columns), rest))) is None:
            form = self._forms.setdefault(Form(shard.columns, *rest), len(self._forms))
            self._known[id(shard.columns), rest] = form
            self._columns.append(shard.columns)  # keep it, so that no other object gets its ID
        self._numbers.extend((shard.samples, raw.bytes, shard.stored.bytes, form))
        self._texts += _ENCODER.encode(words).encode() + b","
        self._starts.append(len(self._texts))
        self.names.append(raw.name)
        if zipped is not None:
            self.names.append(zipped.name)

    def build(self, folder: str = "") -> ShardTable:
        """Return the table of all shards that were added. `folder` is that of the stored files."""
        numbers = np.ascontiguousarray(np.frombuffer(self._numbers, np.int64).reshape(-1, 4).T)
        starts = np.frombuffer(self._starts, np.int64)
        texts = np.frombuffer(self._texts, np.uint8)
        return ShardTable(tuple(self._forms), numbers, starts, texts, folder=folder)


class _Row:
    """A placeholder for a parsed entry that has been added to the table."""

    __slots__ = ()


_ROW = _Row()


def parse_index(data: bytes, dataset: str) -> ShardTable:
    """Parse the shards of an `index.json`, in order.

    `dataset` is the dataset's URL, for messages. Raises `DatasetError` if the index is invalid or
    too large.
    """
    builder = TableBuilder()

    def take_shard_or_keep(entry: dict[str, Any]) -> Any:
        # add entries while the JSON is parsed, so that their dicts do not fill memory
        if "raw_data" not in entry:
            return entry
        builder.add(shard_entries.parse_shard(entry))
        return _ROW

    try:
        shard_entries.check_extent(data)
        index = json.loads(data, object_hook=take_shard_or_keep)
        shard_entries.check_version(index)
        shards = index["shards"]
        if not isinstance(shards, list) or not all(shard is _ROW for shard in shards):
            raise ValueError("'shards' is not a list of entries with raw_data")
        if len(shards) != len(builder):
            raise ValueError("an entry with raw_data is outside 'shards'")
        shard_entries.check_names(builder.names)
        return builder.build(shard_entries.parse_folder(index))
    except shard_entries.FAULTS as error:
        reason = shard_entries.explain_fault(error)[:500]
        raise DatasetError(
            f"{dataset}/{shard_entries.INDEX_NAME} is not an MDS index: {reason}. Convert the raw "
            "corpus with cloudload convert, or copy the dataset again"
        ) from error


def _make_shard(
    form: Form, samples: int, raw_bytes: int, stored_bytes: int, words: Iterator[str]
) -> shard_entries.ShardInfo:
    raw = shard_entries.FileInfo(
        next(words), raw_bytes, {name: next(words) for name in form.raw_hashes}
    )
    zipped = None
    if form.zipped_hashes is not None:
        name = next(words)
        hashes = {each: next(words) for each in form.zipped_hashes}
        zipped = shard_entries.FileInfo(name, stored_bytes, hashes)
    samples_hash = next(words) if form.has_samples_hash else None
    original = next(words) if form.has_original else None
    return shard_entries.ShardInfo(
        samples, form.columns, raw, zipped, form.compression, samples_hash, original
    )


def _encode_column(column: shard_entries.Column) -> list[Any]:
    return [column.name, column.encoding, column.bytes]


def _decode_form(values: list[Any]) -> Form:
    columns, compression, raw_hashes, zipped_hashes, *own = values
    return Form(
        tuple(shard_entries.Column(*column) for column in columns),
        compression,
        tuple(raw_hashes),
        None if zipped_hashes is None else tuple(zipped_hashes),
        *own,
    )
