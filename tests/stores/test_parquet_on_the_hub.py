"""Parquet files on the Hugging Face Hub are read from the commit that a run began with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import pytest

from cloudload.convert import index_files
from cloudload.data.mds import row_groups
from cloudload.data.mds.dataset import Corpus, open_corpus
from cloudload.data.mds.virtual_index import ColumnChoice
from cloudload.data.storage import hub as hub_module
from cloudload.data.storage.locations import Location
from cloudload.errors import StoreError
from testkit.fake_hub import FakeHub, fake_hub
from testkit.parquet_files import write_corpus
from testkit.shard_caches import DOCUMENTS, RETRY, texts_of

OLD, NEW = "a" * 40, "b" * 40
NEW_DOCUMENTS = [f"new {text}" for text in DOCUMENTS]
DATA = "hf://datasets/owner/name/data/*.parquet"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    """A Hub with a dataset. There is one for all tests, because the Hub's client keeps its URL."""
    pytest.importorskip("fsspec")
    commits, constants = {}, huggingface_hub.constants
    for commit, documents in ((OLD, DOCUMENTS), (NEW, NEW_DOCUMENTS)):
        folder = write_corpus(tmp_path_factory.mktemp("files"), documents, num_files=2)
        commits[commit] = {f"data/{path.name}": path.read_bytes() for path in folder.iterdir()}
    with fake_hub("owner/name", commits) as found, pytest.MonkeyPatch.context() as patch:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE
        template = template.replace(constants.ENDPOINT, found.endpoint)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr(constants, "ENDPOINT", found.endpoint)
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        hub_module.check_connection.cache_clear()
        yield found
    hub_module.check_connection.cache_clear()
    forget()


@pytest.fixture
def hub(server: FakeHub) -> FakeHub:
    """The Hub, with the main branch of its dataset at the commit `OLD`."""
    server.main = OLD
    server.requests.clear()
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
    hub.requests.clear()
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
