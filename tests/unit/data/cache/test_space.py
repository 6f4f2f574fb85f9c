"""A cache stays within its limit, evicts the least recently used shards, and rarely lists files."""

from __future__ import annotations

import contextlib
import errno
import itertools
import multiprocessing
import os
import random
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload.data.cache import fetch
from cloudload.data.cache.cache_folder import ACCOUNT, shard_files, space_lock, sweep
from cloudload.data.cache.fetch import publish, remove, reserve
from cloudload.errors import CacheError
from cloudload.system.file_locks import locked
from cloudload.system.temp_files import is_temporary, lock_path, make_folder
from testkit.examples import EXAMPLES

LIMIT = 1_000


def add(root: Path, name: str, size: int, limit: int | None = LIMIT) -> Path:
    """Add a shard of `size` bytes to the cache, evicting others if needed, and return its path."""
    folder = root / "data"
    make_folder(folder)
    path = folder / name
    with reserve(root, path, size, limit) as reserved:
        publish(root, reserved.path, path)
    return path


def use(path: Path, second: int) -> None:
    os.utime(path, (second, second))


def keep_account(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the account file undeletable, as if another user owned it in a sticky-bit folder."""
    real = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path == root / ACCOUNT:
            raise PermissionError(errno.EPERM, "not permitted")
        real(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)


def shards(root: Path) -> dict[str, int]:
    return {
        path.name: path.stat().st_size for path in shard_files(root) if not is_temporary(path.name)
    }


def size_of(path: Path) -> int:
    """The size of a file, or 0 if another process has just removed it, such as a lock."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A list that gets a cache's root each time this process lists the files of that cache."""
    listed: list[Path] = []
    list_all = fetch._list_all

    def note(root: Path) -> int:
        listed.append(root)
        return list_all(root)

    monkeypatch.setattr(fetch, "_list_all", note)
    return listed


def test_reservations_list_the_files_once_per_candidates(
    tmp_path: Path, listings: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "MOST_CANDIDATES", 5)
    for number in range(10):
        use(add(tmp_path, f"{number:02}", 100), number)
    assert len(listings) == 1
    for number in range(10, 20):
        use(add(tmp_path, f"{number:02}", 100), number)
    assert len(listings) == 3
    assert sorted(shards(tmp_path)) == [f"{number:02}" for number in range(10, 20)]


def test_a_candidate_that_was_used_again_is_not_evicted(tmp_path: Path) -> None:
    for number in range(11):
        use(add(tmp_path, f"{number:02}", 100), number)
    use(tmp_path / "data" / "01", 11)
    add(tmp_path, "new", 100)
    assert sorted(shards(tmp_path)) == ["01", *(f"{number:02}" for number in range(3, 11)), "new"]


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
    expected: dict[str, int] = {}  # sizes in bytes, least recently used first
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch, "MOST_CANDIDATES", most)
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
                fetch._candidates.clear()
            assert shards(root) == expected


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"7",
        bytes(24),
        bytes(99),
        struct.pack("<8sqdd", b"space 1\n", 0, time.time(), 0),
        struct.pack("<8sqd", b"space 1\n", 0, time.time()),
        struct.pack("<8sqdd", b"space 2\n", 0, float("nan"), 0),
        struct.pack("<8sqdd", b"space 2\n", 0, time.time(), 0)[:-1],
    ],
    ids=["empty", "short", "zeros", "long", "other format", "old format", "no time", "cut"],
)
def test_a_damaged_account_is_replaced(tmp_path: Path, content: bytes) -> None:
    add(tmp_path, "old", 600)
    (tmp_path / ACCOUNT).write_bytes(content)
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


def test_files_that_others_added_count_after_ten_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(add(tmp_path, "old", 400), 1)
    (tmp_path / "data" / "of an older version").write_bytes(bytes(500))
    use(tmp_path / "data" / "of an older version", 2)
    use(add(tmp_path, "new", 200), 3)
    assert sum(shards(tmp_path).values()) == 1_100
    now = time.time
    monkeypatch.setattr("time.time", lambda: now() + fetch._MOST_AGE_S)
    add(tmp_path, "last", 1)
    assert shards(tmp_path) == {"of an older version": 500, "new": 200, "last": 1}


def test_a_slow_listing_is_repeated_after_100_times_its_duration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listings: list[Path]
) -> None:
    list_all, now, monotonic, late_s = fetch._list_all, time.time, time.monotonic, 0.0

    def list_slowly(root: Path) -> int:
        nonlocal late_s
        late_s += 60
        return list_all(root)

    monkeypatch.setattr(fetch, "_list_all", list_slowly)
    monkeypatch.setattr("time.time", lambda: now() + late_s)
    monkeypatch.setattr("time.monotonic", lambda: monotonic() + late_s)
    for step_s, expected in ((0, 1), (fetch._MOST_AGE_S + 1, 1), (5_000, 1), (500, 2), (5_000, 2)):
        late_s += step_s
        add(tmp_path, f"{step_s} {expected}", 1)
        assert len(listings) == expected


