"""Locations are validated and joined."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudload.storage.urls import BUCKET_SCHEMES, check_location, is_local, local_path

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
