"""Read and verify the lengths of a corpus, and share them among the processes of a node.

    index, groups at its location ─► verified ─► one file in the cache folder ─► mapped
                                              uint16 [samples], list of long samples

The file in the cache is written once per node, under a lock, and has 2 bytes per sample. The file
of a group has the lengths of the samples of consecutive shards:

    bytes    0  magic "CLLENGTH", version 1 as uint32, size of the header as uint32
            16  header: JSON with sorted keys, padded with spaces to a multiple of 8 bytes
             …  uint16 [samples]: the length, or 65,535 for a sample in the list below
             …  uint32 [long], uint32 [long]: the listed samples, and their lengths

All integers are little-endian. The stored length of a filtered sample is 2³² - 1, that of a bad
document that is left out is 2³² - 2, and that of an empty document is 0. The bytes depend only on
the lengths and the header, so any machine writes the same file.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cloudload.data import Dataset, Location, cache_folder, own_objects, selections
from cloudload.errors import CacheError, DatasetError
from cloudload.rows import MiddleRule, tables
from cloudload.run.lengths.lengths_index import (
    Group,
    LengthsIndex,
    LengthsKey,
    cut_groups,
    index_name,
)
from cloudload.system import Ids, Ints, map_in_order, verified_files

_READ_AT_ONCE = 8
_MOST_INDEX_BYTES = 1 << 28
_SAMPLES_AT_ONCE = 1 << 20
LISTED = (1 << 16) - 1
"""The value in `short` of a sample whose length is in the list of long samples."""
_STORED_SIGN = 1 << 32
_MOST_TOKENS = (1 << 32) - 3
_MAGIC, _VERSION = b"CLLENGTH", 1
_START = struct.Struct("<8sII")


def lengths_location(dataset: Dataset, url: str | None) -> Location:
    """The location of a dataset's lengths: `url`, or the folder `lengths` of the dataset."""
    return dataset.location.at(url) if url else dataset.location.join(own_objects.LENGTHS_FOLDER)


def find_index(location: Location, key: LengthsKey, data: str) -> LengthsIndex | None:
    """Read the index of the lengths that belong to `key` and to the data with fingerprint `data`.

    Returns None if there is no such index. Raises `StoreError` if the store cannot be read, and
    `DatasetError` if the index is damaged or belongs to other lengths.
    """
    location = location.join(f"{key.digest}/{index_name(data)}")
    if (content := location.read_if_exists(_MOST_INDEX_BYTES)) is None:
        return None
    try:
        index = LengthsIndex.decode(content)
        if index.key != asdict(key) or index.data != data:
            raise ValueError("the file belongs to different data or a different tokenizer")
    except ValueError as error:
        raise _damaged(location, error) from error
    return index


def _damaged(location: Location, error: Exception) -> DatasetError:
    return DatasetError(
        f"cannot use the token lengths in {location}: {error}. Remove the file and run "
        "cloudload count again, or set lengths='off'"
    )


@dataclass(frozen=True)
class CountedDataset:
    """A dataset, and the location of its samples' lengths."""

    dataset: Dataset
    key: LengthsKey
    location: Location
    index: LengthsIndex


class DatasetLengths:
    """The length of each sample of a dataset."""

    def __init__(self, short: Ids, indices: Ints, values: Ints, path: Path | None = None) -> None:
        self._short, self._indices, self._values, self._path = short, indices, values, path

    def __reduce__(self) -> tuple[Any, ...]:
        if self._path is not None:
            return _map_file, (self._path,)  # a worker maps the file instead of receiving its data
        return DatasetLengths, (self._short, self._indices, self._values)

    def of(self, samples: Ints) -> Ints:
        """The length of each sample of the dataset, or `FILTERED` or `FAILED`: int64 [samples]."""
        lengths = self._short[samples].astype(np.int64)
        is_listed = lengths == LISTED
        if is_listed.any():
            lengths[is_listed] = self._values[np.searchsorted(self._indices, samples[is_listed])]
        return lengths

    def parts(self) -> Iterator[Ints]:
        """Yield all lengths, as `of` returns them, in parts: int64 [samples] each."""
        for first in range(0, len(self._short), _SAMPLES_AT_ONCE):
            yield self.of(np.arange(first, min(first + _SAMPLES_AT_ONCE, len(self._short))))


