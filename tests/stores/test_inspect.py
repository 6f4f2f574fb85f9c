"""Inspecting a dataset in a store takes few requests and downloads few bytes."""

from __future__ import annotations

import pytest

from cloudload.data.storage.objects import read_object, write_object
from cloudload.errors import DatasetError
from cloudload.inspect import read_info, read_samples
from testkit.corpora import random_documents, write_mds
from testkit.fault_proxy import FaultProxy

TEXTS = random_documents(3, 90)
LARGE = [f"{number}: " + "large " * 100_000 for number in range(30)]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_dataset_in_any_store_is_summarized(store_url: str, compression: str | None) -> None:
    write_mds(store_url, TEXTS, shard_samples=[30] * 3, compression=compression)
    info = read_info(store_url)
    assert (info.samples, info.shards, info.writer) == (90, 3, None)
    assert info.sample_bytes is not None
    assert info.sample_bytes.most == max(4 + len(text.encode()) for text in TEXTS)


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
    write_mds(store_url, TEXTS, shard_samples=[30] * 3, compression=compression, extra=extra)
    for options, expected in (
        ({"limit": 40}, TEXTS[:40]),
        ({"id": "doc/77"}, TEXTS[77:78]),
        ({"pattern": "^8[0-3]:", "limit": 9}, TEXTS[80:84]),
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
    data = read_object(url)
    write_object(url, data[: int(kept * len(data) if kept < 1 else kept)])
    with pytest.raises(DatasetError, match=r"shard\.00000\.mds"):
        next(read_samples(s3_url, limit=number))
    if kept in (0, 10):
        with pytest.raises(DatasetError, match=r"shard\.00000\.mds"):
            read_info(s3_url)
