"""The ranks of a node request an index once, and no opening misses a new index."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from cloudload import CloudloadError, Retry
from cloudload.mds.open_index import INDEXES_FOLDER
from cloudload.storage import node_reads
from cloudload.storage.objects import read_object_version
from cloudload.system.file_locks import remove_orphans
from cloudload.system.verified_files import mark_verified
from tests.support.corpora import EOS, byte_tokenizer, random_documents, write_mds
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.loaders import make_loader

DOCUMENTS = random_documents(3, 80)
RANKS = 4
_FORK = multiprocessing.get_context("fork")


def open_samples(url: str, cache: Path, **settings: Any) -> int:
    """Open a loader; returns the number of samples that it sees."""
    with make_loader(url, local=cache, **settings) as loader:
        return loader.num_samples


def open_in_ranks(
    url: str, cache: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> list[int | str]:
    """Open a loader in each rank of a new job; returns what each sees, or its error."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(RANKS))
    barrier, queue = _FORK.Barrier(RANKS), _FORK.Queue()

    def work(rank: int) -> None:
        node_reads._openings.clear()  # as in a new process
        barrier.wait()
        time.sleep(0.05 * rank)
        world = {"dp_rank": rank, "dp_world_size": RANKS}
        try:
            queue.put(open_samples(url, cache, **world, **settings))
        except CloudloadError as error:
            queue.put(str(error))

    processes = [_FORK.Process(target=work, args=(rank,)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    found = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    return found


def test_the_ranks_of_a_node_request_each_object_once(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mds(s3_url, DOCUMENTS[:40], shard_bytes=2_000)
    for documents in (40, 40, 80):
        if documents > 40:
            write_mds(s3_url, DOCUMENTS, shard_bytes=2_000)
        s3_proxy.set_faults([])
        assert open_in_ranks(s3_url, tmp_path, monkeypatch) == [documents] * RANKS
        assert len(s3_proxy.requests("GET .*/index.json")) == 1
        lengths = s3_proxy.requests("GET .*/lengths/")
        assert [request.status for request in lengths] == [404]
        assert len(s3_proxy.requests()) == 2


def test_lengths_are_read_once_a_node(
    s3_url: str,
    s3_proxy: FaultProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tokenizer_folder: Path,
) -> None:
    from cloudload import count_tokens

    write_mds(s3_url, DOCUMENTS, shard_bytes=2_000)
    count_tokens(s3_url, tokenizer=str(tokenizer_folder), progress=False)
    s3_proxy.set_faults([])
    settings = {"tokenizer": str(tokenizer_folder), "eos": "auto", "lengths": "require"}
    assert open_in_ranks(s3_url, tmp_path, monkeypatch, **settings) == [80] * RANKS
    [lengths] = s3_proxy.requests("GET .*/lengths/")
    assert lengths.status == 200


@pytest.mark.parametrize("is_file", [False, True])
def test_a_tokenizer_by_name_is_asked_for_once_a_node(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_file: bool
) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_tokenizer().to_str())
    found = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), eos_token=EOS)

    def ask(name: str) -> tuple[Any, Path | None]:
        with (tmp_path / "asked").open("a") as log:
            log.write(f"{name}\n")
        return found, tmp_path if is_file else None

    monkeypatch.setattr("cloudload.tokenization.sources.load_by_name", ask)
    for job in (1, 2):
        settings = {"tokenizer": "some/name", "eos": EOS}
        assert open_in_ranks(folder, tmp_path / "cache", monkeypatch, **settings) == [60] * RANKS
        assert (tmp_path / "asked").read_text().splitlines() == ["some/name"] * job


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("place", ["s3", "local"])
def test_every_opening_of_a_process_sees_what_was_written_before_it(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    size: str,
) -> None:
    if size == "large":
        monkeypatch.setattr("cloudload.mds.open_index._SHARED_FROM_BYTES", 0)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(RANKS))
    url = request.getfixturevalue(f"{place}_url")
    for number in (30, 60, 20, 60):
        write_mds(url, DOCUMENTS[:number], shard_bytes=2_000)
        assert open_samples(url, tmp_path / "cache") == number
        assert open_samples(url, tmp_path / "cache") == number