@dataclass(frozen=True)
class CorpusLengths:
    """The length of each sample of a corpus. Can be pickled."""

    datasets: tuple[DatasetLengths, ...]
    stream_starts: Ints
    """First sample of each dataset, and the total number of samples: int64 [datasets + 1]."""
    digest: str
    """16 hex digits that identify the lengths."""
    locations: tuple[str, ...]
    """The locations of the lengths, without secrets."""
    selection: selections.CorpusSelection | None = None
    """The samples that are read; None if all of them are."""
    middles: tuple[MiddleRule | None, ...] = ()
    """How the middles of each dataset's documents are moved, which makes them longer. The stored
    lengths are those before this step."""

    def streams_of(self, samples: Ints) -> Ints:
        """The dataset index of each sample: int64, with the shape of `samples`."""
        return np.searchsorted(self.stream_starts, samples, side="right") - 1

    def of(self, samples: Ints) -> Ints:
        """The length of each sample of the corpus, or `FILTERED`, `FAILED` or `DESELECTED`.

        Returns int64 with the shape of `samples`.
        """
        lengths = self.of_all(samples)
        if self.selection is not None:
            lengths[~self.selection.of(samples)] = tables.Size.DESELECTED
        return lengths

    def count_tokens(self) -> list[int]:
        """The number of tokens in the selected samples of each dataset."""
        selected = self.selection.datasets if self.selection else (None,) * len(self.datasets)
        pairs = zip(self.datasets, selected, strict=True)
        return [sum_selected(dataset.parts(), selection) for dataset, selection in pairs]

    def of_all(self, samples: Ints) -> Ints:
        """Like `of`, as if all samples were selected."""
        if len(self.datasets) == 1:
            return self._of_dataset(0, samples)
        streams = self.streams_of(samples)
        lengths = np.empty_like(samples)
        for stream in np.unique(streams).tolist():
            own = streams == stream
            lengths[own] = self._of_dataset(stream, samples[own] - self.stream_starts[stream])
        return lengths

    def _of_dataset(self, stream: int, samples: Ints) -> Ints:
        lengths = self.datasets[stream].of(samples)
        rule = self.middles[stream] if self.middles else None
        return lengths if rule is None else rule.lengthen(samples, lengths)


def open_dataset_lengths(counted: CountedDataset, root: Path) -> DatasetLengths:
    """Map the lengths of a dataset from a file in the cache folder `root`.

    If the file is missing, first reads the lengths from the store and writes the file.

    Raises `DatasetError` for a damaged or missing group, `StoreError` if a group cannot be read,
    and `CacheError` if the cache folder cannot be used.
    """
    # the hash of the index changes with the lengths, even if the data has the same name
    version = hashlib.sha256(counted.index.encode()).hexdigest()[:16]
    name = f"{counted.key.digest}-{counted.index.data[:16]}-{version}.lengths"
    path = root / cache_folder.LENGTHS_FOLDER / name
    try:
        verified_files.build_once(path, partial(_join_groups, path, counted))
        return _map_file(path)
    except OSError as error:
        raise CacheError(
            f"cannot write token lengths to {path}: {error}. Free disk space, or set `local` to a "
            "different folder"
        ) from error


def read_lengths(counted: CountedDataset) -> Iterator[Ints]:
    """Read and verify all lengths of a dataset, without a cache: int64 [samples] of each group.

    Raises `DatasetError` for a damaged or missing group, and `StoreError` if a group cannot be
    read.
    """
    _compare_groups(counted)
    for group in _read_groups(counted):
        yield group.widen()


def sum_selected(parts: Iterable[Ints], selection: selections.Selection | None) -> int:
    """The number of tokens in the selected samples of a dataset, whose lengths come in parts."""
    tokens = first = 0
    for lengths in parts:
        is_read = lengths > 0
        if selection is not None:
            is_read &= selection.read(first, first + len(lengths))
        tokens += int(lengths[is_read].sum())
        first += len(lengths)
    return tokens


def _join_groups(path: Path, counted: CountedDataset) -> None:
    _compare_groups(counted)
    samples, long = counted.index.total("samples"), 0
    indices: list[Ints] = []
    values: list[Ints] = []
    with verified_files.open_verified(path) as file:
        file.write(np.array([samples, 0], "<i8").tobytes())
        start = 0
        for group in _read_groups(counted):
            file.write(group.short.tobytes())
            indices.append(group.indices.astype(np.int64) + start)
            values.append(widen(group.values))
            start, long = start + len(group.short), long + len(group.indices)
        file.write(b"\0" * (-2 * samples % 8))
        for part_of in (*indices, *values):
            file.write(part_of.astype("<i8").tobytes())
        file.seek(0)
        file.write(np.array([samples, long], "<i8").tobytes())


