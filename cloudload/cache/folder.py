"""The folders of a node's cache: what is in them, and what killed processes left there.

    root/<dataset>-<hash>/shard.00000.mds                     a whole, raw, verified shard
    root/<dataset>-<hash>/shard.00000.mds.lock                held while it is fetched
    root/<dataset>-<hash>/shard.00000.mds.<random>.part       its reserved bytes until then
    root/orders/<hash>/epoch-0.npy                            the order of an epoch
    root/tokenizers/                                          what was found about tokenizers

A folder belongs to one dataset as published: the hash in its name is that of URL and index.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from cloudload.errors import CacheError
from cloudload.mds.dataset import Corpus, Dataset
from cloudload.storage.redaction import hide_secrets
from cloudload.storage.urls import is_local, local_path
from cloudload.system.file_locks import locked_if_free
from cloudload.system.temp_files import (
    LOCK_SUFFIX,
    PART_SUFFIX,
    TAG,
    file_of,
    is_left_over,
    lock_of,
)


def default_cache() -> Path:
    """The per-user cache folder: `$CLOUDLOAD_CACHE`, else `cloudload` in the user's cache
    folder."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("CLOUDLOAD_CACHE") or Path(base, "cloudload")).expanduser()


def dataset_folder(root: Path, dataset: Dataset) -> Path:
    """The folder of one dataset as published."""
    url = hide_secrets(dataset.url)
    name = re.sub(r"[^A-Za-z0-9]+", "-", url).strip("-")[-40:]
    digest = hashlib.sha256(f"{url}\n{dataset.index_hash}".encode()).hexdigest()[:16]
    return root / f"{name}-{digest}"


# ---------------------------------------------------------------- what lies in a cache


def open_cache_folder(root: Path, corpus: Corpus) -> None:
    """Make a cache folder, and sweep it. Raises `CacheError` for one that cannot be, or lies within
    a dataset."""
    for dataset in corpus.datasets:
        if is_local(dataset.url) and root.resolve().is_relative_to(
            local_path(dataset.url).resolve()
        ):
            raise CacheError(
                f"the cache {root} lies within the dataset {dataset.url}, which is left as it is. "
                "Choose another `local`"
            )
    try:
        root.mkdir(parents=True, exist_ok=True)
        sweep(root)
    except OSError as error:
        raise CacheError(
            f"cannot use the cache folder {root}: {error}. Choose another `local`"
        ) from error


def sweep(root: Path) -> None:
    """Remove what killed processes have left in a cache: parts and locks that nobody holds."""
    for path in _own_files(root, ["", ORDERS_FOLDER]):
        if is_left_over(path):
            _sweep_up(path)
    _sweep_up(root / f"space{LOCK_SUFFIX}")


def _sweep_up(path: Path) -> bool:
    """Remove a part or a lock if it is nobody's; whether it was."""
    with contextlib.suppress(OSError), locked_if_free(lock_of(file_of(path))) as is_free:
        if is_free and path.suffix == PART_SUFFIX:
            path.unlink(missing_ok=True)
        return is_free
    return False  # in a folder of another user


def _own_files(root: Path, places: Iterable[str]) -> Iterator[Path]:
    """The files in the folders that cloudload has made in some places of a cache; nothing else is
    looked at."""
    for place in places:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for folder in (root / place).iterdir():
                if (folder / TAG).is_file():
                    for parent, _, names in os.walk(folder):
                        yield from (Path(parent, name) for name in names if name != TAG)


def _stat(path: Path) -> os.stat_result | None:
    with contextlib.suppress(FileNotFoundError):
        return path.lstat()
    return None


ORDERS_FOLDER = "orders"