def test_an_unchanged_index_is_not_transferred_again(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mds(s3_url, DOCUMENTS, shard_bytes=2_000)
    read: Callable[..., Any] = read_object_version
    sizes: list[int] = []

    def note_size(url: str, *arguments: Any) -> Any:
        data, version = read(url, *arguments)
        sizes.append(len(data))
        return data, version

    monkeypatch.setattr(node_reads, "read_object_version", note_size)
    monkeypatch.setattr(node_reads, "_SETTLED_S", -5.0)  # the server's clock has whole seconds
    for _ in range(3):
        assert open_samples(s3_url, tmp_path, lengths="off") == 80
    assert sizes[0] > 1_000
    assert sizes[1:] == [0, 0]
    # a file of the cache that was changed is made again
    [table] = (tmp_path / INDEXES_FOLDER).glob("*.shards")
    table.write_bytes(b"damaged")
    assert open_samples(s3_url, tmp_path, lengths="off") == 80
    assert sizes[3] == sizes[0]


def test_a_rank_that_is_killed_while_it_reads_the_index_holds_up_nobody(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    write_mds(s3_url, DOCUMENTS, shard_bytes=2_000)
    s3_proxy.set_faults([Fault("GET .*/index.json", "drop", times=1, seconds=60.0)])
    rank = _FORK.Process(target=open_samples, args=(s3_url, tmp_path))
    rank.start()
    while not list(tmp_path.glob(f"{INDEXES_FOLDER}/*.lock")):
        time.sleep(0.02)
    assert rank.pid is not None
    os.kill(rank.pid, signal.SIGKILL)
    rank.join()
    s3_proxy.set_faults([])
    assert open_samples(s3_url, tmp_path) == 80
    assert {path.suffix for path in (tmp_path / INDEXES_FOLDER).iterdir()} == {".note", ".shards"}


def test_ranks_that_start_meanwhile_leave_a_table_that_is_being_written(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mds(s3_url, DOCUMENTS, shard_bytes=2_000)
    parts: list[Path] = []

    def sweep_then_mark(part: Path) -> None:
        parts.append(part)
        remove_orphans(part.parent)  # as another rank does
        mark_verified(part)

    monkeypatch.setattr("cloudload.mds.shard_table.mark_verified", sweep_then_mark)
    assert open_samples(s3_url, tmp_path) == 80
    assert len(parts) == 1
    assert {path.suffix for path in (tmp_path / INDEXES_FOLDER).iterdir()} == {".note", ".shards"}


def test_ranks_that_wait_for_a_read_that_fails_share_its_error(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mds(s3_url, DOCUMENTS, shard_bytes=2_000)
    s3_proxy.set_faults([Fault("GET .*/index.json", "reset")])
    retry = Retry(timeout_s=1.0, deadline_s=3.0, pause_s=0.1)
    found = open_in_ranks(s3_url, tmp_path, monkeypatch, retry=retry)
    # each read of its own would name its number of attempts and seconds
    assert len(set(found)) == 1
    assert "index.json" in str(found[0])
    s3_proxy.set_faults([])
    assert open_in_ranks(s3_url, tmp_path, monkeypatch) == [80] * RANKS


def test_a_cache_folder_that_cannot_be_written_is_not_needed_to_open(
    s3_url: str, tmp_path: Path
) -> None:
    write_mds(s3_url, DOCUMENTS, shard_bytes=2_000)
    (tmp_path / INDEXES_FOLDER).write_text("a file")
    assert open_samples(s3_url, tmp_path) == 80


def test_old_indexes_are_removed(s3_url: str, tmp_path: Path) -> None:
    for number in range(12):
        write_mds(s3_url, DOCUMENTS[: 10 + number], shard_bytes=2_000)
        assert open_samples(s3_url, tmp_path) == 10 + number
    assert len(list((tmp_path / INDEXES_FOLDER).glob("*.shards"))) == 1 + node_reads._MOST_KEPT
    [note] = (tmp_path / INDEXES_FOLDER).glob("*.note")
    assert s3_url not in json.dumps(note.read_text())
