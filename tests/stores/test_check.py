"""`check_dataset` checks a dataset in a store like a local one, and finds problems that only stores
have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudload.data.storage.objects import delete_object, read_object, write_object
from cloudload.errors import StoreError
from cloudload.tools.check import check_dataset, groups
from testkit.corpora import write_mds
from testkit.fault_proxy import FaultProxy

TEXTS = [f"document {number}" for number in range(90)]
NAME = "shard.00001.mds"


def write(url: str) -> str:
    return write_mds(url, TEXTS, shard_samples=[30] * 3, compression="zstd")


def test_a_damaged_split_is_checked_in_any_store(store_url: str, cli: Any) -> None:
    write(f"{store_url}/train")
    command = ["check", store_url, "--split", "train", "--quiet", "--json"]
    assert json.loads(cli(*command).out)["counts"] == {}
    shard = f"{store_url}/train/{NAME}.zstd"
    data = bytearray(read_object(shard))
    data[-1] ^= 1
    write_object(shard, bytes(data))
    delete_object(f"{store_url}/train/shard.00002.mds.zstd")
    counts = json.loads(cli(*command, status=1).out)["counts"]
    assert {"hash-mismatch": 1, "shard-missing": 1}.items() <= counts.items()


def test_processes_find_what_one_process_finds(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "_GROUP_BYTES", 1)
    write(s3_url)
    write_object(f"{s3_url}/{NAME}.zstd", b"not zstd")
    delete_object(f"{s3_url}/shard.00002.mds.zstd")
    one, two = (check_dataset(s3_url, processes=number, progress=False) for number in (1, 2))
    assert one.counts == {"size": 1, "shard-missing": 1}
    assert (two.findings, two.counts) == (one.findings, one.counts)


def test_a_raw_copy_in_a_store_is_left_over(s3_url: str) -> None:
    write(s3_url)
    write_object(f"{s3_url}/{NAME}", b"raw")
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
    delete_object(f"{s3_url}/{NAME}.zstd")
    s3_proxy.fail("list-type", "status", status=403, code="AccessDenied")
    report = check_dataset(s3_url, progress=False)
    assert report.counts == {"not-listed": 1, "shard-missing": 1}


def test_streaming_cannot_reach_names_that_cut_a_url(s3_url: str, tmp_path: Path) -> None:
    download = pytest.importorskip("streaming.base.storage.download")
    write(s3_url)
    name = "a#b.mds.zstd"
    write_object(f"{s3_url}/{name}", read_object(f"{s3_url}/{NAME}.zstd"))
    index = read_object(f"{s3_url}/index.json").decode()
    write_object(f"{s3_url}/index.json", index.replace(f"{NAME}.zstd", name).encode())
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
