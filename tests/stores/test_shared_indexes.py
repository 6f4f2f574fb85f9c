"""A node's processes share a large index as a file, but each must have access to the store."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudloadError, Retry
from cloudload.data.cache.cache_folder import shard_files
from cloudload.data.mds import fingerprints
from cloudload.data.mds import open_index as opening
from cloudload.data.mds.dataset import open_corpus
from cloudload.data.mds.fingerprints import SUFFIX
from cloudload.data.mds.open_index import INDEXES_FOLDER, OpenedIndex, open_index, sweep_indexes
from cloudload.data.mds.shard_table import parse_index
from cloudload.data.storage.locations import Location
from cloudload.errors import CacheError, StoreError
from cloudload.system.temp_files import TAG
from testkit.clients import new_clients
from testkit.corpora import random_documents, write_mds
from testkit.fault_proxy import FaultProxy
from testkit.loaders import make_loader
from testkit.servers import S3Server

DOCUMENTS = random_documents(3, 80)
RANKS = 8
INDEX = "GET .*/index.json"
_FORK = multiprocessing.get_context("fork")
_RETRY = Retry(timeout_s=10.0, deadline_s=20.0, pause_s=0.1)


@pytest.fixture(autouse=True)
def _shares_small_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "SHARED_FROM_BYTES", 0)
    # treat the ETag of a new object as exact too, because S3's ETags are digests
    monkeypatch.setattr("cloudload.data.storage.versions.SETTLED_S", -60.0)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that collects the size in bytes of each index that this process parses."""
    sizes: list[int] = []

    def note(data: bytes, dataset: str) -> Any:
        sizes.append(len(data))
        return parse_index(data, dataset)

    monkeypatch.setattr("cloudload.data.mds.open_index.parse_index", note)
    return sizes


@pytest.fixture
def data(s3_url: str) -> str:
    return write_mds(s3_url, DOCUMENTS, shard_bytes=2_000)


def open_at(url: str, cache: Path) -> OpenedIndex:
    return open_index(Location(url, _RETRY), cache)


def tables(cache: Path) -> list[Path]:
    """The files of shared indexes in a cache. Fails if their folder contains any other file."""
    found = sorted(path for path in (cache / INDEXES_FOLDER).iterdir() if path.name != TAG)
    assert {path.suffix for path in found} <= {".shards"}
    return found


