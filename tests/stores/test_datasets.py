"""Datasets in stores are opened, inspected and checked like local ones, in few requests. Problems
that only stores have are found."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader, FromStart, Stream, convert_to_mds
from cloudload.data.storage.locations import Location
from cloudload.data.storage.urls import join_url
from cloudload.errors import ConvertError, DatasetError, StoreError
from cloudload.inspect import read_info, read_samples
from cloudload.tools.check import check_dataset, groups
from testkit.corpora import random_documents, write_mds
from testkit.fault_proxy import FaultProxy
from testkit.loaders import make_loader
from testkit.web_server import web_server

# ---------------------------------------------------------------- check


TEXTS = [f"document {number}" for number in range(90)]
NAME = "shard.00001.mds"


def write(url: str) -> str:
    return write_mds(url, TEXTS, shard_samples=[30] * 3, compression="zstd")


def test_a_damaged_split_is_checked_in_any_store(store_url: str, cli: Any) -> None:
    write(f"{store_url}/train")
    command = ["check", store_url, "--split", "train", "--quiet", "--json"]
    assert json.loads(cli(*command).out)["counts"] == {}
    shard = f"{store_url}/train/{NAME}.zstd"
    data = bytearray(Location(shard).read())
    data[-1] ^= 1
    Location(shard).write(bytes(data))
    Location(f"{store_url}/train/shard.00002.mds.zstd").delete()
    counts = json.loads(cli(*command, status=1).out)["counts"]
    assert {"hash-mismatch": 1, "shard-missing": 1}.items() <= counts.items()


def test_processes_find_what_one_process_finds(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "GROUP_BYTES", 1)
    write(s3_url)
    Location(f"{s3_url}/{NAME}.zstd").write(b"not zstd")
    Location(f"{s3_url}/shard.00002.mds.zstd").delete()
    one, two = (check_dataset(s3_url, processes=number, progress=False) for number in (1, 2))
    assert one.counts == {"size": 1, "shard-missing": 1}
    assert (two.findings, two.counts) == (one.findings, one.counts)


def test_a_raw_copy_in_a_store_is_left_over(s3_url: str) -> None:
    write(s3_url)
    Location(f"{s3_url}/{NAME}").write(b"raw")
    assert check_dataset(s3_url, progress=False).counts == {"leftover": 1}


def test_a_shard_that_cannot_be_read_is_found(s3_url: str, s3_proxy: FaultProxy) -> None:
    write(s3_url)
    s3_proxy.fail(f"GET .*{NAME}", "status", status=403, code="AccessDenied")
    report = check_dataset(s3_url, progress=False)
    assert report.counts == {"shard-unreachable": 1}
    assert "denied access" in report.findings[0].what


def test_an_index_that_cannot_be_read_is_an_error(s3_url: str, s3_proxy: FaultProxy) -> None:
    write(s3_url)
    s3_proxy.fail("GET .*index.json", "status", status=403, code="AccessDenied")
    with pytest.raises(StoreError, match="denied access"):
        check_dataset(s3_url, progress=False)


def test_a_store_that_refuses_to_list_is_read_all_the_same(
    s3_url: str, s3_proxy: FaultProxy
) -> None:
    write(s3_url)
    Location(f"{s3_url}/{NAME}.zstd").delete()
    s3_proxy.fail("list-type", "status", status=403, code="AccessDenied")
    report = check_dataset(s3_url, progress=False)
    assert report.counts == {"not-listed": 1, "shard-missing": 1}


def test_streaming_cannot_reach_names_that_cut_a_url(s3_url: str, tmp_path: Path) -> None:
    download = pytest.importorskip("streaming.base.storage.download")
    write(s3_url)
    name = "a#b.mds.zstd"
    Location(f"{s3_url}/{name}").write(Location(f"{s3_url}/{NAME}.zstd").read())
    index = Location(f"{s3_url}/index.json").read().decode()
    Location(f"{s3_url}/index.json").write(index.replace(f"{NAME}.zstd", name).encode())
    report = check_dataset(s3_url, progress=False)
    assert report.counts == {"url": 1, "unlisted": 1}
    assert report.findings[0].where == name
    with pytest.raises(Exception, match="not found"):
        download.CloudDownloader.direct_download(f"{s3_url}/{name}", str(tmp_path / "shard"))


def test_streaming_does_not_read_file_urls(tmp_path: Path) -> None:
    download = pytest.importorskip("streaming.base.storage.download")
    url = f"file://{write(str(tmp_path / 'data'))}"
    assert check_dataset(url, progress=False).counts == {"url": 1}
    with pytest.raises(ValueError, match="Unsupported remote path"):
        download.CloudDownloader.get(url)


# ---------------------------------------------------------------- inspect


DOCUMENTS = random_documents(3, 90)
LARGE = [f"{number}: " + "large " * 100_000 for number in range(30)]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_dataset_in_any_store_is_summarized(store_url: str, compression: str | None) -> None:
    write_mds(store_url, DOCUMENTS, shard_samples=[30] * 3, compression=compression)
    info = read_info(store_url)
    assert (info.samples, info.shards, info.writer) == (90, 3, None)
    assert info.sample_bytes is not None
    assert info.sample_bytes.most == max(4 + len(text.encode()) for text in DOCUMENTS)


def test_the_sizes_of_samples_need_only_the_first_bytes_of_a_shard(
    s3_proxy: FaultProxy, s3_url: str
) -> None:
    write_mds(s3_url, LARGE, shard_bytes=1 << 30)
    before = len(s3_proxy.requests(".mds"))
    assert read_info(s3_url).sample_bytes is not None
    [request] = s3_proxy.requests(".mds")[before:]
    # the proxy also counts the megabytes that remain in socket buffers
    assert request.body_bytes < 0.7 * sum(map(len, LARGE))


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_documents_are_read_from_any_store(store_url: str, compression: str | None) -> None:
    ids = [f"doc/{number}" for number in range(90)]
    extra = {"id": ("str", ids)}
    write_mds(store_url, DOCUMENTS, shard_samples=[30] * 3, compression=compression, extra=extra)
    for options, expected in (
        ({"limit": 40}, DOCUMENTS[:40]),
        ({"id": "doc/77"}, DOCUMENTS[77:78]),
        ({"pattern": "^8[0-3]:", "limit": 9}, DOCUMENTS[80:84]),
    ):
        found = read_samples(store_url, **options)
        assert [document.values["text"] for document in found] == expected


def test_the_first_documents_need_only_the_first_bytes_of_the_first_shard(
    s3_proxy: FaultProxy, s3_url: str
) -> None:
    write_mds(s3_url, LARGE, shard_samples=[25, 5])
    s3_proxy.set_faults([])
    assert [document.values["text"] for document in read_samples(s3_url, limit=2)] == LARGE[:2]
    requests = s3_proxy.requests(".mds")
    assert all("shard.00000.mds" in request.line for request in requests)
    assert len(requests) <= 2
    # the proxy also counts the megabytes that remain in socket buffers
    assert sum(request.body_bytes for request in requests) < 0.7 * sum(map(len, LARGE))


@pytest.mark.parametrize("compression", [None, "zstd", "gz"])
@pytest.mark.parametrize("kept", [0, 10, 0.5, 0.9])
@pytest.mark.parametrize("number", [1, 2_000])
def test_a_shard_that_was_cut_off_is_an_error_and_never_documents_of_zeros(
    s3_url: str, compression: str | None, kept: float, number: int
) -> None:
    texts = random_documents(8, number, max_words=60_000 // number)
    write_mds(s3_url, texts, shard_bytes=1 << 30, compression=compression)
    url = f"{s3_url}/shard.00000.mds{f'.{compression}' if compression else ''}"
    data = Location(url).read()
    Location(url).write(data[: int(kept * len(data) if kept < 1 else kept)])
    with pytest.raises(DatasetError, match=r"shard\.00000\.mds"):
        next(read_samples(s3_url, limit=number))
    if kept in (0, 10):
        with pytest.raises(DatasetError, match=r"shard\.00000\.mds"):
            read_info(s3_url)


# ---------------------------------------------------------------- what is not a dataset


def put(url: str, *names: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: Location(join_url(url, name)).write(b'{"text": "a"}'), names))


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
    # one to look for Parquet files, and one to say what is there
    assert len(s3_proxy.requests("list-type")) <= 2
    assert "Found at least 19 .jsonl." in answer(f"{s3_url}/deep")
    assert len(s3_proxy.requests("list-type")) <= 42
