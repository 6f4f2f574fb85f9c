"""Parquet files in object stores are read in few requests, each node reads them once, and a store
that fails, or a file that changes, never gives other rows."""

from __future__ import annotations

import multiprocessing
import re
from pathlib import Path
from typing import Any

import pytest

from cloudload.convert import convert_to_mds, index_files
from cloudload.data.mds import row_groups, virtual_index
from cloudload.data.mds.dataset import Corpus, open_corpus
from cloudload.data.mds.virtual_index import ColumnChoice
from cloudload.data.storage.locations import Location
from cloudload.data.storage.urls import join_url
from cloudload.errors import DatasetError, StoreError
from testkit.fault_proxy import FaultProxy
from testkit.faulty_store import FaultyStore
from testkit.loaders import ids_of
from testkit.parquet_files import store_corpus, write_parquet
from testkit.shard_caches import DOCUMENTS, RETRY, loader_of, texts_of

NUM_FILES = 3
FILE = r"GET [^?]*part-\d+\.parquet"


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_index, "SHARD_BYTES", 8_000)
    row_groups._footers.clear()


def open_files(url: str, root: Path | None = None) -> Corpus:
    choice = ColumnChoice("text", has_others=False)
    return open_corpus([Location(url, RETRY)], root, choices=[choice])


def store(url: str, tmp_path: Path) -> Corpus:
    return open_files(store_corpus(url, DOCUMENTS, tmp_path / "copy", num_files=NUM_FILES))


def test_every_store_gives_the_same_rows(store_url: str, tmp_path: Path) -> None:
    store_corpus(store_url, DOCUMENTS, tmp_path / "copy")
    rows = []
    for data in (str(tmp_path / "copy"), store_url, f"{store_url}/*.parquet"):
        with loader_of(data, tmp_path / "cache", batch_size=8, num_workers=2) as loader:
            rows.append(ids_of(loader.take(4)))
    assert rows[0] == rows[1] == rows[2]


def test_an_index_is_a_request_per_file_and_a_shard_is_one_more(
    faulty: FaultyStore, tmp_path: Path
) -> None:
    store(faulty.url, tmp_path)
    before = len(faulty.proxy.requests(FILE))
    corpus = open_files(f"{faulty.url}/*.parquet", tmp_path / "cache")
    assert len(faulty.proxy.requests(FILE)) - before == NUM_FILES
    open_files(f"{faulty.url}/*.parquet", tmp_path / "cache")
    assert len(faulty.proxy.requests(FILE)) - before == NUM_FILES
    assert texts_of(corpus, tmp_path / "cache", threads=1) == DOCUMENTS
    shards = len(corpus.shard_sizes)
    assert shards > 2 * NUM_FILES
    requests = len(faulty.proxy.requests(FILE)) - before
    assert requests == NUM_FILES + shards + NUM_FILES  # the footers, ranges, and footers again


