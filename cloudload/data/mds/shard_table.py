"""The shards of an index, stored as columns that are compact, fast to sum, and can be mapped.

    index.json   {"samples": 9000, "raw_data": …}, {"samples": 8700, "raw_data": …}, …
    numbers      samples 9000 8700 …   raw bytes …   stored bytes …   form 0 0 …   text 0 1 …
    forms        0: columns, compression and names of hashes, which most shards share
    texts        ["shard.00000.mds","shard.00000.mds.zstd","5f3c…"],[…    names and digests

A table is a sequence of `ShardInfo` objects, which it creates on access. It takes about 200 bytes
per shard. Virtual shards have their place in the file, too, and those of a Parquet file share a
text, so they take about 70 bytes. The processes of a node map one file, so a process needs memory
only for the shards that it looks up. `parse_index` makes a table from an untrusted `index.json`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from cloudload.data.mds import file_records, shard_entries
from cloudload.errors import CacheError, DatasetError
from cloudload.system import Flags, Ids, Ints, array_files, verified_files

FORMAT = 4
"""The version of the file's format. Increase it when the arrays or facts of the file change."""
_SAMPLES, _RAW_BYTES, _STORED_BYTES, _FORM, _TEXT, _PLACE = range(6)
_NO_PLACE = 0, 0, 0
_ROWS = _PLACE + len(_NO_PLACE)
_AT_ONCE = 1 << 12
ShardIdentity = tuple[int, tuple[shard_entries.Column, ...], str, str | None]
"""The samples, columns, identity and `SAMPLES_HASH` of a shard, which fingerprints hash."""
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

    `numbers` (int64 [5 or 8, shards]) has the samples, raw bytes, stored bytes, form, and text of
    each shard, and for virtual shards, the `place` of their `StoredForm`. `texts` (uint8 [bytes])
    has texts as JSON, which list names and digests, and `starts` (int64 [texts + 1]) has the offset
    of each text. The shards use the texts in order. `origin` is the file from which the table is
    mapped, or None.
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
        make = partial(ShardTable, folder=self.folder)
        return make, (self._forms, *self._copy_arrays(), self.fingerprints)

    def _copy_arrays(self) -> tuple[Ints, Ints, Ids]:
        """Return the numbers, starts and texts of only these shards."""
        numbers = np.array(self._numbers)
        low, high = (int(numbers[_TEXT, 0]), int(numbers[_TEXT, -1]) + 1) if len(self) else (0, 0)
        numbers[_TEXT] -= low
        first, end = int(self._starts[low]), int(self._starts[high])
        return numbers, self._starts[low : high + 1] - first, np.array(self._texts[first:end])

    def _cut(self, start: int, stop: int) -> ShardTable:
        if stop - start == len(self):
            return self
        origin = self.origin and self.origin.cut(start, stop)
        numbers = self._numbers[:, start:stop]
        return ShardTable(
            self._forms, numbers, self._starts, self._texts, folder=self.folder, origin=origin
        )

    def _make(self, start: int, stop: int) -> Iterator[shard_entries.ShardInfo]:
        """Yield the shards from `start` to `stop`."""
        for row, words in self._rows(start, stop):
            yield _make_shard(self._forms[row[_FORM]], row, words)

    def _rows(self, start: int, stop: int) -> Iterator[tuple[list[int], list[Any]]]:
        """Yield the numbers and the text of each shard from `start` to `stop`."""
        rows = self._numbers[:, start:stop].T.tolist()
        low, high = rows[0][_TEXT], rows[-1][_TEXT] + 1
        first, end = self._starts[low], self._starts[high]
        texts = json.loads(b"[%b]" % self._texts[first:end].tobytes()[:-1])
        for row in rows:
            yield row, texts[row[_TEXT] - low]

    def identities(self) -> Iterator[ShardIdentity]:
        """Yield what identifies each shard, in less time than creating the shards takes."""
        kinds = [shard_entries.STORED_FORMS.get(form.compression) for form in self._forms]
        names = [shard_entries.list_names(form.columns) for form in self._forms]
        for start in range(0, len(self), _AT_ONCE):
            for row, words in self._rows(start, min(start + _AT_ONCE, len(self))):
                number = row[_FORM]
                form = self._forms[number]
                if (kind := kinds[number]) is None:
                    shard = _make_shard(form, row, words)
                    yield row[_SAMPLES], form.columns, shard.identity, shard.samples_hash
                else:
                    content = kind.content_at(row[_PLACE:], words)
                    digest = shard_entries.hash_content(content, names[number])
                    hashes = {str(form.compression): digest}
                    identity = shard_entries.describe_identity(row[_RAW_BYTES], hashes)
                    yield row[_SAMPLES], form.columns, identity, None

    def write(self, path: Path, key: str) -> None:
        """Write the table to a file for `map_table`, atomically, unless a valid file exists.

        Raises `OSError` if the file cannot be written.
        """
        forms = json.loads(json.dumps(self._forms, default=_encode_column))
        facts = {"format": FORMAT, "forms": forms, "fingerprints": self.fingerprints}
        facts["folder"] = self.folder
        numbers, starts, texts = self._copy_arrays()
        array_files.write_arrays(
            path, key, facts, [numbers.astype("<i8"), starts.astype("<i8"), texts]
        )