def _map_file(path: Path) -> DatasetLengths:
    samples, long = np.fromfile(path, "<i8", 2).tolist()
    short = np.memmap(path, "<u2", "r", 16, (samples,)).view(np.ndarray)
    start = 16 + -(-2 * samples // 8) * 8
    listed = np.fromfile(path, "<i8", 2 * long, offset=start)
    return DatasetLengths(short, listed[:long], listed[long:], path)


def _read_groups(counted: CountedDataset) -> Iterator[GroupLengths]:
    """Read and verify the groups, up to 8 at a time, and yield them in order."""
    expected = list(cut_groups(counted.dataset.table, counted.key))
    groups = counted.index.groups
    folder = counted.location.join(counted.key.digest)

    def read(index: int) -> GroupLengths:
        group = groups[index]
        return _read_group(folder.join(group.name), group, expected[index].samples)

    return map_in_order(read, range(len(groups)), _READ_AT_ONCE, "cloudload-lengths")


def _compare_groups(counted: CountedDataset) -> None:
    """Raise `DatasetError` unless the index lists the groups of the dataset."""
    expected = {group.name: group for group in cut_groups(counted.dataset.table, counted.key)}
    listed = [group.name for group in counted.index.groups]
    if listed != list(expected):
        missing = [name for name in expected if name not in set(listed)]
        what = (
            f"the file does not list {missing[0]}"
            if missing
            else "the groups in the file do not match the data"
        )
        raise _damaged(counted.location, ValueError(what))
    for group in counted.index.groups:
        samples = expected[group.name].samples
        if group.samples != samples:
            what = f"{group.name} has {group.samples:,} samples, but its shards have {samples:,}"
            raise _damaged(counted.location, ValueError(what))


def _read_group(location: Location, group: Group, samples: int) -> GroupLengths:
    data = location.read(group.bytes)
    try:
        if len(data) != group.bytes or hashlib.sha256(data).hexdigest() != group.hash:
            raise ValueError("the size or hash of the file differs from the one in the index")
        found = decode_group(data)
        if len(found.short) != samples:
            raise ValueError(
                f"the file has {len(found.short):,} samples, but its shards have {samples:,}"
            )
    except ValueError as error:
        raise _damaged(location, error) from error
    return found


# ---------------------------------------------------------------- the file of a group


@dataclass(frozen=True)
class GroupLengths:
    """The lengths of a group's samples, as they are stored."""

    header: Mapping[str, Any]
    """Digests of the key and the shards, and totals; see `lengths_index.Group`."""
    short: Ids
    """uint16 [samples]: each length, or `LISTED`."""
    indices: Ids
    """uint32 [long]: the indices of the samples whose `short` is `LISTED`, ascending."""
    values: Ids
    """uint32 [long]: the lengths of these samples."""

    def widen(self) -> Ints:
        """The length of each sample, or `Size.FILTERED` or `Size.FAILED`: int64 [samples]."""
        lengths = self.short.astype(np.int64)
        lengths[self.indices] = widen(self.values)
        return lengths


def narrow(lengths: Ints) -> tuple[Ids, Ids, Ids]:
    """Split lengths (int64 [samples]) into `short`, `indices` and `values` of `GroupLengths`.

    Raises `ValueError` for a length of 2³² - 2 tokens or more.
    """
    if lengths.max(initial=0) > _MOST_TOKENS:
        raise ValueError(
            f"a sample has {int(lengths.max()):,} tokens. The maximum is {_MOST_TOKENS:,}"
        )
    is_long = (lengths < 0) | (lengths >= LISTED)
    indices = np.flatnonzero(is_long).astype("<u4")
    values = (lengths[is_long] % _STORED_SIGN).astype("<u4")
    return np.where(is_long, LISTED, lengths).astype("<u2"), indices, values


def widen(values: Ids) -> Ints:
    """Convert `values` of `GroupLengths` to lengths or `Size`: int64 [long].

    The stored values of `Size.FILTERED` and `Size.FAILED` are 2³² more.
    """
    wide = values.astype(np.int64)
    return np.where(wide > _MOST_TOKENS, wide - _STORED_SIGN, wide)


def encode_group(header: Mapping[str, Any], lengths: Ints) -> bytes:
    """Encode the file of a group. `lengths` is int64 [samples]."""
    short, indices, values = narrow(lengths)
    text = json.dumps({**header, "long": len(indices)}, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    start = _START.pack(_MAGIC, _VERSION, len(text))
    return start + text + short.tobytes() + indices.tobytes() + values.tobytes()


def decode_group(data: bytes) -> GroupLengths:
    """Decode the file of a group. Raises a `ValueError` that says what is wrong if the file is
    damaged."""
    if len(data) < _START.size:
        raise ValueError(f"the file has {len(data):,} bytes, which is too short")
    magic, version, size = _START.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError("the file does not contain token lengths")
    if version != _VERSION:
        raise ValueError(
            f"the file has format version {version}, but this version of cloudload reads only "
            f"{_VERSION}"
        )
    header = _read_header(data[_START.size : _START.size + size])
    samples, long = header["samples"], header["long"]
    end = _START.size + size + 2 * samples + 8 * long
    if len(data) != end:
        raise ValueError(f"the file has {len(data):,} bytes, but its header says {end:,}")
    start = _START.size + size
    short = np.frombuffer(data, "<u2", samples, start)
    indices = np.frombuffer(data, "<u4", long, start + 2 * samples)
    values = np.frombuffer(data, "<u4", long, start + 2 * samples + 4 * long)
    if not np.array_equal(np.flatnonzero(short == LISTED), indices):
        raise ValueError("the file's list of long samples does not match its lengths")
    return GroupLengths(header, short, indices, values)


def _read_header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the file's header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise ValueError("the file's header is not a JSON object")
    for name in ("samples", "long"):
        value = header.get(name)
        if type(value) is not int or not 0 <= value < 1 << 40:
            raise ValueError(f"the file's header has an invalid value for {name!r}, {value!r}")
    return header
