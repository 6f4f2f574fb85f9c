"""The faults of the section `cache`, which are damaged caches and shards, and full disks."""

from __future__ import annotations

import json
from collections.abc import Callable

from cloudload.data.storage.objects import delete_object, read_object, write_object
from stress.fault_table.reads import (
    DOCUMENTS,
    OTHERS,
    Act,
    Ground,
    Seen,
    change,
    flip,
    read_index,
    zipped_name,
)
from testkit.corpora import write_mds
from testkit.disks import mounted, remount


def cached_shard(damage: Callable[[bytes], bytes]) -> Act:
    """Return a fault that damages a cached shard and then reads the dataset again."""

    def act(ground: Ground) -> Seen:
        data, cache = ground.data(), ground.place()
        ground.read(data, cache)
        change(next(cache.rglob("shard.00002-*.mds")), damage)
        return ground.read(data, cache)

    return act


def cached_order(damage: Callable[[bytes], bytes]) -> Act:
    """Return a fault that damages all cached orders and then reads the dataset again."""

    def act(ground: Ground) -> Seen:
        data, cache = ground.data(), ground.place()
        ground.read(data, cache)
        orders = [path for path in (cache / "orders").rglob("*") if path.is_file()]
        assert orders
        for path in orders:
            change(path, damage)
        return ground.read(data, cache)

    return act


def corrupt_in_store(ground: Ground) -> Seen:
    """Damage a shard in the store, so that every fetch returns the same wrong bytes."""
    data = ground.data()
    url = f"{data}/{zipped_name(data, 2)}"
    write_object(url, flip(read_object(url)))
    return ground.read(data)


def missing_in_store(ground: Ground) -> Seen:
    """Delete a shard from the store, but not from the index."""
    data = ground.data()
    delete_object(f"{data}/{zipped_name(data, 2)}")
    return ground.read(data)


def other_header(ground: Ground) -> Seen:
    """Change a column's encoding in the index, so that it differs from the shard's header."""
    data = ground.data()
    index = read_index(data)
    index["shards"][2]["column_encodings"] = ["bytes"]
    write_object(f"{data}/index.json", json.dumps(index).encode())
    return ground.read(data)


def republished(ground: Ground) -> Seen:
    """Replace a dataset that is fully cached, then read it again."""
    data, cache = ground.data(), ground.place()
    ground.read(data, cache)
    _republish(data)
    return ground.read(data, cache)


def _republish(data: str) -> None:
    write_mds(data, OTHERS, shard_bytes=4_000, compression="zstd")


def republished_while_read(ground: Ground) -> Seen:
    """Replace the dataset after a loader has read its index."""
    data = ground.data()
    return ground.read(data, meanwhile=lambda: _republish(data))


def full_disk(ground: Ground) -> Seen:
    """Put the cache on a file system that is smaller than a shard."""
    with mounted(ground.place("small"), "size=32k") as cache:
        return ground.read(ground.data(shard_bytes=80_000), cache)


def read_only(*, is_filled: bool) -> Act:
    """Return a fault that puts the cache on a read-only file system.

    A read-only folder would not be enough, because root can write to a folder with any mode.
    """

    def act(ground: Ground) -> Seen:
        data = ground.data()
        with mounted(ground.place("small"), "size=1m") as cache:
            if is_filled:
                ground.read(data, cache)
            remount(cache, "ro")
            return ground.read(data, cache)

    return act


def small_limit(ground: Ground) -> Seen:
    """Set `cache_limit` below the bytes of the shards that the workers use at the same time."""
    return ground.read(ground.data(), cache_limit=9_000)


def cache_in_dataset(ground: Ground) -> Seen:
    """Set `local` to a folder inside the dataset."""
    folder = ground.place("local")
    write_mds(folder, DOCUMENTS, shard_bytes=4_000)
    return ground.read(str(folder), folder / "cache")


CASES: dict[str, Act] = {
    "cached shard cut short": cached_shard(lambda data: data[:100]),
    "byte flipped in a cached shard": cached_shard(flip),
    "cached shard emptied": cached_shard(lambda _: b""),
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
    "order file cut short": cached_order(lambda data: data[:-100]),
    "byte flipped in the order file": cached_order(flip),
    "order file emptied": cached_order(lambda _: b""),
}
