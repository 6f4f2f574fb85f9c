"""A cache stays within its limit, evicts by last use, and lists its files rarely."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload.cache import space
from cloudload.cache.folder import SPACE, shard_files, sweep
from cloudload.cache.space import publish, remove, reserve
from cloudload.errors import CacheError
from cloudload.system.file_locks import locked
from cloudload.system.temp_files import is_temporary, lock_path, make_folder
from tests.support.examples import EXAMPLES

LIMIT = 1_000


def add(root: Path, name: str, size: int, limit: int | None = LIMIT) -> Path:
    """Add a shard of `size` bytes to the cache."""
    folder = root / "data"
    make_folder(folder)
    path = folder / name
    with reserve(root, path, size, limit) as (part, _):
        publish(root, part, path)
    return path


def use(path: Path, second: int) -> None:
    os.utime(path, (second, second))


def shards(root: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in shard_files(root) if not is_temporary(path)}


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The roots of the listings of this process."""
    listed: list[Path] = []
    list_all = space._list_all

    def note(root: Path) -> int:
        listed.append(root)
        return list_all(root)

    monkeypatch.setattr(space, "_list_all", note)
    return listed


def test_reservations_list_the_files_once_per_candidates(
    tmp_path: Path, listings: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "_MOST_CANDIDATES", 5)
    for number in range(10):
        use(add(tmp_path, f"{number:02}", 100), number)
    assert len(listings) == 1
    for number in range(10, 20):
        use(add(tmp_path, f"{number:02}", 100), number)
    assert len(listings) == 3
    assert sorted(shards(tmp_path)) == [f"{number:02}" for number in range(10, 20)]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 9), st.integers(1, 400)),
        st.tuples(st.just("use"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("evict elsewhere"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("another process"), st.just(0), st.just(0)),
        st.tuples(st.just("fail"), st.integers(0, 9), st.integers(1, 400)),
    ),
    max_size=60,
)


@settings(max_examples=10 * EXAMPLES)
@given(steps=STEPS, most=st.sampled_from([1, 3, 100]))
def test_the_least_recently_used_shards_are_evicted_as_if_all_were_listed(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]], most: int
) -> None:
    root = tmp_path_factory.mktemp("cache")
    expected: dict[str, int] = {}  # in the order of use
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(space, "_MOST_CANDIDATES", most)
        for second, (what, number, size) in enumerate(steps):
            name = str(number)
            path = root / "data" / name
            if what in ("add", "fail") and name not in expected:
                while sum(expected.values()) + size > LIMIT:
                    del expected[next(iter(expected))]
                if what == "add":
                    expected[name] = size
                    use(add(root, name, size), second)
                else:
                    make_folder(path.parent)
                    with contextlib.suppress(ZeroDivisionError), reserve(root, path, size, LIMIT):
                        raise ZeroDivisionError
            elif what == "use" and name in expected:
                expected[name] = expected.pop(name)
                use(path, second)
            elif what == "evict elsewhere" and name in expected:
                del expected[name]
                remove(root, [path])
            elif what == "another process":
                space._candidates.clear()
            assert shards(root) == expected


@pytest.mark.parametrize(
    "content", [b"", b"7", b"space 2\n" + b"\x01" + bytes(8), b"space 1\n" + bytes(9), bytes(99)]
)
def test_a_damaged_account_is_replaced(tmp_path: Path, content: bytes) -> None:
    add(tmp_path, "old", 600)
    (tmp_path / SPACE).write_bytes(content)
    add(tmp_path, "new", 600)
    assert shards(tmp_path) == {"new": 600}
    add(tmp_path, "next", 300)
    assert shards(tmp_path) == {"new": 600, "next": 300}


def test_files_that_others_added_count_from_the_next_start(tmp_path: Path) -> None:
    use(add(tmp_path, "old", 400), 1)
    (tmp_path / "data" / "copied").write_bytes(bytes(500))
    sweep(tmp_path)
    add(tmp_path, "new", 200)
    assert shards(tmp_path) == {"copied": 500, "new": 200}


def test_files_that_others_removed_are_found_before_a_reservation_fails(tmp_path: Path) -> None:
    add(tmp_path, "old", 900).unlink()
    add(tmp_path, "new", 900)
    assert shards(tmp_path) == {"new": 900}


def test_a_process_without_a_limit_counts_too(tmp_path: Path, listings: list[Path]) -> None:
    use(add(tmp_path, "old", 400), 1)
    use(add(tmp_path, "other", 500, limit=None), 2)
    add(tmp_path, "new", 200)
    assert shards(tmp_path) == {"other": 500, "new": 200}
    assert len(listings) == 2


def test_too_small_a_limit_names_the_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    make_folder(folder)
    with locked(lock_path(folder / "a")), reserve(tmp_path, folder / "a", 700, LIMIT):
        for _ in range(2):
            with (
                pytest.raises(CacheError, match=r"cache_limit 1,000 .* 700 bytes .* to 1,100"),
                reserve(tmp_path, folder / "b", 400, LIMIT),
            ):
                pass
    add(tmp_path, "b", 400)


def test_an_account_that_cannot_be_written_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listings: list[Path]
) -> None:
    real = os.open

    def refuse(path: Path, *arguments: int) -> int:
        if path == tmp_path / SPACE:
            raise OSError(errno.ENOSPC, "no space left")
        return real(path, *arguments)

    use(add(tmp_path, "old", 600), 1)
    monkeypatch.setattr("os.open", refuse)
    use(add(tmp_path, "other", 300), 2)
    add(tmp_path, "new", 600)
    assert shards(tmp_path) == {"other": 300, "new": 600}
    assert len(listings) == 2


def _fill(root: Path, seed: int) -> None:
    chance = random.Random(seed)
    while True:
        path = root / "data" / f"{chance.randrange(40):02}"
        with contextlib.suppress(CacheError), locked(lock_path(path)):
            if not path.exists():
                with reserve(root, path, chance.randrange(1, 120), LIMIT) as (part, _):
                    time.sleep(chance.random() / 500)
                    if chance.random() < 0.8:
                        publish(root, part, path)
            elif chance.random() < 0.1:
                remove(root, [path])
            else:
                os.utime(path)


def test_processes_killed_at_any_moment_leave_an_account_that_holds(tmp_path: Path) -> None:
    make_folder(tmp_path / "data")
    context, chance = multiprocessing.get_context("fork"), random.Random(7)
    seeds = iter(range(1_000))

    def start() -> multiprocessing.process.BaseProcess:
        process = context.Process(target=_fill, args=(tmp_path, next(seeds)), daemon=True)
        process.start()
        return process

    processes = [start() for _ in range(4)]
    known = 0
    for _ in range(60):
        time.sleep(chance.random() / 20)
        with locked(lock_path(tmp_path / SPACE)):
            used = sum(path.stat().st_size for path in shard_files(tmp_path) if path.exists())
            account = space._read(tmp_path)
            known += account is not None
            assert used <= (LIMIT if account is None else account) <= LIMIT
        place = chance.randrange(4)
        os.kill(processes[place].pid or 0, signal.SIGKILL)
        processes[place].join()
        processes[place] = start()
    for process in processes:
        process.kill()
        process.join()
    assert known > 20
    sweep(tmp_path)
    path = add(tmp_path, "last", 1)
    assert space._read(tmp_path) == sum(shards(tmp_path).values())
    assert path.exists()
