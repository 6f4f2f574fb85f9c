"""The faults of the section `cache`, which are damaged caches and shards, and full disks."""

from __future__ import annotations

import json
from collections.abc import Callable

from cloudload.data.storage.locations import Location
from stress.fault_table.reads import (
    DOCUMENTS,
    OTHERS,
    Case,
    Outcome,
    Workspace,
    change,
    flip,
    read_index,
    zipped_name,
)
from testkit.corpora import write_mds
from testkit.disks import mounted, remount

SHARD, ORDERS = "**/shard.00002-*.mds", "orders/**/*"


def cached(pattern: str, damage: Callable[[bytes], bytes]) -> Case:
    """Return a fault that damages files of a cache and then reads the dataset again."""

    def act(work: Workspace) -> Outcome:
        data, cache = work.data(), work.new_path()
        work.read(data, cache)
        paths = [path for path in cache.glob(pattern) if path.is_file()]
        assert paths
        for path in paths:
            change(path, damage)
        return work.read(data, cache)

    return act


def corrupt_in_store(work: Workspace) -> Outcome:
    """Damage a shard in the store, so that every fetch returns the same wrong bytes."""
    data = work.data()
    url = f"{data}/{zipped_name(data, 2)}"
    Location(url).write(flip(Location(url).read()))
    return work.read(data)


def missing_in_store(work: Workspace) -> Outcome:
    """Delete a shard from the store, but not from the index."""
    data = work.data()
    Location(f"{data}/{zipped_name(data, 2)}").delete()
    return work.read(data)


def other_header(work: Workspace) -> Outcome:
    """Change a column's encoding in the index, so that it differs from the shard's header."""
    data = work.data()
    index = read_index(data)
    index["shards"][2]["column_encodings"] = ["bytes"]
    Location(f"{data}/index.json").write(json.dumps(index).encode())
    return work.read(data)


def republished(work: Workspace) -> Outcome:
    """Replace a dataset that is fully cached, then read it again."""
    data, cache = work.data(), work.new_path()
    work.read(data, cache)
    _republish(data)
    return work.read(data, cache)


def _republish(data: str) -> None:
    write_mds(data, OTHERS, shard_bytes=4_000, compression="zstd")


def republished_while_read(work: Workspace) -> Outcome:
    """Replace the dataset after a loader has read its index."""
    data = work.data()
    return work.read(data, meanwhile=lambda: _republish(data))


def full_disk(work: Workspace) -> Outcome:
    """Put the cache on a file system that is smaller than a shard."""
    with mounted(work.new_path("small"), "size=32k") as cache:
        return work.read(work.data(shard_bytes=80_000), cache)


def read_only(*, is_filled: bool) -> Case:
    """Return a fault that puts the cache on a read-only file system.

    A read-only folder would not be enough, because root can write to a folder with any mode.
    """

    def act(work: Workspace) -> Outcome:
        data = work.data()
        with mounted(work.new_path("small"), "size=1m") as cache:
            if is_filled:
                work.read(data, cache)
            remount(cache, "ro")
            return work.read(data, cache)

    return act


def small_limit(work: Workspace) -> Outcome:
    """Set `cache_limit` below the bytes of the shards that the workers use at the same time."""
    return work.read(work.data(), cache_limit=9_000)


def cache_in_dataset(work: Workspace) -> Outcome:
    """Set `local` to a folder inside the dataset."""
    folder = work.new_path("local")
    write_mds(folder, DOCUMENTS, shard_bytes=4_000)
    return work.read(str(folder), folder / "cache")


CASES: dict[str, Case] = {
    "cached shard cut short": cached(SHARD, lambda data: data[:100]),
    "byte flipped in a cached shard": cached(SHARD, flip),
    "cached shard emptied": cached(SHARD, lambda _: b""),
    "shard corrupt in the store": corrupt_in_store,
    "shard missing in the store": missing_in_store,
    "shard's header disagrees with the index": other_header,
    "dataset republished, same cache": republished,
    "dataset republished while it is read": republished_while_read,
    "disk full": full_disk,
    "cache_limit below the working set": small_limit,
    "cache read-only, empty": read_only(is_filled=False),
    "cache read-only, filled": read_only(is_filled=True),
    "cache within a local dataset": cache_in_dataset,
    "order file cut short": cached(ORDERS, lambda data: data[:-100]),
    "byte flipped in the order file": cached(ORDERS, flip),
    "order file emptied": cached(ORDERS, lambda _: b""),
}