def test_an_account_from_the_future_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listings: list[Path]
) -> None:
    now = time.time
    monkeypatch.setattr("time.time", lambda: now() + 3_600)
    add(tmp_path, "a", 1)
    monkeypatch.setattr("time.time", now)
    add(tmp_path, "b", 1)
    assert len(listings) == 2


def test_a_start_does_not_wait_for_a_stopped_holder(tmp_path: Path) -> None:
    add(tmp_path, "old", 400)
    with locked(space_lock(tmp_path)):
        sweep(tmp_path)
    assert fetch._read(tmp_path).used is None


def test_an_account_removed_by_a_start_during_a_change_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(add(tmp_path, "old", 400), 1)
    read = fetch._read

    def read_and_sweep(root: Path) -> Any:
        found = read(root)
        (tmp_path / "data" / "copied").write_bytes(bytes(500))
        sweep(root)
        return found

    monkeypatch.setattr(fetch, "_read", read_and_sweep)
    add(tmp_path, "new", 200)
    assert shards(tmp_path) == {"copied": 500, "new": 200}


def test_processes_with_different_limits_each_hold_theirs(tmp_path: Path) -> None:
    for number in range(10):
        use(add(tmp_path, f"{number}", 100), number)
    use(add(tmp_path, "smaller", 100, limit=300), 10)
    assert shards(tmp_path) == {"8": 100, "9": 100, "smaller": 100}
    add(tmp_path, "larger", 700)
    assert shards(tmp_path) == {"8": 100, "9": 100, "smaller": 100, "larger": 700}


def test_many_reservations_without_a_limit_never_list(tmp_path: Path, listings: list[Path]) -> None:
    for number in range(20):
        add(tmp_path, f"{number}", 100, limit=None)
    assert not listings
    assert not (tmp_path / ACCOUNT).exists()


@pytest.mark.parametrize("is_removable", [True, False])
def test_files_of_users_are_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_removable: bool
) -> None:
    (tmp_path / "space").write_text("of a user")
    (tmp_path / "data.txt").write_text("of a user")
    (tmp_path / ACCOUNT).symlink_to(tmp_path / "data.txt")
    if not is_removable:
        keep_account(tmp_path, monkeypatch)
    add(tmp_path, "a", 400)
    add(tmp_path, "b", 500)
    sweep(tmp_path)
    assert (tmp_path / "space").read_text() == "of a user"
    assert (tmp_path / "data.txt").read_text() == "of a user"


def test_an_account_that_cannot_be_written_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listings: list[Path]
) -> None:
    real = Path.open

    def refuse(path: Path, mode: str = "r", *rest: Any, **named: Any) -> Any:
        if path != tmp_path / ACCOUNT or mode == "rb":
            return real(path, mode, *rest, **named)
        file: IO[bytes] = real(path, mode, *rest, **named)
        file.close()
        raise OSError(errno.ENOSPC, "no space left")

    use(add(tmp_path, "old", 600), 1)
    monkeypatch.setattr(Path, "open", refuse)
    use(add(tmp_path, "other", 300), 2)
    assert not (tmp_path / ACCOUNT).exists()
    add(tmp_path, "new", 600)
    assert shards(tmp_path) == {"other": 300, "new": 600}
    assert len(listings) == 2


def test_an_account_that_cannot_be_removed_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listings: list[Path]
) -> None:
    use(add(tmp_path, "old", 600), 1)
    keep_account(tmp_path, monkeypatch)
    for number in range(5):
        use(add(tmp_path, f"{number}", 300), 2 + number)
        assert sum(shards(tmp_path).values()) <= LIMIT
    assert len(listings) == 6


def test_a_full_disk_leaves_no_file_and_the_next_reservation_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    use(add(tmp_path, "old", 600), 1)
    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", fail)
        with pytest.raises(OSError, match="no space left"):
            add(tmp_path, "new", 300)
    assert shards(tmp_path) == {"old": 600}
    add(tmp_path, "new", 400)
    assert shards(tmp_path) == {"old": 600, "new": 400}


def test_a_mapped_file_that_nfs_keeps_counts_but_is_not_evicted(tmp_path: Path) -> None:
    make_folder(tmp_path / "data")
    kept = tmp_path / "data" / ".nfs0000000000000007"
    kept.write_bytes(bytes(300))
    use(kept, 1)
    use(add(tmp_path, "old", 600), 2)
    add(tmp_path, "new", 500)
    assert shards(tmp_path) == {kept.name: 300, "new": 500}


def test_threads_share_candidates_and_hold_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "MOST_CANDIDATES", 3)
    make_folder(tmp_path / "data")
    failures: list[BaseException] = []

    def run(thread: int) -> None:
        try:
            for number in range(40):
                path = tmp_path / "data" / f"{thread}-{number}"
                with locked(lock_path(path)):
                    add(tmp_path, path.name, 90 + thread)
                with locked(space_lock(tmp_path)):
                    account = fetch._read(tmp_path).used
                    assert account is not None
                    assert account <= LIMIT
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert fetch._read(tmp_path).used == sum(shards(tmp_path).values()) <= LIMIT


