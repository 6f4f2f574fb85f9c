"""JSON Lines files in object stores are indexed in one pass, read in one request per shard, and a
store that fails, a file that changes, or a process that is killed never gives other rows."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from cloudload.data.mds.dataset import Corpus, open_corpus
from cloudload.data.storage.locations import Location
from cloudload.data.storage.urls import join_url
from cloudload.errors import DatasetError, StoreError
from cloudload.tools.convert import line_index
from testkit.faulty_store import FaultyStore
from testkit.line_files import encode_lines, index, store_line_corpus
from testkit.loaders import ids_of, rows_of
from testkit.shard_caches import DOCUMENTS, RETRY, loader_of, texts_of

NUM_FILES = 3
FILE = r"GET [^?]*part-\d+\.jsonl"
SUFFIXES = pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_index, "SHARD_BYTES", 8_000)


def store(url: str, tmp_path: Path, suffix: str = ".jsonl") -> str:
    """Store files below a URL, index them there, and return the location of the index."""
    files = join_url(url, "raw")
    store_line_corpus(files, DOCUMENTS, tmp_path / "copy", num_files=NUM_FILES, suffix=suffix)
    return index(files, join_url(url, "index"), retry=RETRY)


def open_index(url: str) -> Corpus:
    return open_corpus([Location(url, RETRY)])


@SUFFIXES
def test_every_store_gives_the_same_rows(store_url: str, tmp_path: Path, suffix: str) -> None:
    stored = store(store_url, tmp_path, suffix)
    rows = []
    for data in (stored, index(tmp_path / "copy", tmp_path / "index")):
        with loader_of(data, tmp_path / "cache", batch_size=8, num_workers=2) as loader:
            rows.append(ids_of(loader.take(4)))
    assert rows[0] == rows[1]


@SUFFIXES
def test_a_shard_is_one_request(faulty: FaultyStore, tmp_path: Path, suffix: str) -> None:
    corpus = open_index(store(faulty.url, tmp_path, suffix))
    before = len(faulty.proxy.requests(FILE))
    assert texts_of(corpus, tmp_path / "cache", threads=1) == DOCUMENTS
    assert len(faulty.proxy.requests(FILE)) - before == len(corpus.shard_sizes)
    assert (len(corpus.shard_sizes) > 2 * NUM_FILES) == (suffix == ".jsonl")


@pytest.mark.parametrize("action", ["status", "reset", "truncate", "stall"])
def test_a_store_that_fails_now_and_then_gives_the_same_index_and_samples(
    faulty: FaultyStore, tmp_path: Path, action: str
) -> None:
    stored = store(faulty.url, tmp_path)
    expected = Location(join_url(stored, "index.json")).read()
    details: dict[str, Any] = {"seconds": 30.0} if action == "stall" else {}
    faulty.fail(FILE, action, times=4, at=200, **details)
    again = index(join_url(faulty.url, "raw"), join_url(faulty.url, "again"), retry=RETRY)
    assert Location(join_url(again, "index.json")).read() == expected
    assert sum(each.action == action for each in faulty.proxy.requests()) == 4
    faulty.fail(FILE, action, times=4, at=200, **details)
    assert texts_of(open_index(stored), tmp_path / "cache") == DOCUMENTS


@SUFFIXES
def test_bytes_that_arrive_damaged_are_read_again(
    faulty: FaultyStore, tmp_path: Path, suffix: str
) -> None:
    corpus = open_index(store(faulty.url, tmp_path, suffix))
    faulty.fail(FILE, "corrupt", times=1, at=100)
    assert texts_of(corpus, tmp_path / "cache", threads=1) == DOCUMENTS
    assert any(each.action == "corrupt" for each in faulty.proxy.requests())
    faulty.fail(FILE, "corrupt", times=2, at=100)
    with pytest.raises(DatasetError, match=r"part-000\.jsonl.* This was the second invalid downl"):
        texts_of(corpus, tmp_path / "other", threads=1)


def test_a_file_that_changes_during_a_run_is_named_with_both_versions(
    faulty: FaultyStore, tmp_path: Path
) -> None:
    corpus = open_index(store(faulty.url, tmp_path))
    changed = Location(join_url(faulty.url, "raw/part-001.jsonl"))
    [before] = changed.list_objects()
    changed.write(changed.read() + encode_lines([{"text": "more"}]))
    [after] = changed.list_objects()
    message = rf"part-001\.jsonl changed .* its version was {before.tag}, and is now {after.tag}"
    with pytest.raises(StoreError, match=message):
        texts_of(corpus, tmp_path / "cache")


def test_a_file_that_vanishes_during_a_run_is_named(faulty: FaultyStore, tmp_path: Path) -> None:
    corpus = open_index(store(faulty.url, tmp_path))
    Location(join_url(faulty.url, "raw/part-002.jsonl")).delete()
    with pytest.raises(StoreError, match=r"part-002\.jsonl.*does not exist") as caught:
        texts_of(corpus, tmp_path / "cache")
    assert caught.value.is_missing


def test_commands_read_an_index_in_a_store(
    store_url: str, tmp_path: Path, tokenizer_folder: Path, cli: Any
) -> None:
    stored = store(store_url, tmp_path)
    shown = cli("head", stored, "--json", "-n", 5).out.splitlines()
    assert [json.loads(line)["values"]["text"] for line in shown] == DOCUMENTS[:5]
    flags = ["--tokenizer", tokenizer_folder, "--quiet"]
    cli("count", stored, *flags, "--processes", 1)
    flags += ["--data", stored, "--seq-len", 16, "--json"]
    plan = json.loads(cli("plan", *flags, "--batch-size", 4, "--epochs", 1, "--no-measure").out)
    assert plan["basis"] == "token lengths"
    found = json.loads(cli("fetch", *flags, "--local", tmp_path / "cache").out)
    assert found["shards"] == len(open_index(stored).shard_sizes)


@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_a_run_that_was_killed_resumes_with_the_rows_that_it_would_have_read(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    stored = store(request.getfixturevalue(f"{kind}_url"), tmp_path)
    root, settings = tmp_path / "cache", {"batch_size": 4, "num_workers": 2}

    def train() -> None:
        with loader_of(stored, root, **settings) as loader:
            for step, batch in enumerate(loader, 1):
                done = {"state": loader.state_dict(), "rows": batch["input_ids"].tolist()}
                (tmp_path / f"{step}.json").write_text(json.dumps(done))
                if step == 3:
                    os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=train)
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    with loader_of(stored, tmp_path / "fresh", **settings) as loader:
        expected = rows_of(loader.take(8))
    saved = [json.loads((tmp_path / f"{step}.json").read_text()) for step in (1, 2, 3)]
    with loader_of(stored, root, **settings) as loader:
        loader.load_state_dict(saved[-1]["state"])
        rest = rows_of(loader.take(5))
    assert [row for each in saved for row in each["rows"]] + rest == expected
