"""Opening raw data in a store raises the same error as in a local folder, after few requests. If
the store denies a request, its own error is raised instead."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader, FromStart, Stream, convert_to_mds
from cloudload.data.storage.objects import write_object
from cloudload.data.storage.urls import join_url
from cloudload.errors import ConvertError, DatasetError, StoreError
from testkit.corpora import write_mds
from testkit.fault_proxy import FaultProxy
from testkit.loaders import make_loader
from testkit.web_server import web_server


def put(url: str, *names: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: write_object(join_url(url, name), b'{"text": "a"}'), names))


def answer(data: Any) -> str:
    with pytest.raises(DatasetError) as caught:
        make_loader(data)
    return str(caught.value)


def test_raw_files_are_answered_with_a_command_that_converts_them(store_url: str, cli: Any) -> None:
    put(store_url, "a.jsonl", "b.jsonl", "deep/c.jsonl")
    said, command = answer(store_url).split("Run: cloudload ")
    assert "Found 3 .jsonl." in said
    assert command == f"convert {store_url} {store_url}-mds"
    cli(*command.split(), "--quiet")
    assert make_loader(f"{store_url}-mds").num_samples == 3


def test_a_single_file_is_answered(store_url: str) -> None:
    put(store_url, "a.jsonl.zst", "index.json")
    assert f"Run: cloudload convert {store_url}/a.jsonl.zst {store_url}/a-mds" in answer(
        f"{store_url}/a.jsonl.zst"
    )
    assert f"Pass its folder: {store_url}" in answer(f"{store_url}/index.json")


def test_a_web_server_is_answered_like_a_store(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    with web_server(tmp_path / "web") as url:
        put(str(tmp_path / "web" / "corpus"), "a.jsonl", "b.jsonl")
        assert f"cloudload convert {url}/corpus corpus-mds" in answer(f"{url}/corpus")
        assert f"cloudload convert {url}/corpus/a.jsonl a-mds" in answer(f"{url}/corpus/a.jsonl")
        with pytest.raises(StoreError, match=r"nothing is stored in .*/nothing") as caught:
            make_loader(f"{url}/nothing")
        assert caught.value.is_missing


def test_an_empty_place_in_a_store_is_answered_with_its_neighbors(store_url: str) -> None:
    put(store_url, "corpora/wiki-mds/index.json", "corpora/books.txt", "raw/a.jsonl")
    for place, expected in {
        "corpora/wiki_mds": rf"Did you mean {store_url}/corpora/wiki-mds\?$",
        "corpora/x": r"/corpora,? has books.txt and wiki-mds/. Check the location, or",
        "other": r",? has corpora/ and raw/",
    }.items():
        with pytest.raises(StoreError, match=expected) as caught:
            make_loader(f"{store_url}/{place}")
        assert caught.value.is_missing
    with pytest.raises((ConvertError, StoreError), match=rf"Did you mean {store_url}/raw\?"):
        convert_to_mds(f"{store_url}/rawe", f"{store_url}/out", progress=False)


def test_splits_are_listed(store_url: str) -> None:
    for split in ("train", "val"):
        write_mds(f"{store_url}/{split}", ["aaa"], shard_bytes=64)
    for said in (answer(store_url), answer([Stream(store_url, split="valid")])):
        assert "2 folders have an index: train and val" in said
        assert "split='train') as data" in said


def test_every_way_to_open_a_dataset_gives_the_answer(store_url: str, cli: Any) -> None:
    put(store_url, "a.jsonl")
    command = f"cloudload convert {store_url} {store_url}-mds"
    with pytest.raises(DatasetError, match=command):
        FromStart(make_loader(store_url, epochs=1))
    with pytest.raises(DatasetError, match=command):
        CloudLoader([Stream(store_url, proportion=1)], seq_len=8, batch_size=2, tokens_key="tokens")
    [finding] = json.loads(cli("check", store_url, "--quiet", "--json", status=1).out)["findings"]
    assert finding["kind"] == "index-missing"
    assert finding["advice"].endswith(command)


def test_a_store_that_refuses_to_list_gives_its_own_error(
    s3_url: str, s3_proxy: FaultProxy
) -> None:
    put(s3_url, "a.jsonl")
    s3_proxy.fail("list-type", "status", status=403, code="AccessDenied")
    with pytest.raises(StoreError, match=r"cannot read .*index\.json .*object does not exist"):
        make_loader(s3_url)


def test_an_index_that_may_not_be_read_is_not_taken_for_a_missing_one(
    s3_url: str, s3_proxy: FaultProxy
) -> None:
    put(s3_url, "a.jsonl")
    s3_proxy.fail("GET .*index.json", "status", status=403, code="AccessDenied")
    with pytest.raises(StoreError, match="denied access"):
        make_loader(s3_url)
    assert not s3_proxy.requests("list-type")


def test_many_objects_take_few_requests(s3_url: str, s3_proxy: FaultProxy) -> None:
    put(s3_url, *(f"{number:04}.jsonl" for number in range(1_100)))
    put(f"{s3_url}/deep", *(f"{number:02}/a.jsonl" for number in range(40)))
    said = answer(s3_url)
    assert "Found at least 1,000 .jsonl." in said
    assert len(s3_proxy.requests("list-type")) == 1
    assert "Found at least 19 .jsonl." in answer(f"{s3_url}/deep")
    assert len(s3_proxy.requests("list-type")) <= 21