def test_a_forked_process_may_evict_the_same_candidates(tmp_path: Path) -> None:
    for number in range(11):
        use(add(tmp_path, f"{number:02}", 100), number)

    def evict_in_child() -> None:
        for number in range(11, 14):
            use(add(tmp_path, f"{number}", 100), number)

    child = multiprocessing.get_context("fork").Process(target=evict_in_child)
    child.start()
    child.join()
    assert child.exitcode == 0
    for number in range(14, 20):
        use(add(tmp_path, f"{number}", 100), number)
    assert sorted(shards(tmp_path)) == [f"{number}" for number in range(10, 20)]
    assert fetch._read(tmp_path).used == LIMIT


def _die_at(event: int, root: Path) -> None:
    """Change a cache in every way, but exit just before the system call of audit event `event`.

    The exit status is 9, or 0 if all changes take at most `event` events.
    """
    left = event

    def count(name: str, _: Any) -> None:
        nonlocal left
        if name.partition(".")[0] in ("open", "os", "fcntl"):
            if left == 0:
                os._exit(9)
            left -= 1

    fetch._candidates.clear()
    sys.addaudithook(count)
    use(add(root, "b", 500), 2)
    for name, size in (("c", 100), ("d", 100), ("e", 100), ("f", 300)):
        with locked(lock_path(root / "data" / name)):
            add(root, name, size)
    path = root / "data" / "failed"
    with (
        contextlib.suppress(ZeroDivisionError),
        locked(lock_path(path)),
        reserve(root, path, 200, LIMIT),
    ):
        raise ZeroDivisionError
    remove(root, [root / "data" / "c"])
    os._exit(0)


def _die_before_each_event(root_of_all: Path) -> None:
    known = unknown = 0
    for event in range(1_000):
        root = root_of_all / str(event)
        use(add(root, "a", 600), 1)
        child = multiprocessing.get_context("fork").Process(target=_die_at, args=(event, root))
        child.start()
        child.join()
        used = sum(path.stat().st_size for path in shard_files(root))
        account = fetch._read(root).used
        known, unknown = known + (account is not None), unknown + (account is None)
        assert used <= (LIMIT if account is None else account) <= LIMIT, event
        add(root, "last", 400)
        assert sum(shards(root).values()) <= LIMIT
        if child.exitcode == 0:
            break
        assert child.exitcode == 9
    assert known > 10
    assert unknown > 10
    assert child.exitcode == 0


def in_a_small_process(function: Callable[[Path], None], root: Path) -> None:
    """Call a function that forks a lot in a process without the libraries of other tests."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(function, root).result()


def test_a_process_killed_before_any_system_call_leaves_an_account_that_holds(
    tmp_path: Path,
) -> None:
    in_a_small_process(_die_before_each_event, tmp_path)


def _fill(root: Path, seed: int) -> None:
    chance = random.Random(seed)
    while True:
        path = root / "data" / f"{chance.randrange(40):02}"
        with contextlib.suppress(CacheError), locked(lock_path(path)):
            if not path.exists():
                with reserve(root, path, chance.randrange(1, 120), LIMIT) as reserved:
                    time.sleep(chance.random() / 500)
                    if chance.random() < 0.8:
                        publish(root, reserved.path, path)
            elif chance.random() < 0.1:
                remove(root, [path])
            else:
                # another process may evict the shard now, because it needs no lock of the shard
                with contextlib.suppress(FileNotFoundError):
                    os.utime(path)


def _kill_at_any_moment(root: Path) -> None:
    make_folder(root / "data")
    context, chance = multiprocessing.get_context("fork"), random.Random(7)
    seeds = itertools.count()

    def start() -> multiprocessing.process.BaseProcess:
        process = context.Process(target=_fill, args=(root, next(seeds)), daemon=True)
        process.start()
        return process

    processes = [start() for _ in range(4)]
    known, kills = 0, 5 * EXAMPLES
    try:
        for _ in range(kills):
            time.sleep(chance.random() / 20)
            with locked(space_lock(root)):
                used = sum(map(size_of, shard_files(root)))
                account = fetch._read(root).used
                known += account is not None
                assert used <= (LIMIT if account is None else account) <= LIMIT
            place = chance.randrange(4)
            processes[place].kill()
            processes[place].join()
            assert processes[place].exitcode == -signal.SIGKILL  # it has not failed before
            processes[place] = start()
    finally:
        for process in processes:
            process.kill()
            process.join()
    assert known > kills // 10
    sweep(root)
    path = add(root, "last", 1)
    assert fetch._read(root).used == sum(shards(root).values())
    assert path.exists()


def test_processes_killed_at_any_moment_leave_an_account_that_holds(tmp_path: Path) -> None:
    in_a_small_process(_kill_at_any_moment, tmp_path)