def map_table(path: Path, key: str) -> ShardTable | None:
    """Map a table that `write` wrote with this `key`. Returns None if there is no valid file."""
    found = array_files.map_arrays(path, key)
    if found is None or found.facts["format"] != FORMAT:
        return None
    forms = tuple(map(_decode_form, found.facts["forms"]))
    numbers, starts, texts = found.arrays
    origin = SharedTable(path, key, found.inode, 0, numbers.shape[1])
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
        self._forms: dict[Form | tuple[int, str], int] = {}
        """The index of each form. That of a run of shards has the place of its columns."""
        self._known: dict[tuple[int, tuple[Any, ...]], int] = {}
        """The index of each form, by the `id()` of its columns and by its other fields."""
        self._columns: list[tuple[shard_entries.Column, ...]] = []
        self._numbers, self._starts, self._texts = array("q"), array("q", [0]), bytearray()
        self._has_parts = False
        self.names: list[str] = []
        """The names of all raw and stored files, or of the files of parts, for `check_names`."""

    def add(self, shard: shard_entries.ShardInfo) -> None:
        """Add a shard to the end."""
        raw, zipped = shard.raw, shard.zipped
        sizes = shard.samples, raw.bytes, shard.stored.bytes
        if (part := shard.part) is not None:
            form = self._find_form(shard.columns, (part.compression, *_OF_PARTS))
            self._numbers.extend((*sizes, form, len(self._starts) - 1, *part.place))
            self._add_text(part.words)
            self._has_parts = True
            return
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
        form = self._find_form(shard.columns, rest)
        self._numbers.extend((*sizes, form, len(self._starts) - 1, *_NO_PLACE))
        self._add_text(words)
        self.names.append(raw.name)
        if zipped is not None:
            self.names.append(zipped.name)

    def add_file(self, runs: Iterable[file_records.ShardRun]) -> None:
        """Add the shards of a file to the end. `build` gets their columns."""
        name = ""
        for run in runs:
            key, name = (run.columns, run.compression), run.words[0]
            form = self._forms.setdefault(key, len(self._forms))
            same = itertools.repeat(form), itertools.repeat(len(self._starts) - 1)
            rows = zip(*run.numbers[:_FORM], *same, *run.numbers[_FORM:], strict=False)
            self._numbers.extend(itertools.chain.from_iterable(rows))
            self._add_text(run.words)
        self._has_parts = True
        self.names.append(name)

    def _find_form(self, columns: tuple[shard_entries.Column, ...], rest: tuple[Any, ...]) -> int:
        # most shards share one columns object, and looking up its ID is faster than comparing it
        if (form := self._known.get((id(columns), rest))) is None:
            form = self._forms.setdefault(Form(columns, *rest), len(self._forms))
            self._known[id(columns), rest] = form
            self._columns.append(columns)  # keep it, so that no other object gets its ID
        return form

    def _add_text(self, words: list[Any]) -> None:
        self._texts += _ENCODER.encode(words).encode() + b","
        self._starts.append(len(self._texts))

    def build(
        self, folder: str = "", columns: Sequence[tuple[shard_entries.Column, ...]] = ()
    ) -> ShardTable:
        """Return the table of all shards that were added. `folder` is that of the stored files.

        `columns` are those of runs of shards, by place. Raises `ValueError` if any are missing.
        """
        forms = [
            each if isinstance(each, Form) else _make_form(columns, *each) for each in self._forms
        ]
        count = _ROWS if self._has_parts else _PLACE
        rows = np.frombuffer(self._numbers, np.int64).reshape(-1, _ROWS)
        numbers = np.ascontiguousarray(rows[:, :count].T)
        starts = np.frombuffer(self._starts, np.int64)
        texts = np.frombuffer(self._texts, np.uint8)
        return ShardTable(tuple(forms), numbers, starts, texts, folder=folder)


