"""The cache folder of a node: names, and cleanup after killed processes.

    root/<dataset>-<hash>/CACHEDIR.TAG                        marks a folder made by cloudload
    root/<dataset>-<hash>/STARTED                             if there are shards without a hash
    root/<dataset>-<hash>/shard.00000-<hash>.mds              a complete raw shard
    root/<dataset>-<hash>/shard.00000-<hash>.mds.lock         held while the shard is fetched
    root/<dataset>-<hash>/shard.00000-<hash>.mds.….part       a partial download
    root/cloudload-space                                      the bytes used; see `fetch`
    root/space.lock                                           held while bytes are reserved
    root/indexes/                                             large indexes (`mds.open_index`)
    root/orders/<hash>/epoch-0.npy                            the order of an epoch
    root/lengths/                                             token lengths, and tables of them
    root/tokenizers/                                          tokenizers, and their checks

A dataset folder's name contains a hash of the URL, and a file's name a hash of its shard's
index entry. So a file belongs to one version of one shard, and stays valid when shards are added.
If shards have no hash, two versions may have the same index, so the name of the folder also
depends on the index and on the store's version of `index.json` (`storage.versions`). Only shards
and partial downloads count toward `cache_limit`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cloudload.data.cache.kept_tokenizers import sweep_tokenizers
from cloudload.data.mds import shard_entries
from cloudload.data.mds.dataset import Corpus, Dataset, are_in_place, join_columns
from cloudload.data.mds.open_index import INDEXES_FOLDER, sweep_indexes
from cloudload.data.storage.urls import expand_home, path_url, same_or_inside
from cloudload.errors import CacheError
from cloudload.system import Ints, file_locks, temp_files

ORDERS_FOLDER, LENGTHS_FOLDER = "orders", "lengths"

# file systems allow names of 255 bytes, and the suffixes of partial files and locks add up to 18
_MOST_STEM_BYTES, _MOST_SUFFIX = 180, 10

ACCOUNT = "cloudload-space"
"""The name of the file that records how many bytes a cache uses; see `fetch`."""

STARTED = "STARTED"
"""The name of the file that records when a folder of shards without hashes was started, in seconds
since 1970; see `republished`."""


def default_cache() -> Path:
    """The user's cache: `$CLOUDLOAD_CACHE`, else `cloudload` in `$XDG_CACHE_HOME` or `~/.cache`.

    Raises `CacheError` if the user has no home folder, as in a container with an unknown user ID.
    """
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return expand_home(os.environ.get("CLOUDLOAD_CACHE") or Path(base, "cloudload"))
    except ValueError as error:
        raise CacheError(
            f"there is no default cache folder: {error}. Or set `local` or CLOUDLOAD_CACHE to a "
            "folder"
        ) from None


def dataset_folder(root: Path, dataset: Dataset) -> Path:
    """The folder of a dataset. If shards have no hash, each published version has its own."""
    url = str(dataset.location)
    name = re.sub(r"[^A-Za-z0-9]+", "-", url).strip("-")[-40:]
    parts = [url]
    if dataset.num_without_hash:
        parts += [dataset.index_hash, *[dataset.version.key] * dataset.version.is_known]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return root / f"{name}-{digest}"


def shard_path(folder: Path, info: shard_entries.ShardInfo) -> Path:
    """The path of a raw shard in the folder of its dataset, unique to that shard."""
    files = [
        (file.name, file.bytes, sorted(file.hashes.items())) for file in (info.raw, info.stored)
    ]
    digest = hashlib.sha256(repr((info.samples, files)).encode()).hexdigest()[:12]
    path = folder / info.raw.name
    stem = path.stem.encode()[:_MOST_STEM_BYTES].decode(errors="ignore")
    return path.with_name(f"{stem}-{digest}{path.suffix[:_MOST_SUFFIX]}")


def cached_bytes(corpus: Corpus) -> Ints:
    """The bytes that each shard uses in the cache: int64 [shards]; 0 if it is mapped in place."""
    return join_columns(
        [dataset.table.raw_bytes * ~are_in_place(dataset) for dataset in corpus.datasets]
    )


def space_lock(root: Path) -> Path:
    """The lock file that a process locks while it reserves bytes or changes shards."""
    return temp_files.lock_path(root / "space")


def check_cache_folder(root: Path, urls: Iterable[str]) -> None:
    """Raise `CacheError` if the cache folder `root` is inside a local dataset among `urls`."""
    for url in urls:
        if same_or_inside(path_url(root), url):
            raise CacheError(
                f"the cache folder {root} is inside the dataset {url}, which a loader must not "
                "modify. Set `local` to a different folder"
            )


def open_cache_folder(root: Path) -> None:
    """Create a cache folder, and `sweep` it.

    Raises `CacheError` if that fails, or if file locks do not work in the folder.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        if os.access(root, os.W_OK):
            file_locks.check_locks(root)
        sweep(root)
    except file_locks.NoLocksError as error:
        raise CacheError(
            f"cannot use the cache folder {root}: {error}. Set `local` to a folder on a disk of "
            "this node, or mount the file system with locks (Lustre: flock)"
        ) from error
    except OSError as error:
        raise CacheError(
            f"cannot use the cache folder {root}: {error}. Set `local` to a different folder"
        ) from error


# ---------------------------------------------------------------- sweeping


def sweep(root: Path) -> None:
    """Remove the partial files and locks that killed processes left in a cache folder.

    Also makes the next reservation list all files, because other programs may have changed them.
    """
    for path in _own_files(root, ["", ORDERS_FOLDER], temp_files.is_temporary):
        file_locks.remove_if_orphaned(path)
    sweep_tokenizers(root)
    sweep_indexes(root)
    file_locks.remove_if_orphaned(space_lock(root))
    with contextlib.suppress(OSError):  # the folder may be read-only, or belong to another user
        (root / ACCOUNT).unlink()  # do not wait for the lock, because a stopped process may hold it


def shard_files(root: Path) -> Iterator[Path]:
    """The shards, partial files, and locks of all datasets in a cache folder."""
    others = root / LENGTHS_FOLDER, root / INDEXES_FOLDER
    return (
        path
        for path in _own_files(root, [""], lambda name: name not in (temp_files.TAG, STARTED))
        if not any(path.is_relative_to(other) for other in others)
    )


def _own_files(
    root: Path, subfolders: Iterable[str], is_wanted: Callable[[str], bool]
) -> Iterator[Path]:
    """Yield the files of all folders with a `CACHEDIR.TAG` in the `subfolders` of `root`.

    Files with unwanted names are left out. Folders without a tag are ignored, because they may not
    be cloudload's.
    """
    for subfolder in subfolders:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for folder in (root / subfolder).iterdir():
                if (folder / temp_files.TAG).is_file():
                    for parent, _, names in os.walk(folder):
                        yield from (Path(parent, name) for name in filter(is_wanted, names))
