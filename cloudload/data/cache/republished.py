"""Detect that data without hashes was republished while a cache or a run reads it.

    index.json read     shard.0 fetched     republished     shard.1 fetched: written after the
    at 12:00:01                             at 12:00:05     cache was started, so it is refused

A hash in the index would detect a different version of a shard. Without one, a cache folder is
bound to the version of `index.json` (`folder.dataset_folder`), and each shard must have been
written before the folder was started. The folder keeps that time in `STARTED`, so it also applies
after a restart.

Some changes are not detected: a shard that is replaced within a second of that time, a shard in a
store that does not report when it was written, and, if `index.json` stays the same, a shard that is
already in the cache.
"""

from __future__ import annotations

import contextlib
from datetime import datetime, timezone
from pathlib import Path

from cloudload.data.cache.cache_folder import STARTED
from cloudload.data.mds import shard_entries
from cloudload.data.mds.dataset import Dataset
from cloudload.data.storage.versions import Version
from cloudload.errors import DatasetError
from cloudload.system import file_locks, temp_files

_IF_WRONG = "If the store's timestamps are wrong, set verify='off' to turn off this check"


def check_fetched(
    folder: Path, dataset: Dataset, info: shard_entries.ShardInfo, version: Version
) -> None:
    """Raise `DatasetError` if a shard without a hash was written after its folder was started."""
    if info.has_hash or version.written_s is None:
        return
    started_s = _read_start(folder, dataset.read_s)
    if version.written_s > started_s:
        raise DatasetError(
            f"{_explain(dataset, info, version.written_s)} the cache folder {folder} was first "
            f"used ({_show(started_s)}), so shards in the cache may contain old text. Run again "
            "once the dataset is complete. If its index.json was not rewritten, delete the cache "
            f"folder first. {_IF_WRONG}"
        )


def check_in_place(dataset: Dataset, info: shard_entries.ShardInfo, path: Path) -> None:
    """Raise `DatasetError` if a local shard without a hash was written after the index was read."""
    if not info.has_hash:
        check_written(dataset, info, path.stat().st_mtime)


def check_written(dataset: Dataset, info: shard_entries.ShardInfo, written_s: float | None) -> None:
    """Raise `DatasetError` if a shard without a hash was written after the index was read.

    `written_s` is the time at which it was written, in seconds since 1970; None if unknown.
    """
    if not info.has_hash and written_s is not None and written_s > dataset.read_s:
        raise DatasetError(
            f"{_explain(dataset, info, written_s)} index.json was read ({_show(dataset.read_s)}), "
            "so shards that were read earlier may have contained old text. Run again once the "
            f"dataset is complete. {_IF_WRONG}"
        )


def _read_start(folder: Path, read_s: float) -> float:
    """The time at which a cache folder was started. Stores `read_s` if no time is stored yet."""
    path = folder / STARTED
    with contextlib.suppress(FileNotFoundError, ValueError):
        return float(path.read_text())
    with file_locks.locked(temp_files.lock_path(path)), temp_files.partial_file(path) as part:
        if not path.exists():
            part.write_text(repr(read_s))
            part.replace(path)
    return float(path.read_text())


def _explain(dataset: Dataset, info: shard_entries.ShardInfo, written_s: float) -> str:
    shard, when = dataset.locate(info), _show(written_s)
    return f"{shard} has no hash in the index, and was written ({when}) after"


def _show(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
