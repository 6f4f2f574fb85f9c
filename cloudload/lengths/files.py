"""The lengths of a corpus: read from their place, verified, and shared by the processes of a node.

    index, groups at the place ─► verified ─► one file in the cache folder ─► mapped
                                              uint16 [samples], list of long samples

The file in the cache is written once per node, under a lock, and holds 2 bytes a sample.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np

from cloudload.arrays import Ids, Ints
from cloudload.errors import CacheError, DatasetError, StoreError
from cloudload.lengths.group_file import LISTED, GroupLengths, decode_group, widen
from cloudload.lengths.index import PLACE, Group, LengthsIndex, LengthsKey, cut_groups, index_name
from cloudload.mds.dataset import Dataset
from cloudload.storage.base import Retry
from cloudload.storage.objects import read_object
from cloudload.storage.redaction import redact
from cloudload.storage.urls import join_url
from cloudload.system.file_locks import locked
from cloudload.system.temp_files import lock_path, make_folder, partial_file
from cloudload.system.verified_files import is_unmodified, mark_verified

LENGTHS_FOLDER = "lengths"
_READ_AT_ONCE = 8
_MOST_INDEX_BYTES = 1 << 28


def place_of(dataset: Dataset, place: str | None) -> str:
    """The location of a dataset's lengths: `place`, or by default a folder of the dataset."""
    return place or join_url(dataset.url, PLACE)


def find_index(place: str, key: LengthsKey, data: str, retry: Retry) -> LengthsIndex | None:
    """Read the index of the data with the fingerprint `data`; None if there is none.

    Raises `StoreError` if the store cannot be read, and `DatasetError` if the index is damaged or
    belongs to other lengths.
    """
    url = join_url(place, f"{key.digest}/{index_name(data)}")
    try:
        content = read_object(url, retry, _MOST_INDEX_BYTES)
    except StoreError as error:
        if error.is_missing:
            return None
        raise
    try:
        index = LengthsIndex.decode(content)
        if index.key != asdict(key) or index.data != data:
            raise ValueError("it belongs to other data or another tokenizer")
    except ValueError as error:
        raise _damaged(url, error) from error
    return index


def _damaged(url: str, error: Exception) -> DatasetError:
    return DatasetError(
        f"cannot use the token lengths in {redact(url)}: {error}. Remove the file and run "
        "cloudload count again, or set lengths='off'"
    )


class DatasetLengths:
    """The length of each sample of a dataset."""

    def __init__(self, short: Ids, places: Ints, values: Ints) -> None:
        self._short, self._places, self._values = short, places, values

    def __len__(self) -> int:
        return len(self._short)

    def of(self, samples: Ints) -> Ints:
        """The lengths of samples of the dataset, with `FILTERED`: int64 [samples]."""
        lengths = self._short[samples].astype(np.int64)
        is_listed = lengths == LISTED
        if is_listed.any():
            lengths[is_listed] = self._values[np.searchsorted(self._places, samples[is_listed])]
        return lengths


def open_dataset_lengths(
    dataset: Dataset, index: LengthsIndex, key: LengthsKey, place: str, root: Path, retry: Retry
) -> DatasetLengths:
    """Map the lengths of a dataset from the cache folder `root`, and read them first if needed.

    Raises `DatasetError` for a damaged or missing group, `StoreError` if a group cannot be read,
    and `CacheError` if the cache folder cannot be used.
    """
    path = root / LENGTHS_FOLDER / f"{key.digest}-{index.data[:16]}.lengths"
    try:
        make_folder(path.parent)
        if not _is_whole(path):
            with locked(lock_path(path)):
                if not _is_whole(path):
                    _join_groups(path, dataset, index, key, place, retry)
        return _map_file(path)
    except OSError as error:
        raise CacheError(
            f"cannot keep token lengths in {path}: {error}. Free disk space, or choose a "
            "different `local`"
        ) from error


def _is_whole(path: Path) -> bool:
    return path.exists() and is_unmodified(path.stat())


def _join_groups(
    path: Path, dataset: Dataset, index: LengthsIndex, key: LengthsKey, place: str, retry: Retry
) -> None:
    samples, long = index.total("samples"), 0
    places: list[Ints] = []
    values: list[Ints] = []
    with partial_file(path) as part:
        with part.open("wb") as file:
            file.write(np.array([samples, 0], "<i8").tobytes())
            start = 0
            for group in _read_groups(dataset, index, key, place, retry):
                file.write(group.short.tobytes())
                places.append(group.places.astype(np.int64) + start)
                values.append(widen(group.values))
                start, long = start + len(group.short), long + len(group.places)
            file.write(b"\0" * (-2 * samples % 8))
            for part_of in (*places, *values):
                file.write(part_of.astype("<i8").tobytes())
            file.seek(0)
            file.write(np.array([samples, long], "<i8").tobytes())
            file.flush()
            os.fsync(file.fileno())
        mark_verified(part)
        part.replace(path)


def _map_file(path: Path) -> DatasetLengths:
    samples, long = np.fromfile(path, "<i8", 2).tolist()
    short = np.memmap(path, "<u2", "r", 16, (samples,)).view(np.ndarray)
    start = 16 + -(-2 * samples // 8) * 8
    listed = np.fromfile(path, "<i8", 2 * long, offset=start)
    return DatasetLengths(short, listed[:long], listed[long:])


def _read_groups(
    dataset: Dataset, index: LengthsIndex, key: LengthsKey, place: str, retry: Retry
) -> Iterator[GroupLengths]:
    """Read and verify the groups, several at a time, in order."""
    expected = list(cut_groups(dataset.shards, key))
    _compare_groups(expected_names := [each.name for each in expected], index, place)
    numbers = dict(zip(expected_names, (each.samples for each in expected), strict=True))
    folder = join_url(place, key.digest)

    def read(group: Group) -> GroupLengths:
        return _read_group(join_url(folder, group.name), group, numbers[group.name], retry)

    with ThreadPoolExecutor(_READ_AT_ONCE) as threads:
        for first in range(0, len(index.groups), _READ_AT_ONCE):
            yield from threads.map(read, index.groups[first : first + _READ_AT_ONCE])


def _compare_groups(expected: Sequence[str], index: LengthsIndex, place: str) -> None:
    listed = [group.name for group in index.groups]
    if listed != list(expected):
        missing = [name for name in expected if name not in set(listed)]
        what = f"it lacks {missing[0]}" if missing else "its groups are in another order"
        raise _damaged(place, ValueError(what))


def _read_group(url: str, group: Group, samples: int, retry: Retry) -> GroupLengths:
    data = read_object(url, retry, group.bytes)
    try:
        if len(data) != group.bytes or hashlib.sha256(data).hexdigest() != group.hash:
            raise ValueError("its size or hash is not the one in the index")
        found = decode_group(data)
        if len(found.short) != samples:
            raise ValueError(f"it has {len(found.short):,} samples, but the shards {samples:,}")
    except ValueError as error:
        raise _damaged(url, error) from error
    return found