def test_the_processes_of_a_node_share_the_index_and_the_shards(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    store(s3_url, tmp_path)
    before = len(s3_proxy.requests(FILE))
    root, context = tmp_path / "cache", multiprocessing.get_context("fork")

    def read() -> None:
        assert texts_of(open_files(s3_url, root), root) == DOCUMENTS

    processes = [context.Process(target=read) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    shards = len(open_files(s3_url, root).shard_sizes)
    # each process reads the footers of the files whose shards it fetches
    requests = len(s3_proxy.requests(FILE)) - before
    assert NUM_FILES + shards < requests <= NUM_FILES + shards + 4 * NUM_FILES


@pytest.mark.parametrize("action", ["status", "reset", "truncate", "stall"])
def test_a_store_that_fails_now_and_then_gives_the_same_samples(
    faulty: FaultyStore, tmp_path: Path, action: str
) -> None:
    store(faulty.url, tmp_path)
    details: dict[str, Any] = {"seconds": 30.0} if action == "stall" else {}
    faulty.fail(r"GET .*\.parquet", action, times=4, at=200, **details)
    corpus = open_files(faulty.url)
    assert texts_of(corpus, tmp_path / "cache") == DOCUMENTS
    assert sum(each.action == action for each in faulty.proxy.requests()) == 4


@pytest.mark.parametrize(
    ("at", "fault"),
    [(0, "cannot be read as Parquet"), (200, "CRC checksum verification failed")],
    ids=["a header that Thrift cannot parse", "a text"],
)
def test_pages_that_arrive_damaged_are_read_again(
    faulty: FaultyStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, at: int, fault: str
) -> None:
    options = {"write_page_checksum": True, "compression": "none", "use_dictionary": False}
    url = store_corpus(faulty.url, DOCUMENTS, tmp_path / "copy", **options)
    corpus = open_files(url)
    faulty.fail(r"GET .*\.parquet", "corrupt", times=1, skip=1, at=at)  # after the footer
    assert texts_of(corpus, tmp_path / "cache", threads=1) == DOCUMENTS
    assert any(each.action == "corrupt" for each in faulty.proxy.requests())
    assert re.search(f"part-000.* {fault}.*Fetching it again", caplog.text)


def test_a_footer_that_arrives_damaged_is_read_again(
    faulty: FaultyStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = store(faulty.url, tmp_path)
    faulty.fail(r"GET .*\.parquet", "corrupt", times=1, at=20)
    assert texts_of(corpus, tmp_path / "cache", threads=1) == DOCUMENTS
    assert re.search(r"its footer has the hash \w+, but the index says \w+", caplog.text)


def test_a_file_that_changes_during_a_run_is_named_with_both_versions(
    faulty: FaultyStore, tmp_path: Path
) -> None:
    corpus = store(faulty.url, tmp_path)
    path = write_parquet(tmp_path / "new.parquet", [{"id": "d0", "text": "new"}])
    changed = Location(join_url(faulty.url, "part-001.parquet"))
    [before] = changed.list_objects()
    changed.write(path.read_bytes())
    [after] = changed.list_objects()
    message = rf"part-001\.parquet changed .* its version was {before.tag}, and is now {after.tag}"
    with pytest.raises(StoreError, match=message):
        texts_of(corpus, tmp_path / "cache")


def test_a_file_that_vanishes_during_a_run_is_named(faulty: FaultyStore, tmp_path: Path) -> None:
    corpus = store(faulty.url, tmp_path)
    Location(join_url(faulty.url, "part-002.parquet")).delete()
    with pytest.raises(StoreError, match=r"part-002\.parquet.*does not exist") as caught:
        texts_of(corpus, tmp_path / "cache")
    assert caught.value.is_missing


def test_a_stored_index_is_one_request_and_its_files_are_in_another_folder(
    faulty: FaultyStore, tmp_path: Path
) -> None:
    store(f"{faulty.url}/raw", tmp_path)
    index = f"{faulty.url}/index"
    assert index_files(f"{faulty.url}/raw", index, retry=RETRY).samples == len(DOCUMENTS)
    faulty.proxy.set_faults([])
    corpus = open_files(index)
    [read] = faulty.proxy.requests("GET")
    assert "index.json" in read.line
    assert texts_of(corpus, tmp_path / "cache") == DOCUMENTS


def test_a_run_continues_on_copies_in_every_store(store_url: str, tmp_path: Path) -> None:
    store_corpus(f"{store_url}/raw", DOCUMENTS, tmp_path / "copy", num_files=NUM_FILES)
    index_files(f"{store_url}/raw", f"{store_url}/index")
    options: dict[str, Any] = {"segment_bytes": 9_000, "progress": False, "processes": 1}
    report = convert_to_mds([], f"{store_url}/mds", like=f"{store_url}/index", **options)
    assert (report.documents, report.segments > 2) == (len(DOCUMENTS), True)
    assert convert_to_mds(
        [], f"{store_url}/mds", like=f"{store_url}/index", **options
    ).already_complete
    settings: dict[str, Any] = {"batch_size": 8, "num_workers": 0, "num_lanes": 8}
    with loader_of(f"{store_url}/raw", tmp_path / "cache", **settings) as loader:
        ids_of(loader.take(3))
        state, expected = loader.state_dict(), ids_of(loader)
    with loader_of(f"{store_url}/mds", tmp_path / "cache", **settings) as loader:
        loader.load_state_dict(state)
        assert ids_of(loader) == expected


def test_a_folder_without_an_index_is_listed_once_before_its_error(faulty: FaultyStore) -> None:
    Location(join_url(faulty.url, "raw/a.jsonl")).write(b"{}\n")
    faulty.proxy.set_faults([])
    with pytest.raises(DatasetError, match="is not an MDS dataset, because it has no"):
        open_files(f"{faulty.url}/raw")
    lists = [each for each in faulty.proxy.requests("GET") if "delimiter" in each.line]
    assert len(lists) == 1


def test_an_index_in_a_store_may_not_name_files_of_this_machine(
    s3_url: str, tmp_path: Path
) -> None:
    store_corpus(s3_url, DOCUMENTS, tmp_path / "copy")
    index_files(tmp_path / "copy", s3_url, retry=RETRY)
    with pytest.raises(
        DatasetError, match="an index in a store may not name files of this machine"
    ):
        open_files(s3_url)


def test_a_folder_without_parquet_and_a_glob_that_matches_nothing_are_explained(
    faulty: FaultyStore, tmp_path: Path
) -> None:
    store(faulty.url, tmp_path)
    with pytest.raises(DatasetError, match=r"found no Parquet files in .*/x-\*\.parquet"):
        open_files(f"{faulty.url}/x-*.parquet")
    with pytest.raises(StoreError, match="nothing is stored in"):
        open_files(f"{faulty.url}/missing")
