"""Locations are validated and joined."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudload.data.storage.globs import Glob, find_glob
from cloudload.data.storage.locations import Location
from cloudload.data.storage.urls import (
    BUCKET_SCHEMES,
    check_location,
    is_local,
    join_url,
    local_path,
    name_below,
    name_inside,
    plain_location,
    same_or_inside,
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


# ---------------------------------------------------------------- locations


@pytest.mark.parametrize(
    ("inner", "outer", "name"),
    [
        ("s3://b/a/", "s3://b/a", ""),
        ("S3://b/a/x", "s3a://b/a/", "x"),
        ("gcs://b/a", "gs://b", "a"),
        ("s3://b//a", "s3://b/a", None),
        ("s3://b/a//x", "s3://b/a", "/x"),
        ("s3://b/ab", "s3://b/a", None),
        ("s3://b/a", "gs://b/a", None),
        ("s3://b/a/../c", "s3://b/a", "../c"),
        ("https://Host/a%20b?sig=1", "https://host/a b?sig=2", ""),
        ("https://host/a", "https://other/a", None),
        ("memory://a//b", "memory://a/b", ""),
        ("/a", "s3://a", None),
        ("/a/b", "/", "a/b"),
    ],
)
def test_urls_are_compared_by_what_they_mean(inner: str, outer: str, name: str | None) -> None:
    assert name_inside(inner, outer) == name


def test_paths_are_compared_through_links_and_spellings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("data/x").mkdir(parents=True)
    Path("link").symlink_to("data")
    Path("data/y").symlink_to("/nowhere")
    for outer in ("data", "./data/", "link", f"file://{tmp_path}/data", "~/data", "x/../data"):
        assert name_inside("data", outer) == ""
        assert name_inside("link/x/new", outer) == "x/new"
        assert not same_or_inside("data/y", outer)
        assert not same_or_inside("data-2", outer)
        assert not same_or_inside("./~/data", outer)


def test_a_hard_link_is_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.link(tmp_path / "a", tmp_path / "b")
    assert name_inside(str(tmp_path / "a"), str(tmp_path / "b")) == ""


# ---------------------------------------------------------------- globs


def split(location: str) -> tuple[str, str] | None:
    """The folder and the pattern of a location, or None if it is no glob."""
    glob = find_glob(Location(location))
    return (glob.folder, glob.pattern) if glob else None


def test_a_glob_is_cut_before_the_first_folder_with_a_wildcard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert split("a/b/c*/d") == ("a/b", "c*/d")
    assert split("*.jsonl") == split("./*.jsonl") == (".", "*.jsonl")
    assert split("/x?") == ("/", "x?")
    assert split("a/b") is None


@pytest.mark.parametrize("name", ["[br]ack.jsonl", "a*", "b?/"])
def test_a_local_file_or_folder_of_that_name_is_not_a_glob(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("/"):
        path.mkdir()
    else:
        path.touch()
    assert find_glob(Location(str(path))) is None


def test_the_query_of_a_signed_url_is_not_a_glob() -> None:
    assert find_glob(Location("https://127.0.0.1:1/a.jsonl?X-Amz-Signature=a*[b]")) is None


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("*.jsonl", "a.jsonl", "x/a.jsonl"),
        ("**/*.jsonl", "x/y/a.jsonl", "a.json"),
        ("[!ab]x", "cx", "ax"),
        ("[^]x", "^x", "ax"),
        ("[[]x]", "[x]", "x"),
        ("a?", "a\n", "a/"),
        ("**", "a\nb", ""),
    ],
)
def test_a_glob_matches_whole_names(pattern: str, matching: str, other: str) -> None:
    glob = Glob(".", pattern)
    assert glob.matches(matching)
    assert not glob.matches(other or "x") or other == ""


@pytest.mark.parametrize(
    ("pattern", "folder", "expected"),
    [
        ("*.jsonl", "a", False),
        ("a*/x/*.jsonl", "ab", True),
        ("a*/x/*.jsonl", "b", False),
        ("a*/x/*.jsonl", "ab/x", True),
        ("a*/x/*.jsonl", "ab/y", False),
        ("a*/x/*.jsonl", "ab/x/c", False),
        ("a/**/x", "a/b/c/d", True),
        ("a/**/x", "b", False),
        ("[a/]b/x", "q", True),
    ],
)
def test_only_folders_that_may_have_a_match_are_entered(
    pattern: str, folder: str, expected: bool
) -> None:
    assert Glob(".", pattern).may_match_below(folder) is expected


@pytest.mark.parametrize("pattern", ["[z-a].jsonl", "x/[b-a]/*"])
def test_a_set_that_is_not_valid_is_an_error_that_shows_it(pattern: str) -> None:
    with pytest.raises(ValueError, match="is not a valid glob"):
        find_glob(Location(pattern))
