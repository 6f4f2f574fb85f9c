"""Two locations are the same whatever they are called, and different if only their texts agree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudload.data.storage.locations import name_inside, same_or_inside


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