_OF_PARTS: tuple[Any, ...] = (), (), False, False
"""The fields of a form of virtual shards after the compression."""


def _make_form(
    columns: Sequence[tuple[shard_entries.Column, ...]], place: int, compression: str
) -> Form:
    if place >= len(columns):
        raise ValueError(f"a file has the columns {place}, and the index lists only {len(columns)}")
    return Form(columns[place], compression, *_OF_PARTS)


class _Row:
    """A placeholder for a parsed entry that has been added to the table."""

    __slots__ = ()


_SHARD, _FILE = _Row(), _Row()


def parse_index(data: bytes, dataset: str) -> ShardTable:
    """Parse the shards of an `index.json`, in order.

    `dataset` is the dataset's URL, for messages. Raises `DatasetError` if the index is invalid or
    too large.
    """
    builder, counts = TableBuilder(), Counter[_Row]()

    def take_or_keep(entry: dict[str, Any]) -> Any:
        # add entries while the JSON is parsed, so that their dicts do not fill memory
        if "raw_data" in entry:
            _refuse_old_index(entry, dataset)
            builder.add(shard_entries.parse_shard(entry))
            counts[_SHARD] += 1
            return _SHARD
        if file_records.FIRST in entry:
            counts[_FILE] += 1  # before it is parsed, because it chooses the message of an error
            builder.add_file(file_records.parse_file(entry))
            return _FILE
        return entry

    try:
        shard_entries.check_extent(data)
        index = json.loads(data, object_hook=take_or_keep)
        shard_entries.check_version(index)
        is_files = shard_entries.FILES in index
        field, row = (shard_entries.FILES, _FILE) if is_files else ("shards", _SHARD)
        what = "records of files" if is_files else "entries with raw_data"
        if not isinstance(index[field], list) or not all(each is row for each in index[field]):
            raise ValueError(f"{field!r} is not a list of {what}")
        if len(index[field]) != counts.total():
            raise ValueError(f"one of the {what} is outside {field!r}")
        shard_entries.check_names(builder.names)
        if not is_files:
            return builder.build()
        table = builder.build(
            file_records.parse_folder(index), file_records.parse_column_sets(index)
        )
        if other := {form.compression for form in table.count_forms()} - {index["format"]}:
            raise ValueError(f"its format is {index['format']!r}, and it has records of {other}")
        return table
    except shard_entries.FAULTS as error:
        reason = shard_entries.explain_fault(error)[:500]
        url = f"{dataset}/{shard_entries.INDEX_NAME}"
        if counts[_FILE]:
            raise DatasetError(
                f"{url} is not an index of files: {reason}. Run cloudload index again"
            ) from error
        raise DatasetError(
            f"{url} is not an MDS index: {reason}. Convert the raw "
            "corpus with cloudload convert, or copy the dataset again"
        ) from error


def _refuse_old_index(entry: dict[str, Any], dataset: str) -> None:
    if entry.get("compression") in shard_entries.VIRTUAL:
        raise DatasetError(
            f"{dataset}/{shard_entries.INDEX_NAME} lists parts of files in an old form. Delete it, "
            "and run cloudload index again"
        )


def _make_shard(form: Form, row: Sequence[int], texts: Sequence[Any]) -> shard_entries.ShardInfo:
    """Make a shard from its numbers and its text."""
    samples, raw_bytes, stored_bytes = row[:_FORM]
    if (kind := shard_entries.STORED_FORMS.get(form.compression)) is not None:
        part = kind.at(row[_PLACE:], texts)
        return shard_entries.ShardInfo.of_part(part, form.columns, samples, raw_bytes, stored_bytes)
    words = iter(texts)
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
