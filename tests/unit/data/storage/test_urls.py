"""Locations are validated and joined."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudload.data.storage.urls import (
    BUCKET_SCHEMES,
    check_location,
    is_local,
    join_url,
    local_path,
    name_below,
    plain_location,
    split_url,
    utf8_name,
)

PASSWORD = "correct-horse-battery"


@pytest.mark.parametrize("url", [f"s3:reader:{PASSWORD}@host", f"https:reader:{PASSWORD}@host/key"])
def test_a_location_that_is_none_is_named_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="Did you mean") as caught:
        check_location(url)
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("url", ["file:///a/b", "FILE:///a/b", "File:///a/b", "/a/b"])
def test_the_scheme_of_a_file_may_be_in_capitals(url: str) -> None:
    assert is_local(url)
    assert local_path(url) == Path("/a/b")


@pytest.mark.parametrize("url", ["S3:///folder", "Gs:///folder"])
def test_a_missing_bucket_is_noticed_in_capitals_too(url: str) -> None:
    with pytest.raises(ValueError, match="has no bucket name"):
        check_location(url)


@pytest.mark.parametrize("scheme", [*BUCKET_SCHEMES, "az", "abfs", "http", "https", "hf"])
@pytest.mark.parametrize("slashes", ["", "/"])
def test_a_url_with_missing_slashes_is_refused_for_each_scheme(scheme: str, slashes: str) -> None:
    with pytest.raises(ValueError, match=f"Did you mean {scheme}://bucket/folder"):
        check_location(f"{scheme}:{slashes}bucket/folder")


@pytest.mark.parametrize(
    "key", ["k", "/k", "a//k", "tab\t.jsonl", "a\r\nb", "k?", "k#x", "a/../b", ""]
)
def test_a_key_is_every_character_after_the_bucket(key: str) -> None:
    assert split_url(f"s3://bucket/{key}") == ("bucket", key)


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("s3://b", "/k"),
        ("s3://b/a", "/k"),
        ("s3://b/a", "k/x"),
        (".", ".convert/plan.json"),
        (".", "~/x"),
        ("/", "a"),
        ("/a", ""),
        ("a/b", "c"),
    ],
)
def test_the_name_of_an_object_and_its_folder_make_its_url(folder: str, name: str) -> None:
    assert name_below(join_url(folder, name), folder) == name


@pytest.mark.parametrize(
    ("location", "plain"),
    [
        ("a/./b/", "a/b"),
        ("./~", "./~"),
        ("file:///a/", "/a"),
        ("/", "/"),
        ("s3://b/a/", "s3://b/a"),
        ("./dbfs:/a", "./dbfs:/a"),
    ],
)
def test_a_plain_location_stays_the_same_location(location: str, plain: str) -> None:
    assert plain_location(location) == plain == plain_location(plain)


def test_bytes_that_are_not_utf8_are_escaped_in_names() -> None:
    assert utf8_name(b"caf\xe9-\xc3\xbc%.txt".decode("utf-8", "surrogateescape")) == "caf%E9-ü%.txt"
