"""Eviction keeps to the limit and removes the least recently used shards, whatever else happens."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from cloudload.cache import space
from cloudload.cache.folder import sweep
from cloudload.cache.space import reserve
from cloudload.errors import CacheError
from cloudload.system.file_locks import locked
from cloudload.system.temp_files import lock_path, make_folder

LIMIT = 1_000


class Cache:
    """A cache folder whose shards are used at given times, and what it should hold."""

    def __init__(self, root: Path) -> None:
        self.root, self.now = root, 0
        self.expected: dict[str, tuple[int, int]] = {}
        """The last use and the bytes of each shard."""
        make_folder(root / "dataset")

    def path(self, name: str) -> Path:
        return self.root / "dataset" / name

    def use(self, name: str) -> None:
        self.now += 1
        os.utime(self.path(name), ns=(self.now, 0))
        self.expected[name] = self.now, self.expected[name][1]

    def fetch(self, name: str, size: int, *, fails: bool = False) -> None:
        self.evict(size)
        with reserve(self.root, self.path(name), size, LIMIT) as (part, _):
            if not fails:
                part.replace(self.path(name))
        if not fails:
            self.expected[name] = 0, size
            self.use(name)

    def evict(self, size: int) -> None:
        """Expect what a listing of all files before each download would evict."""
        while sum(each for _, each in self.expected.values()) + size > LIMIT:
            del self.expected[min(self.expected, key=lambda name: self.expected[name])]

    def remove(self, name: str) -> None:
        self.path(name).unlink()
        del self.expected[name]

    def check(self) -> None:
        files = {path.name for path in (self.root / "dataset").iterdir() if path.suffix == ".mds"}
        assert files == self.expected.keys()


@pytest.mark.parametrize("seed", range(8))
def test_the_least_recently_used_shards_are_evicted(seed: int, tmp_path: Path) -> None:
    cache, chance = Cache(tmp_path), random.Random(seed)
    for number in range(300):
        action = chance.random()
        names = sorted(cache.expected)
        if names and action < 0.3:
            cache.use(chance.choice(names))
        elif action < 0.4:
            cache.fetch(f"{number}.mds", chance.randint(1, 300), fails=True)
        elif action < 0.43:
            sweep(tmp_path)
        elif action < 0.46:
            (tmp_path / "space.json").write_text("{")
        else:
            cache.fetch(f"{number}.mds", chance.randint(0, 300))
        cache.check()


def test_shards_that_others_remove_make_room_at_the_latest_when_files_are_listed(
    tmp_path: Path,
) -> None:
    cache = Cache(tmp_path)
    for number in range(10):
        cache.fetch(f"{number}.mds", 100)
    for number in range(5):
        cache.remove(f"{number}.mds")
    sweep(tmp_path)
    for number in range(10, 15):
        cache.fetch(f"{number}.mds", 100)
        cache.check()
    cache.remove("5.mds")
    cache.fetch("15.mds", 100)
    cache.check()


def test_files_are_listed_once_for_many_downloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings: list[Path] = []
    list_all = space._list_all

    def note_listing(root: Path) -> Any:
        listings.append(root)
        return list_all(root)

    monkeypatch.setattr(space, "_list_all", note_listing)
    cache = Cache(tmp_path)
    for number in range(100):
        cache.fetch(f"{number}.mds", 10)
    assert len(listings) == 1
    for number in range(100, 300):
        cache.fetch(f"{number}.mds", 10)
    cache.check()
    assert len(listings) == 3


def test_a_download_that_cannot_fit_beside_others_names_the_limit_that_would_do(
    tmp_path: Path,
) -> None:
    cache = Cache(tmp_path)
    cache.fetch("a.mds", 300)
    with (
        locked(lock_path(cache.path("b.mds"))),
        reserve(tmp_path, cache.path("b.mds"), 700, LIMIT),
        pytest.raises(CacheError, match=r"700 bytes are being fetched and 301 .*Raise it to 1,001"),
        reserve(tmp_path, cache.path("c.mds"), 301, LIMIT),
    ):
        pass
    cache.expected.clear()
    cache.fetch("d.mds", 1_000)
    cache.check()