def in_processes(number: int, work: Callable[[int], Any]) -> list[Any]:
    """Call `work(rank)` in `number` forked processes at once. Returns results or error messages."""
    barrier, queue = _FORK.Barrier(number), _FORK.Queue()

    def serve(rank: int) -> None:
        barrier.wait()
        try:
            queue.put(work(rank))
        except CloudloadError as error:
            queue.put(str(error))

    processes = [_FORK.Process(target=serve, args=(rank,)) for rank in range(number)]
    for process in processes:
        process.start()
    found = [queue.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    return found


def test_every_rank_asks_for_the_index_and_one_requests_it_again_to_parse_it(
    data: str, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    def open_rank(rank: int) -> int:
        world = {"dp_rank": rank, "dp_world_size": RANKS, "num_lanes": 24}
        with make_loader(data, local=tmp_path, lengths="off", retry=_RETRY, **world) as loader:
            return loader.num_samples

    for extra in (1, 0):  # only in round 1 does a rank parse the index, and so request it again
        s3_proxy.set_faults([])
        assert in_processes(RANKS, open_rank) == [80] * RANKS
        assert len(s3_proxy.requests(INDEX)) == len(s3_proxy.requests()) == RANKS + extra
        assert len(tables(tmp_path)) == 1


def test_racing_ranks_parse_an_index_once(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "parsed"

    def note(content: bytes, dataset: str) -> Any:
        with log.open("a") as file:
            file.write("x")
        return parse_index(content, dataset)

    monkeypatch.setattr("cloudload.data.mds.open_index.parse_index", note)
    found = in_processes(RANKS, lambda _: list(open_at(data, tmp_path / "cache").shards))
    assert log.read_text() == "x"
    assert all(each == list(open_index(Location(data, _RETRY)).shards) for each in found)


def test_a_small_index_is_requested_once_and_not_kept(
    data: str, s3_proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "SHARED_FROM_BYTES", 1 << 20)
    s3_proxy.set_faults([])
    assert open_at(data, tmp_path).shards.samples.sum() == 80
    assert len(s3_proxy.requests()) == 1
    assert not (tmp_path / INDEXES_FOLDER).exists()


def test_a_shared_index_is_the_index(data: str, tmp_path: Path, parsed: list[int]) -> None:
    alone = open_index(Location(data, _RETRY))
    for _ in range(3):
        shared = open_at(data, tmp_path)
        assert list(shared.shards) == list(alone.shards)
        assert shared.shards.fingerprints.items() >= alone.shards.fingerprints.items()
        assert (shared.hash, shared.version.key) == (alone.hash, alone.version.key)
        assert shared.read_s >= alone.read_s
    assert len(parsed) == 2


@pytest.mark.parametrize("place", ["local", "s3", "gcs"])
def test_an_index_published_again_is_seen_by_the_next_opening(
    request: pytest.FixtureRequest, tmp_path: Path, parsed: list[int], place: str
) -> None:
    url = request.getfixturevalue(f"{place}_url")
    sizes = set()
    for number, letter in enumerate("abac"):
        write_mds(url, [letter * 50] * 40, shard_bytes=500)  # all indexes have the same size
        for _ in range(2):
            opened, fresh = open_at(url, tmp_path), open_index(Location(url, _RETRY))
            assert opened.hash == fresh.hash
            assert list(opened.shards) == list(fresh.shards)
        sizes.add(parsed[-1])
        # S3's ETag is a digest of the content, so the first table of `a` is used again
        again = place == "s3" and number == 2
        assert len(parsed) == (2 if again else 3)
        parsed.clear()
    assert len(sizes) == 1


def test_an_index_of_a_store_without_exact_versions_is_parsed_by_each_process(
    data: str, s3_proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudload.data.storage.versions.SETTLED_S", float("inf"))
    s3_proxy.set_faults([])
    for _ in range(2):
        assert open_at(data, tmp_path).shards.samples.sum() == 80
    assert len(s3_proxy.requests()) == 2
    assert not (tmp_path / INDEXES_FOLDER).exists()


def test_credentials_without_access_get_no_index_though_there_is_a_table(
    data: str, s3_server: S3Server, tmp_path: Path
) -> None:
    open_at(data, tmp_path)
    variables = {**s3_server.environment(), "AWS_SECRET_ACCESS_KEY": "wrong"}
    with new_clients(variables), pytest.raises(StoreError, match=r"index\.json"):
        open_at(data, tmp_path)


@pytest.mark.usefixtures("s3_proxy")
def test_another_endpoint_does_not_get_the_table(
    data: str, s3_server: S3Server, tmp_path: Path, parsed: list[int]
) -> None:
    open_at(data, tmp_path)
    with new_clients(s3_server.environment()):
        open_at(data, tmp_path)
    assert len(parsed) == len(tables(tmp_path)) == 2


def test_an_unreachable_store_is_an_error_though_there_is_a_table(
    data: str, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    open_at(data, tmp_path)
    s3_proxy.fail(INDEX, "status", status=403, code="AccessDenied")
    with pytest.raises(StoreError, match="AccessDenied"):
        open_at(data, tmp_path)


def _flip(table: Path) -> None:
    content = bytearray(table.read_bytes())
    content[-9] ^= 1
    table.write_bytes(content)


def _truncate(table: Path) -> None:
    os.truncate(table, table.stat().st_size - 8)


def _link(table: Path) -> None:
    table.rename(table.with_name("elsewhere"))
    table.symlink_to(table.with_name("elsewhere"))


def _of_other_version(table: Path) -> None:
    content = table.read_bytes()
    table.write_bytes(content.replace(b"cloudload arrays 1", b"cloudload arrays 0"))


def _give_away(table: Path) -> None:
    if os.geteuid() == 0:
        os.chown(table, 65_534, -1)
    else:
        table.chmod(0o666)


@pytest.mark.parametrize("spoil", [_flip, _truncate, _link, _of_other_version, _give_away])
def test_a_table_that_cannot_be_trusted_is_replaced(
    data: str, tmp_path: Path, parsed: list[int], spoil: Callable[[Path], None]
) -> None:
    wanted = list(open_at(data, tmp_path).shards)
    [table] = tables(tmp_path)
    before = table.read_bytes()
    spoil(table)
    assert list(open_at(data, tmp_path).shards) == wanted
    assert table.read_bytes() == before
    assert not table.is_symlink()
    assert len(parsed) == 2
    open_at(data, tmp_path)
    assert len(parsed) == 2


def test_a_stopped_rank_holds_up_the_others_for_a_limited_time(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    holder = _start(data, tmp_path, monkeypatch, stop)
    try:
        os.waitpid(holder, os.WUNTRACED)
        monkeypatch.setattr(opening, "MOST_WAIT_S", 0.5)
        assert open_at(data, tmp_path).shards.samples.sum() == 80
        # only the process that holds the lock may write a table
        assert not list((tmp_path / INDEXES_FOLDER).glob("*.shards"))
        assert list((tmp_path / INDEXES_FOLDER).glob("*.lock"))
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)


def test_a_killed_rank_holds_up_nobody(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = _start(data, tmp_path, monkeypatch, lambda *_: time.sleep(600))
    while not list(tmp_path.glob(f"{INDEXES_FOLDER}/*.lock")):
        time.sleep(0.02)
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    assert open_at(data, tmp_path).shards.samples.sum() == 80
    assert len(tables(tmp_path)) == 1


def _start(
    url: str, cache: Path, monkeypatch: pytest.MonkeyPatch, parse: Callable[..., Any]
) -> int:
    """Fork a rank that calls `parse` instead of parsing the index, and return its process ID."""
    with monkeypatch.context() as patch:
        patch.setattr("cloudload.data.mds.open_index.parse_index", parse)
        if not (process := os.fork()):
            with contextlib.suppress(BaseException):
                open_at(url, cache)
            os._exit(0)
    return process


def test_each_rank_reports_its_own_error(data: str, s3_proxy: FaultProxy, tmp_path: Path) -> None:
    # the first request of each rank succeeds, and then one rank's second request fails
    s3_proxy.fail(INDEX, "status", skip=4, times=1, status=403, code="AccessDenied")
    found = in_processes(4, lambda _: int(open_at(data, tmp_path).shards.samples.sum()))
    assert found.count(80) >= 3
    assert len(tables(tmp_path)) == 1


def test_a_rank_that_starts_meanwhile_leaves_a_table_that_is_being_written(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fsync = os.fsync

    def sweep(descriptor: int) -> None:
        sweep_indexes(tmp_path)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sweep)
    open_at(data, tmp_path)
    assert len(tables(tmp_path)) == 1
    assert not caplog.records


@pytest.mark.parametrize("fault", ["no folder", "others can write", "full disk"])
def test_a_cache_that_cannot_be_used_is_reported_once_and_not_needed(
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: str,
) -> None:
    folder = tmp_path / INDEXES_FOLDER
    if fault == "no folder":
        folder.write_text("a file")
    elif fault == "others can write":
        folder.mkdir()
        folder.chmod(0o777)
    else:
        monkeypatch.setattr(os, "fsync", _raise_full)
    with caplog.at_level(logging.WARNING):
        assert open_at(data, tmp_path).shards.samples.sum() == 80
    [record] = caplog.records
    assert "cannot share the index" in record.getMessage()
    assert folder.is_file() or not tables(tmp_path)


def _raise_full(_: int) -> None:
    raise OSError(28, "No space left on device")


def test_the_last_used_tables_of_a_dataset_are_kept(local_url: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    other = write_mds(tmp_path / "other", DOCUMENTS[:5])
    open_at(other, cache)
    for number in range(10, 20):
        write_mds(local_url, DOCUMENTS[:number], shard_bytes=200)
        assert open_at(local_url, cache).shards.samples.sum() == number
        for table in tables(cache):
            use(table, table.stat().st_atime - opening._LEAST_UNUSED_S - 1)
    # old tables are removed before the newest one is written
    assert len(tables(cache)) == opening._MOST_OF_DATASET + 1


def use(table: Path, used_s: float) -> None:
    os.utime(table, (used_s, table.stat().st_mtime))


def test_the_last_used_tables_of_all_datasets_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / INDEXES_FOLDER
    folder.mkdir()
    names = [f"{number:016x}-{number:032x}.shards" for number in range(40)]
    for number, name in enumerate(names):
        (folder / name).touch()
        use(folder / name, time.time() - 7_200 - number)
    sweep_indexes(tmp_path)
    assert [table.name for table in tables(tmp_path)] == names[: opening._MOST_KEPT]
    use(folder / names[3], time.time() - 31 * 86_400)
    sweep_indexes(tmp_path)
    assert (folder / names[2]).exists()
    assert not (folder / names[3]).exists()


def test_a_table_that_is_about_to_be_mapped_is_not_removed(data: str, tmp_path: Path) -> None:
    shards = open_at(data, tmp_path).shards
    [table] = tables(tmp_path)
    use(table, 1)
    sent = pickle.dumps(shards)
    for number in range(40):
        (table.parent / f"{number:016x}-{number:032x}.shards").touch()
    sweep_indexes(tmp_path)
    assert list(pickle.loads(sent)) == list(shards)


def test_tables_are_marked_as_a_cache_and_are_not_shards(data: str, tmp_path: Path) -> None:
    open_at(data, tmp_path)
    assert len(tables(tmp_path)) == 1
    assert (tmp_path / INDEXES_FOLDER / TAG).is_file()
    assert not list(shard_files(tmp_path))


def test_tables_are_not_shared_on_a_network_file_system(
    data: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    parsed: list[int],
) -> None:
    monkeypatch.setattr("cloudload.system.machine.network_type", lambda _: "nfs4")
    for number in (1, 2):
        opened = open_at(data, tmp_path)
        assert opened.shards.samples.sum() == 80
        assert opened.shards.origin is None
        assert len(parsed) == number
    assert "network file system: nfs4" in caplog.text
    assert not (tmp_path / INDEXES_FOLDER).exists()


def test_a_table_that_another_process_wrote_without_the_lock_is_mapped_and_kept(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[int] = []

    def parse(content: bytes, dataset: str) -> Any:
        if not others:
            others.append(0)
            open_at(data, tmp_path)
            others[:] = [table.stat().st_ino for table in tables(tmp_path)]
        return parse_index(content, dataset)

    monkeypatch.setattr(
        "cloudload.system.file_locks.locked", lambda *_, **__: contextlib.nullcontext(True)
    )
    monkeypatch.setattr("cloudload.data.mds.open_index.parse_index", parse)
    origin = open_at(data, tmp_path).shards.origin
    assert origin is not None
    assert [origin.inode[1]] == others == [table.stat().st_ino for table in tables(tmp_path)]


def test_a_worker_that_is_not_forked_maps_the_table(data: str, tmp_path: Path) -> None:
    shards = open_at(data, tmp_path).shards
    wanted = list(shards)
    sent = pickle.dumps([shards, shards[1:3]])
    assert tables(tmp_path)[0].name.encode() in sent
    whole, part = pickle.loads(sent)
    assert (list(whole), list(part)) == (wanted, wanted[1:3])
    [table] = tables(tmp_path)
    table.unlink()
    with pytest.raises(CacheError, match="removed or changed"):
        pickle.loads(sent)
    # pickling a table also works after its file was removed
    whole, part = pickle.loads(pickle.dumps([shards, shards[1:3]]))
    assert (list(whole), list(part)) == (wanted, wanted[1:3])


def test_fingerprints_of_several_shared_indexes_are_computed_once(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [write_mds(f"{s3_url}/{number}", DOCUMENTS[number:30]) for number in (1, 2)]
    locations, whole = [Location(url, _RETRY) for url in urls], range(2)
    wanted = open_corpus(locations).fingerprint(whole)

    assert open_corpus(locations, tmp_path).fingerprint(whole) == wanted
    [kept] = (tmp_path / INDEXES_FOLDER).glob(f"*{SUFFIX}")
    swapped = open_corpus(locations[::-1], tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(fingerprints, "_hash", None)
        assert open_corpus(locations, tmp_path).fingerprint(whole) == wanted
    kept.write_bytes(kept.read_bytes()[:-1])
    assert open_corpus(locations, tmp_path).fingerprint(whole) == wanted
    kept.unlink()
    with monkeypatch.context() as patch:  # another process holds the lock for too long
        patch.setattr(
            "cloudload.system.file_locks.locked", lambda *_, **__: contextlib.nullcontext(False)
        )
        assert open_corpus(locations, tmp_path).fingerprint(whole) == wanted
    assert not kept.exists()
    assert swapped.fingerprint(whole) == open_corpus(locations[::-1]).fingerprint(whole)


@pytest.mark.parametrize(
    "start_method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.long)]
)
def test_rows_and_states_are_those_of_an_index_that_is_not_shared(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_method: str
) -> None:
    def read() -> tuple[list[Any], Any]:
        settings = {"local": tmp_path, "num_workers": 1, "start_method": start_method}
        with make_loader(data, **settings) as loader:
            batches = iter(loader)
            rows = [next(batches)["input_ids"].tolist() for _ in range(3)]
            return rows, loader.state_dict()

    shared = read()
    assert len(tables(tmp_path)) == 1
    monkeypatch.setattr(opening, "SHARED_FROM_BYTES", 1 << 40)
    assert read() == shared
