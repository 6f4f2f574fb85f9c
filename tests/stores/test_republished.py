"""Data without hashes is republished with shards of equal sizes, so its index does not change.
Readers of the new data get no old shards from a cache, and mixing old and new data is an error."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader
from cloudload.data.cache.cache_folder import STARTED
from cloudload.data.cache.shard_cache import ShardCache
from cloudload.data.mds.dataset import Corpus, open_corpus
from cloudload.data.storage.locations import Location
from cloudload.errors import DatasetError
from cloudload.testing import Leg, run_leg
from testkit.corpora import write_mds
from testkit.fault_proxy import FaultProxy
from testkit.loaders import make_loader
from testkit.shard_caches import DOCUMENTS, RETRY, texts_of
from testkit.web_server import web_server

CHANGED = [text.upper() for text in DOCUMENTS]
STORED = "gz:0"
"""gzip level 0, which does not compress, so texts of equal sizes have shards of equal sizes."""


def publish(url: str, documents: list[str], compression: str | None = None) -> Corpus:
    write_mds(url, documents, shard_bytes=4_000, hashes=(), compression=compression)
    return reopen(url)


def republish(url: str, documents: list[str], compression: str | None = None) -> None:
    """Publish other documents of the same sizes, and check that the index does not change."""
    wait_for_the_next_second()
    before = Location(f"{url}/index.json").read()
    write_mds(url, documents, shard_bytes=4_000, hashes=(), compression=compression)
    assert Location(f"{url}/index.json").read() == before, "the index must not show the change"


def reopen(url: str) -> Corpus:
    return open_corpus([Location(url, RETRY)])


def wait_for_the_next_second() -> None:
    """Wait for the next second, because stores round times down to seconds."""
    second = int(time.time())
    while int(time.time()) == second:
        time.sleep(0.02)


@pytest.fixture(params=["local", "s3", "gcs", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str | None]:
    """A location in a store that reports when an object was written, and the shards' compression.

    Local shards are compressed, because raw local shards are read in place and not cached."""
    if request.param == "memory":
        pytest.importorskip("fsspec")
        return f"memory://{tmp_path.name}", None
    url = str(request.getfixturevalue(f"{request.param}_url"))
    return url, STORED if request.param == "local" else None


def test_an_old_cache_is_not_read(place: tuple[str, str | None], tmp_path: Path) -> None:
    url, compression = place
    root = tmp_path / "cache"
    old = publish(url, DOCUMENTS, compression)
    assert texts_of(old, root) == DOCUMENTS
    republish(url, CHANGED, compression)
    assert texts_of(reopen(url), root) == CHANGED
    assert texts_of(old, root) == DOCUMENTS, (
        "a job that is still running must have all of the old data"
    )


def test_an_old_cache_of_a_web_server_is_not_read(tmp_path: Path) -> None:
    folder, root = tmp_path / "web", tmp_path / "cache"
    with web_server(folder) as url:
        write_mds(folder, DOCUMENTS, shard_bytes=4_000, hashes=())
        assert texts_of(reopen(url), root) == DOCUMENTS
        republish(str(folder), CHANGED)
        assert texts_of(reopen(url), root) == CHANGED


def test_an_unchanged_cache_is_read_without_a_request(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    assert texts_of(publish(s3_url, DOCUMENTS), tmp_path) == DOCUMENTS
    s3_proxy.set_faults([])
    wait_for_the_next_second()
    assert texts_of(reopen(s3_url), tmp_path) == DOCUMENTS
    assert s3_proxy.requests("shard") == []
    assert len(s3_proxy.requests("index")) == 1


def test_data_published_again_in_the_middle_of_a_run_is_refused_by_name(
    place: tuple[str, str | None], tmp_path: Path
) -> None:
    url, compression = place
    root = tmp_path / "cache"
    cache = ShardCache(publish(url, DOCUMENTS, compression), root, verify="once")
    for number in (0, 1, 2):
        cache.shard(number)
    republish(url, CHANGED, compression)
    refusal = r"shard\.00003\.mds\S* has no hash in the index, and was written \(.*UTC\) after the"
    with pytest.raises(DatasetError, match=refusal):
        cache.shard(3)
    assert cache.shard(2).read_bytes(0, 0).decode() in DOCUMENTS
    cache.close()
    mixed = texts_of(cache._corpus, root, verify="off")
    assert mixed[0] == DOCUMENTS[0]
    assert mixed[-1] == CHANGED[-1], "verify='off' must not detect the change"
    assert texts_of(reopen(url), root) == CHANGED, "after a restart, no old data may be left"


def test_a_restart_before_the_new_index_is_written_is_refused_too(
    s3_url: str, tmp_path: Path
) -> None:
    cache = ShardCache(publish(s3_url, DOCUMENTS), tmp_path, verify="once")
    cache.shard(0)
    cache.close()
    wait_for_the_next_second()
    last = Location(s3_url).list_objects()[-1].url
    Location(last).write(Location(last).read())
    wait_for_the_next_second()
    with pytest.raises(DatasetError, match="delete the cache folder first") as refusal:
        texts_of(reopen(s3_url), tmp_path)
    [folder] = {path.parent for path in tmp_path.rglob(STARTED)}
    assert str(folder) in str(refusal.value)
    shutil.rmtree(folder)
    assert texts_of(reopen(s3_url), tmp_path) == DOCUMENTS


def test_local_data_that_is_read_in_place_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "mds"
    cache = ShardCache(publish(str(folder), DOCUMENTS), tmp_path / "cache", verify="once")
    cache.shard(0)
    republish(str(folder), CHANGED)
    with pytest.raises(DatasetError, match=r"mds/shard\.00004\.mds has no hash .* index.json was"):
        cache.shard(4)
    cache.close()
    assert texts_of(cache._corpus, tmp_path / "cache", verify="off") == CHANGED
    assert texts_of(reopen(str(folder)), tmp_path / "cache") == CHANGED


def test_the_refusal_of_a_worker_reaches_the_training_loop(tmp_path: Path) -> None:
    url = str(tmp_path / "mds")
    publish(url, DOCUMENTS, STORED)
    settings = {"num_workers": 2, "shuffle": False, "predownload": 1, "prefetch_batches": 1}
    with loader_of(url, tmp_path / "cache", **settings, num_canonical_nodes=1) as loader:
        batches = iter(loader)
        next(batches)
        republish(url, CHANGED, STORED)
        with pytest.raises(DatasetError, match=r"mds/shard\.\d+\.mds\.gz has no hash in the index"):
            list(itertools.islice(batches, 1_000))


def test_a_copy_whose_index_is_older_than_its_shards_is_read(s3_url: str, tmp_path: Path) -> None:
    publish(s3_url, DOCUMENTS)
    wait_for_the_next_second()
    for item in Location(s3_url).list_objects():
        if not item.url.endswith("index.json"):
            Location(item.url).write(Location(item.url).read())
    for root in (tmp_path / "one", tmp_path / "two"):
        assert texts_of(reopen(s3_url), root) == DOCUMENTS


def test_data_with_hashes_may_be_written_again_while_it_is_read(
    s3_url: str, tmp_path: Path
) -> None:
    write_mds(s3_url, DOCUMENTS, shard_bytes=4_000)
    corpus = reopen(s3_url)
    wait_for_the_next_second()
    write_mds(s3_url, DOCUMENTS, shard_bytes=4_000)
    assert texts_of(corpus, tmp_path) == DOCUMENTS
    assert not list(tmp_path.rglob(STARTED))


def test_what_marks_a_folder_is_not_evicted(s3_url: str, tmp_path: Path) -> None:
    corpus = publish(s3_url, DOCUMENTS)
    largest = max(shard.raw.bytes for shard in corpus.datasets[0].shards)
    assert texts_of(corpus, tmp_path, limit_bytes=4 * largest) == DOCUMENTS
    assert len(list(tmp_path.rglob(STARTED))) == 1


# ---------------------------------------------------------------- the warning, and states


def loader_of(url: str, root: Path, **settings: Any) -> CloudLoader:
    return make_loader(url, local=root, seq_len=64, num_lanes=6, **{"batch_size": 2, **settings})


@pytest.fixture
def silent_store(tmp_path: Path) -> str:
    """A dataset's URL in an fsspec file system that reports only the size of an open file."""
    fsspec = pytest.importorskip("fsspec")
    from fsspec.implementations.local import LocalFileSystem

    class Silent(LocalFileSystem):  # type: ignore[misc]
        protocol = "silent"

        @classmethod
        def _strip_protocol(cls, path: Any) -> str:
            return str(super()._strip_protocol(str(path).removeprefix("silent://")))

    fsspec.register_implementation("silent", Silent, clobber=True)
    publish(str(tmp_path / "data"), DOCUMENTS)
    return f"silent://{tmp_path}/data"


