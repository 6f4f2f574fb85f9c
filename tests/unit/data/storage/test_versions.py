"""A version is exact only if no other content of the object can have the same version."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloudload.data.storage.fsspec import _version_of
from cloudload.data.storage.versions import Version, version_of_details, version_of_file
from cloudload.data.storage.versions import version_of_headers as of_headers

TIMES = {"Last-Modified": "Tue, 24 Nov 2026 10:00:00 GMT", "Date": "Tue, 24 Nov 2026 10:00:02 GMT"}
JUST_WRITTEN = {**TIMES, "Date": "Tue, 24 Nov 2026 10:00:01 GMT"}
ETAG = {"ETag": '"5f3c"'}


@pytest.mark.parametrize(
    "headers",
    [
        {**ETAG, **TIMES},
        {**ETAG, **TIMES, "x-amz-version-id": "null"},
        {**ETAG, **JUST_WRITTEN, "x-amz-version-id": "8f2"},
        {**JUST_WRITTEN, "x-goog-generation": "17"},
    ],
)
def test_a_strong_tag_and_an_id_are_exact(headers: dict[str, str]) -> None:
    found = of_headers({**headers, "Content-Length": "12"})
    assert found.exact == found.tag != ""
    assert found.size == 12


@pytest.mark.parametrize(
    "headers",
    [
        {},
        TIMES,
        ETAG,
        {**TIMES, "ETag": 'W/"5f3c"'},
        {**TIMES, "ETag": ""},
        {**ETAG, **JUST_WRITTEN},
        {**ETAG, "Date": TIMES["Date"]},
        {**ETAG, "Last-Modified": TIMES["Last-Modified"]},
    ],
)
def test_a_weak_tag_and_an_object_just_written_are_not_exact(headers: dict[str, str]) -> None:
    found = of_headers(headers)
    assert found.exact == ""
    assert found.size is None


def test_details_that_fsspec_may_have_kept_are_not_exact() -> None:
    assert version_of_details({"ETag": "5f3c", "generation": "17", "mtime": 1.0}).exact == ""


def test_the_tag_of_a_web_server_is_not_exact() -> None:
    opened = SimpleNamespace(r=SimpleNamespace(headers={**ETAG, **TIMES, "Content-Length": "12"}))
    found = _version_of(opened)
    assert (found.tag, found.size, found.exact) == ('"5f3c"', 12, "")


def version_of(path: Path) -> Version:
    with path.open("rb") as file:
        return version_of_file(file.fileno())


def test_a_local_file_is_exact_once_it_has_settled(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    assert version_of(path).exact == ""
    while not (first := version_of(path)).exact:
        time.sleep(0.1)
    assert first.size == 3
    assert version_of(path).exact == first.exact
    # the write in place and the replacement keep the size and the modification time
    written_ns = path.stat().st_mtime_ns
    (tmp_path / "other").write_bytes(b"two")
    path.write_bytes(b"six")
    os.utime(path, ns=(written_ns, written_ns))
    os.utime(tmp_path / "other", ns=(written_ns, written_ns))
    while not (second := version_of(path)).exact:
        time.sleep(0.1)
    (tmp_path / "other").replace(path)
    while not (third := version_of(path)).exact:
        time.sleep(0.1)
    assert first.key == second.key == third.key
    assert len({first.exact, second.exact, third.exact}) == 3
