"""Open the selection of a stream, from its options `select` and `drop`.

    select, drop ─► what each one is ─► one file of bits in the cache folder ─► mapped

The first process of a node writes the file, under a lock. Its name depends on the data and on what
was read, so all processes agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cloudload.data.cache import cache_folder
from cloudload.data.mds.dataset import Dataset
from cloudload.data.mds.fingerprints import DATA, fingerprint
from cloudload.data.selections import listed
from cloudload.data.selections.bits import Selection, count_packed, pack_parts
from cloudload.data.selections.files import (
    GROUP_SAMPLES,
    read_selected,
    read_selection,
    selection_location,
)
from cloudload.errors import CacheError, DatasetError
from cloudload.system import Flags, verified_files


@dataclass(frozen=True)
class _Selector:
    """Something that selects samples: a digest, and how to read the flags of a dataset."""

    digest: str
    read: Callable[[], Iterable[Flags]]


def open_selection(
    dataset: Dataset, select: str | None, drop: str | None, root: Path | None
) -> Selection | None:
    """Open the selection of a dataset. Returns None if all samples are selected.

    `select` is the name or the folder of a compiled selection, or a file of samples to read. `drop`
    is a file of samples to leave out. With a cache folder `root`, the processes of a node share the
    bits. Raises `DatasetError` if a selection does not exist, is damaged or of other data, or
    selects nothing, `StoreError` if it cannot be read, and `CacheError` if the cache folder cannot
    be used.
    """
    sources = [_find_selected(dataset, select)] if select is not None else []
    if drop is not None:
        sources.append(_find_dropped(dataset, drop))
    if not sources:
        return None
    num_samples = int(dataset.table.samples.sum())
    found = _open(dataset, sources, num_samples, root)
    if not found.num_selected:
        options = {"select": select, "drop": drop}
        given = " and ".join(f"{name}={value!r}" for name, value in options.items() if value)
        raise DatasetError(
            f"{given} selects none of the {num_samples:,} documents of {dataset.location}. Use "
            "another selection, or remove the stream"
        )
    return None if found.num_selected == num_samples else found


def _find_selected(dataset: Dataset, select: str) -> _Selector:
    if listed.is_listed(select):
        samples = _read_listed(dataset, select)
        return _Selector(f"keep {samples.digest}", lambda: _keep(dataset, samples))
    folder = selection_location(dataset, select)
    found = read_selection(folder)
    if found is None:
        raise DatasetError(
            f"found no selection in {folder}. To compile it, run: cloudload select "
            f"{dataset.location} {select} --where 'COLUMN >= VALUE', or with --keep-ids FILE. A "
            "loader itself reads only Parquet, JSON Lines and CSV files with the columns shard and "
            "index"
        )
    index, data = found
    digest = hashlib.sha256(data).hexdigest()
    return _Selector(f"compiled {digest}", lambda: read_selected(folder, index, dataset))


def _find_dropped(dataset: Dataset, drop: str) -> _Selector:
    if not listed.is_listed(drop):
        raise DatasetError(
            f"drop={drop!r} of {dataset.location} is not a Parquet, JSON Lines or CSV file with "
            "the columns shard and index. To leave out documents by ID, run: cloudload select "
            f"{dataset.location} NAME --drop-ids FILE, and set select='NAME'"
        )
    samples = _read_listed(dataset, drop)
    return _Selector(
        f"drop {samples.digest}", lambda: (~flags for flags in _keep(dataset, samples))
    )


def _read_listed(dataset: Dataset, url: str) -> listed.ListedSamples:
    try:
        return listed.read_listed(dataset.location.at(url))
    except listed.MissingColumnError as error:
        raise DatasetError(
            f"{error}. To select by ID, run: cloudload select {dataset.location} NAME --keep-ids "
            "FILE (or --drop-ids FILE), and set select='NAME'"
        ) from error


def _keep(dataset: Dataset, samples: listed.ListedSamples) -> Iterator[Flags]:
    found, total = samples.find(dataset), int(dataset.table.samples.sum())
    for start in range(0, total, GROUP_SAMPLES):
        yield listed.flags_of(found, start, min(start + GROUP_SAMPLES, total))


# ---------------------------------------------------------------- bits


def _open(
    dataset: Dataset, sources: list[_Selector], num_samples: int, root: Path | None
) -> Selection:
    if root is None:
        return Selection.join(_join_all(sources), num_samples)
    parts = [fingerprint([dataset.table], DATA), *(source.digest for source in sources)]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    path = root / cache_folder.LENGTHS_FOLDER / f"{name}.selection"
    try:
        verified_files.build_once(path, lambda: _write(path, sources, num_samples))
        return Selection.map_file(path, num_samples)
    except OSError as error:
        raise CacheError(
            f"cannot write a selection to {path}: {error}. Free disk space, or set `local` to a "
            "different folder"
        ) from error


def _write(path: Path, sources: list[_Selector], num_samples: int) -> None:
    with verified_files.open_verified(path) as file:
        file.writelines(pack_parts(_join_all(sources)))
        assert file.tell() == count_packed(num_samples)


def _join_all(sources: list[_Selector]) -> Iterable[Flags]:
    """The flags that all sources have."""
    [first, *others] = [source.read() for source in sources]
    for other in others:
        first = _join(first, other)
    return first


def _join(one: Iterable[Flags], other: Iterable[Flags]) -> Iterator[Flags]:
    """Yield the flags that both have, whose parts may have different sizes."""
    left = np.zeros(0, np.bool_)
    parts = iter(other)
    for flags in one:
        while len(left) < len(flags):
            left = np.concatenate([left, next(parts)])
        yield flags & left[: len(flags)]
        left = left[len(flags) :]