def test_the_first_open_warns_of_missing_hashes_and_says_what_they_are_for(
    s3_url: str, silent_store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    number = len(publish(s3_url, DOCUMENTS).datasets[0].shards)
    for url, effect in (
        (s3_url, "only if index.json is also written again"),
        (silent_store, "The cache continues to use the old shards"),
    ):
        caplog.clear()
        loader_of(url, tmp_path / "cache").close()
        [message] = [each.message for each in caplog.records if each.levelno == logging.WARNING]
        assert f"{url}: {number} of {number} shards have no hash in the index" in message
        assert effect in message
        assert "MDSWriter(hashes=['xxh64'])" in message


def test_data_with_hashes_and_other_ranks_do_not_warn(
    local_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    write_mds(local_url, DOCUMENTS)
    loader_of(local_url, tmp_path / "cache").close()
    publish(f"{local_url}-2", DOCUMENTS)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader_of(f"{local_url}-2", tmp_path / "cache").close()
    assert "no hash" not in caplog.text


def test_a_state_does_not_depend_on_when_the_data_was_written(tmp_path: Path) -> None:
    publish(str(tmp_path / "one"), DOCUMENTS)
    shutil.copytree(tmp_path / "one", tmp_path / "two", copy_function=shutil.copyfile)
    os.utime(tmp_path / "two" / "index.json", (1, 1))

    one, two = (
        partial(loader_of, str(tmp_path / name), tmp_path / "cache") for name in ("one", "two")
    )
    rows, states = run_leg(one, Leg(batches=8))
    rest, _ = run_leg(two, Leg(batches=4), states[4])
    assert rest == rows[states[4]["rows"] :]
