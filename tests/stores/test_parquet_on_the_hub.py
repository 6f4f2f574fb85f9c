"""Parquet files on the Hugging Face Hub are read from the commit that a run began with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest

from cloudload.convert import index_files
from cloudload.data.mds import row_groups
from cloudload.data.mds.dataset import Corpus, open_corpus
from cloudload.data.mds.virtual_index import ColumnChoice
from cloudload.data.storage.locations import Location
from cloudload.errors import StoreError
from testkit.fake_hub import FakeHub, as_the_hub
from testkit.parquet_files import write_corpus
from testkit.shard_caches import DOCUMENTS, RETRY, texts_of

OLD, NEW = "a" * 40, "b" * 40
NEW_DOCUMENTS = [f"new {text}" for text in DOCUMENTS]
DATA = "hf://datasets/owner/name/data/*.parquet"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, hub_server: FakeHub) -> Iterator[FakeHub]:
    """A Hub with a dataset."""
    pytest.importorskip("fsspec")
    commits = {}
    for commit, documents in ((OLD, DOCUMENTS), (NEW, NEW_DOCUMENTS)):
        folder = write_corpus(tmp_path_factory.mktemp("files"), documents, num_files=2)
        commits[commit] = {f"data/{path.name}": path.read_bytes() for path in folder.iterdir()}
    hub_server.datasets["owner/name"], hub_server.repo = commits, "owner/name"
    with as_the_hub(hub_server):
        yield hub_server


@pytest.fixture
def hub(server: FakeHub) -> FakeHub:
    """The Hub, with the main branch of its dataset at the commit `OLD`."""
    server.main = OLD
    server.site.lines.clear()
    row_groups._footers.clear()
    forget()
    return server


def open_files(url: str, root: Path | None = None) -> Corpus:
    choice = ColumnChoice("text", has_others=False)
    return open_corpus([Location(url, RETRY)], root, choices=[choice])


def forget() -> None:
    """Forget what this process knows of the Hub, as a new process does."""
    huggingface_hub.HfFileSystem.clear_instance_cache()


def test_a_run_reads_the_commit_that_it_began_with(hub: FakeHub, tmp_path: Path) -> None:
    corpus = open_files(DATA, tmp_path / "cache")
    assert OLD in corpus.datasets[0].url
    hub.main = NEW
    forget()
    assert texts_of(corpus, tmp_path / "cache") == DOCUMENTS
    reads = [each for each in hub.requests if "/resolve/" in each]
    assert all(f"/resolve/{OLD}/" in each for each in reads)
    assert texts_of(open_files(DATA, tmp_path / "cache"), tmp_path / "cache") == NEW_DOCUMENTS


@pytest.mark.parametrize("revision", ["main", OLD])
def test_a_revision_in_the_location_is_read(hub: FakeHub, tmp_path: Path, revision: str) -> None:
    hub.main = NEW
    corpus = open_files(DATA.replace("name/", f"name@{revision}/"))
    expected = NEW_DOCUMENTS if revision == "main" else DOCUMENTS
    assert texts_of(corpus, tmp_path / "cache") == expected


def test_the_index_of_a_commit_is_made_once(hub: FakeHub, tmp_path: Path) -> None:
    open_files(DATA, tmp_path / "cache")
    hub.site.lines.clear()
    open_files(DATA, tmp_path / "cache")
    assert not any("/resolve/" in each for each in hub.requests)


def test_a_stored_index_names_the_commit(hub: FakeHub, tmp_path: Path) -> None:
    index_files(DATA, tmp_path / "index", retry=RETRY)
    hub.main = NEW
    forget()
    assert texts_of(open_files(str(tmp_path / "index")), tmp_path / "cache") == DOCUMENTS


def test_a_dataset_that_does_not_exist_is_named(hub: FakeHub) -> None:
    with pytest.raises(StoreError, match=r"hf://datasets/owner/other/\*\.parquet"):
        open_files("hf://datasets/owner/other/*.parquet")
    assert hub.requests
