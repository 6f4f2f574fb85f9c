"""Selections in object stores are those of a folder, and only shards with selected documents are
requested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudload import Stream, select_documents
from cloudload.data.selections import files
from cloudload.data.storage.locations import Location
from cloudload.data.storage.urls import join_url
from cloudload.errors import DatasetError, StoreError, StreamChangedError
from testkit.conversions import QUIET
from testkit.corpora import write_mds
from testkit.fault_proxy import Fault
from testkit.faulty_store import FaultyStore
from testkit.loaders import ids_of, make_loader
from testkit.shard_caches import RETRY

SIZE, OF_SHARD = 120, 20
SHARD = r"GET [^?]*shard\.\d+\.mds"


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "GROUP_SAMPLES", 50)


def store(url: str) -> str:
    """Write documents in shards of 20, whose scores are their indices."""
    texts = [f"document {number} " * (1 + number % 5) for number in range(SIZE)]
    extra = {"score": ("int", [*range(SIZE)])}
    return write_mds(url, texts, shard_samples=[OF_SHARD] * (SIZE // OF_SHARD), extra=extra)


def samples_of(loader: Any) -> set[int]:
    with loader:
        return {int(row[3]) for batch in loader for row in batch.spans.tolist()}


def test_a_selection_in_a_store_is_that_of_a_folder(store_url: str, tmp_path: Path) -> None:
    where, rows, states = "score >= 30 and score < 35 or score = 101", [], []
    for number, url in enumerate((str(tmp_path / "data"), store_url)):
        report = select_documents(store(url), "good", where=where, **QUIET)
        assert report is not None
        assert (report.selected, report.groups, report.read_shards) == (6, 2, 2)
        again = select_documents(url, "good", where=where, **QUIET)
        assert again is not None
        assert again.compiled_groups == 0
        stream, cache = Stream(url, select="good"), tmp_path / f"cache-{number}"
        with make_loader(stream, epochs=1, local=cache, num_workers=2) as loader:
            rows.append(ids_of(loader))
            assert (loader.stats().documents, loader.stats().deselected) == (6, 114)
            states.append(loader.state_dict()["select"])
    assert rows[0] == rows[1]
    assert states[0] == states[1]


def test_a_selection_and_lists_elsewhere_in_a_store_are_found(
    store_url: str, tmp_path: Path
) -> None:
    data, other = store(join_url(store_url, "data")), join_url(store_url, "other")
    ids, drop = join_url(other, "keep.csv"), join_url(other, "drop.csv")
    Location(ids).write(b"shard,index\n0,3\n2,7\n5,19\n")
    Location(drop).write(b"shard,index\nshard.00002.mds,7\n")
    select_documents(data, "few", keep=ids, out=other, **QUIET)
    local: dict[str, Any] = {"epochs": 1, "local": tmp_path / "cache"}
    for select in (join_url(other, "few"), ids):
        assert samples_of(make_loader(Stream(data, select=select), **local)) == {3, 47, 119}
        stream = Stream(data, select=select, drop=drop)
        assert samples_of(make_loader(stream, **local)) == {3, 119}
    with pytest.raises(StoreError, match=r"other/none\.csv"):
        make_loader(Stream(data, drop=join_url(other, "none.csv")), **local)
    with pytest.raises(DatasetError, match=r"found no selection in .*data/selections/none"):
        make_loader(Stream(data, select="none"), **local)


def test_only_shards_with_selected_documents_are_requested(
    faulty: FaultyStore, tmp_path: Path
) -> None:
    store(faulty.url)
    select_documents(faulty.url, "good", where="score > 90", **QUIET)
    before = len(faulty.proxy.requests(SHARD))
    stream = Stream(faulty.url, select="good")
    loader = make_loader(stream, epochs=1, local=tmp_path / "cache")
    assert samples_of(loader) == set(range(91, SIZE))
    requested = {each.line.split("shard.")[1][:5] for each in faulty.proxy.requests(SHARD)[before:]}
    assert requested == {"00004", "00005"}


def test_a_store_that_fails_at_times_gives_the_same_selection(
    faulty: FaultyStore, tmp_path: Path
) -> None:
    store(faulty.url)
    faults = [Fault("(PUT|POST) ", "status", times=2), Fault(SHARD, "reset", times=2)]
    faulty.proxy.set_faults(faults)
    select_documents(faulty.url, "good", where="score < 5", retry=RETRY, **QUIET)
    assert len([each for each in faulty.proxy.requests() if each.action]) == 4
    faulty.fail(r"GET .*\.bits", "status", times=2)
    loader = make_loader(
        Stream(faulty.url, select="good"), epochs=1, local=tmp_path / "cache", retry=RETRY
    )
    assert samples_of(loader) == set(range(5))


def test_a_selection_that_was_compiled_again_is_refused_on_resume_unless_accepted(
    store_url: str, tmp_path: Path
) -> None:
    store(store_url)
    options: dict[str, Any] = {"local": tmp_path / "cache", "packing": "best_fit"}
    stream = Stream(store_url, select="good")
    select_documents(store_url, "good", where="score >= 20", **QUIET)
    with make_loader(stream, **options) as loader:
        list(loader.take(3))
        state = loader.state_dict()
        expected = ids_of(loader.take(3))
    with make_loader(stream, **options) as loader:
        loader.load_state_dict(state)
        assert ids_of(loader.take(3)) == expected
    with pytest.raises(DatasetError, match="good"):
        select_documents(store_url, "good", where="score >= 60", **QUIET)
    select_documents(store_url, "good", where="score >= 60", again=True, **QUIET)
    with make_loader(stream, **options) as loader:
        with pytest.raises(StreamChangedError, match=r"on_change={'select': 'accept'}"):
            loader.load_state_dict(state)
        loader.load_state_dict(state, on_change={"select": "accept"})
        later = {int(row[3]) for batch in loader.take(40) for row in batch.spans.tolist()}
    assert later < set(range(60, SIZE))
    assert len(later) > 30
