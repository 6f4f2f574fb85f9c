"""Open the index of a dataset. A node's processes share a large index as a file in the cache.

    request index.json ─► version and size, from the headers of the response
      small, or no exact version ─► read and parse it
      large ─► map root/indexes/<dataset>-<version>.shards
                 │ it is missing or invalid
               lock, wait for a limited time ─► map it, or read, parse, and write it

Each process requests the version of the index from the store, with its own credentials. So a file
in the cache never determines which index a process gets, or whether the process may read the index.
A process that cannot use the cache reads and parses the index itself, so no process gets another
process's error. If the cache is on a network file system, every process reads and parses the index
itself, because another machine could remove a mapped file.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cloudload._version import __version__
from cloudload.data.mds import shard_entries, virtual_index, wrong_input
from cloudload.data.mds.fingerprints import DATA, INDEX, SUFFIX, fingerprint
from cloudload.data.mds.shard_table import FORMAT, ShardTable, map_table, parse_index
from cloudload.data.mds.virtual_index import ALL_COLUMNS, ColumnChoice
from cloudload.data.storage import urls
from cloudload.data.storage.locations import Location
from cloudload.data.storage.versions import Version
from cloudload.errors import StoreError
from cloudload.system import array_files, file_locks, machine, temp_files, verified_files

logger = logging.getLogger("cloudload.cache")

INDEXES_FOLDER = "indexes"
"""The folder of indexes in a cache folder."""

_SUFFIX = ".shards"
_OWN_NAMES = re.compile(r"[0-9a-f]{16}")

# a smaller index is not worth a file, because parsing it takes less than 0.5 s
SHARED_FROM_BYTES = 4 << 20

# a process that has waited longer, for example for a stopped process, reads the index itself. For
# 500 MB, which take about 30 s to parse, the limit is about 300 s
MOST_WAIT_S, _LEAST_BYTES_PER_S = 60.0, 2 << 20
_FOOTER_BYTES = 1 << 16

ReadTable = Callable[[], tuple[ShardTable, Version]]
"""Reads an index and its version, without a file in the cache."""

# beyond 4 tables of a dataset, 32 tables in total, or 32 files of fingerprints, the least
# recently used files are removed
_MOST_OF_DATASET, _MOST_KEPT = 4, 32
# other files are removed once they have been unused for 30 days. No file is removed within an
# hour of its last use, because a worker may be about to map it
_MOST_UNUSED_S, _LEAST_UNUSED_S = 30 * 86_400.0, 3_600.0


class OpenedIndex(NamedTuple):
    """An opened index: its shards, its hash and version, and when it was read."""

    folder: Location
    """The folder of the stored files."""
    shards: ShardTable
    hash: str
    """SHA-256 of `index.json`, in hex digits."""
    version: Version
    """The version of the index, as the store reported it to this process."""
    read_s: float
    """When the index was read, in seconds since 1970, by the store's clock if the store reports the
    time. Never earlier than the time at which the index was written."""


def open_index(
    location: Location, root: Path | None = None, choice: ColumnChoice = ALL_COLUMNS
) -> OpenedIndex:
    """Open the index of a stream's dataset. With a cache folder `root`, share a large index there.

    Without an `index.json`, Parquet files get an index of the columns that `choice` names. Raises
    `DatasetError` if the index is invalid, and the errors of `read_index`.
    """
    if virtual_index.is_parquet(location.url):
        found = virtual_index.find_parquet_files(location)
        if not found.has_index:  # else it is a folder with a name like a file's
            return _open_virtual(found, root, choice)
    before_s = time.time()
    is_shared = _is_large if root is not None and str(location) == location.url else None
    try:
        data, version = _read_index(location, is_shared)
    except StoreError as error:
        if not error.is_missing:
            raise
        survey = wrong_input.survey(location)
        if not wrong_input.has_parquet(location, survey):
            wrong_input.raise_clearer(error, location, survey)
            raise
        return _open_virtual(virtual_index.find_parquet_files(location), root, choice)
    if root is not None and is_shared is not None and is_shared(version):
        shards, version = _open_shared(
            location, root / INDEXES_FOLDER, version, partial(_read_alone, location)
        )
    else:
        shards = _parse(data, location)
    read_s = max(version.read_s or before_s, version.written_s or 0.0)
    return OpenedIndex(location, shards, shards.fingerprints[INDEX], version, read_s)


def _open_virtual(
    found: virtual_index.ListedFiles, root: Path | None, choice: ColumnChoice
) -> OpenedIndex:
    """Make the index of Parquet files, or map the one that another process of this node made.

    Every process lists the files. The list has their versions, so it determines the index.
    """
    before_s, location = time.time(), found.location
    # the size of the footers is unknown, and limits only the wait for another process
    size = len(found.files) * _FOOTER_BYTES
    version = Version(exact=found.identify(choice), size=size)

    def build() -> tuple[ShardTable, Version]:
        return _parse(virtual_index.build_index(found, choice), location), version

    if root is not None and version.exact and str(location) == location.url:
        shards, _ = _open_shared(location, root / INDEXES_FOLDER, version, build)
    else:
        shards, _ = build()
    return OpenedIndex(found.folder, shards, shards.fingerprints[INDEX], version, before_s)


def read_index(location: Location) -> tuple[bytes, Version]:
    """Read the index of a stream's dataset, and return its bytes and its version.

    Raises `DatasetError` if the location has something else, such as raw files, and `StoreError` if
    the index cannot be read for another reason.
    """
    try:
        return _read_index(location)
    except StoreError as error:
        if error.is_missing:
            wrong_input.raise_clearer(error, location)
        raise


def _read_index(
    location: Location, unless: Callable[[Version], bool] | None = None
) -> tuple[bytes, Version]:
    """`unless` is as in `Location.read_version`."""
    if urls.scheme_of(location.url) in ("hf", "http", "https"):
        wrong_input.refuse_hub_name(location)
    index = location.join(shard_entries.INDEX_NAME)
    return index.read_version(shard_entries.MOST_INDEX_BYTES, unless)


def _is_large(version: Version) -> bool:
    """Whether an index is large enough to share, and its version identifies its content."""
    return bool(version.exact) and (version.size or 0) >= SHARED_FROM_BYTES


class _SharedPath(NamedTuple):
    """The file for the table of one version of an index."""

    path: Path
    key: str
    """A digest of everything on which the table depends."""


def _shared_path(folder: Path, location: Location, version: Version) -> _SharedPath:
    """Return the file for a table. Each release of cloudload and each user has its own files."""
    origin = f"{location.url}\n{location.describe_endpoint()}\n{os.geteuid()}"
    key = f"{origin}\n{version.exact}\n{version.size}\n{__version__}\n{FORMAT}"
    name = f"{_digest(origin)[:16]}-{_digest(key)[:32]}{_SUFFIX}"
    return _SharedPath(folder / name, _digest(key))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _open_shared(
    location: Location, folder: Path, version: Version, read: ReadTable
) -> tuple[ShardTable, Version]:
    """Map the table of an index's version. If it is missing, `read` it, and write its table.

    Also returns the version of the table, which is newer than `version` if the index was published
    again in the meantime.
    """
    if (kind := machine.network_type(folder)) is not None:
        _warn(location, f"{folder} is on a network file system: {kind}")
        return read()
    shared = _shared_path(folder, location, version)
    if (found := map_table(*shared)) is not None:
        verified_files.mark_used(shared.path)
        return found, version
    wait_s = MOST_WAIT_S + (version.size or 0) / _LEAST_BYTES_PER_S
    what = f"read and parse the index of {location}"
    with contextlib.ExitStack() as stack:
        can_write = False
        try:
            array_files.make_own_folder(folder)
            temp_files.make_folder(folder)
            lock = file_locks.locked(
                temp_files.lock_path(shared.path), what=what, most_wait_s=wait_s
            )
            can_write = stack.enter_context(lock)
            if (found := map_table(*shared)) is not None:
                return found, version
        except OSError as error:
            _warn(location, error)
        parsed, version = read()
        if not can_write or not version.exact:
            return parsed, version
        return _share(parsed, location, _shared_path(folder, location, version)), version


def _read_alone(location: Location) -> tuple[ShardTable, Version]:
    data, version = read_index(location)
    return _parse(data, location), version


def _parse(data: bytes, location: Location) -> ShardTable:
    """Parse an index, and store its hash as a fingerprint of the table."""
    table = parse_index(data, str(location))
    table.fingerprints[INDEX] = hashlib.sha256(data).hexdigest()
    return table


def _share(parsed: ShardTable, location: Location, shared: _SharedPath) -> ShardTable:
    """Write a table to its file, and map it. If that fails, warn, and return `parsed`."""
    folder = shared.path.parent
    try:
        file_locks.remove_orphans(folder, _OWN_NAMES)
        fingerprint([parsed], DATA)  # compute it first, so that it is written, too
        if (mapped := map_table(*shared)) is None:  # unless a newer version is already mapped
            parsed.write(*shared)
            mapped = map_table(*shared)
        _remove_old(folder)
        if mapped is None:
            raise OSError(f"{shared.path} cannot be mapped")
    except OSError as error:
        _warn(location, error)
        return parsed
    return mapped


def forget_index(table: ShardTable) -> None:
    """Remove the file from which a table is mapped, so that the next run reads the index again.

    If the index was damaged when it was read, sound shards do not match it.
    """
    if table.origin is not None and table.origin.is_there():
        with contextlib.suppress(OSError):
            table.origin.path.unlink()


def sweep_indexes(root: Path) -> None:
    """Remove index tables not used recently, and temporary files that killed processes left."""
    file_locks.remove_orphans(root / INDEXES_FOLDER, _OWN_NAMES)
    _remove_old(root / INDEXES_FOLDER)


def _remove_old(folder: Path) -> None:
    """Remove files that were not used recently. A process can still read a file that it maps."""
    counts = Counter[str]()
    for used_s, path in _list_by_use(folder):
        dataset, kind = path.name.partition("-")[0], path.suffix
        counts.update([dataset, kind])
        is_kept = counts[dataset] <= _MOST_OF_DATASET and counts[kind] <= _MOST_KEPT
        if time.time() - used_s > (_MOST_UNUSED_S if is_kept else _LEAST_UNUSED_S):
            with contextlib.suppress(OSError):  # the file may be another user's
                path.unlink()


def _list_by_use(folder: Path) -> list[tuple[float, Path]]:
    """List (time of last use, path) of the files of tables and fingerprints, latest first."""
    found = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.suffix in (_SUFFIX, SUFFIX):
                with contextlib.suppress(OSError):  # another process removed it
                    found.append((path.lstat().st_atime, path))
    return sorted(found, reverse=True)


def _warn(location: Location, error: object) -> None:
    logger.warning(
        "cannot share the index of %s with the other processes of this node (%s), so each process "
        "reads and parses it. Set `local` to a folder on a local disk that only you can write to",
        location,
        error,
    )
