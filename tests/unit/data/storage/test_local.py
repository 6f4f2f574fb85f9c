"""A local write leaves no temporary file, a listing is complete or an error, and pipes and devices
are not read as objects."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudload.data.storage.objects import (
    collect_objects,
    list_objects,
    read_object,
    upload_file,
    write_object,
)
from cloudload.data.storage.urls import join_url, name_below
from cloudload.errors import StoreError
from testkit.patience import SOON_S, within
from testkit.privileges import call_unprivileged


def names(folder: Path) -> list[str]:
    """The names of the files below a folder."""
    return [name_below(item.url, str(folder)) for item in list_objects(str(folder))]


def write(*paths: Path) -> None:
    """Write a small file at each path."""
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")


def test_a_local_write_leaves_no_other_file(local_url: str) -> None:
    write_object(join_url(local_url, "a"), b"a")
    with pytest.raises(StoreError):
        upload_file(Path(local_url, "missing"), join_url(local_url, "a"))
    assert os.listdir(local_url) == ["a"]
    assert read_object(join_url(local_url, "a")) == b"a"


def test_a_pipe_and_a_device_are_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with (
            within(SOON_S),
            pytest.raises(StoreError, match=rf"cannot read {path} \(1 attempt.*not a regular file"),
        ):
            read_object(str(path))
    with pytest.raises(StoreError, match=rf"OSError: {pipe} is a pipe, a socket, or a device"):
        list_objects(str(tmp_path))


def test_a_folder_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    write(tmp_path / "a/x", tmp_path / "b/y")
    (tmp_path / "b").chmod(0)
    try:
        with pytest.raises(StoreError, match=rf"cannot list {tmp_path}/b \(Permission denied\)"):
            call_unprivileged(lambda: list_objects(str(tmp_path)))
    finally:
        (tmp_path / "b").chmod(0o755)


def test_links_to_folders_and_files_are_followed(tmp_path: Path) -> None:
    write(tmp_path / "real/x", tmp_path / "real/deep/y", tmp_path / "in/a")
    (tmp_path / "in/folder").symlink_to("../real")
    (tmp_path / "in/again").symlink_to(tmp_path / "real/deep")
    (tmp_path / "in/file").symlink_to("../real/x")
    assert names(tmp_path / "in") == ["a", "again/y", "file", "folder/deep/y", "folder/x"]
    (tmp_path / "root").symlink_to("in")
    assert len(names(tmp_path / "root")) == 5


def test_a_folder_inside_itself_is_listed_once(tmp_path: Path) -> None:
    write(tmp_path / "in/a", tmp_path / "in/deep/b")
    (tmp_path / "in/deep/up").symlink_to("..")
    (tmp_path / "in/self").symlink_to(".")
    assert names(tmp_path / "in") == ["a", "deep/b"]
    (tmp_path / "in/above").symlink_to(tmp_path)
    assert names(tmp_path / "in") == ["a", "deep/b"]


@pytest.mark.parametrize("target", ["gone", "link"], ids=["nothing", "itself"])
def test_a_link_that_leads_nowhere_is_an_error_that_names_it(tmp_path: Path, target: str) -> None:
    write(tmp_path / "a")
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(StoreError, match=rf"{tmp_path}/link is a link to {target}, which does not"):
        list_objects(str(tmp_path))


def test_what_is_not_wanted_is_neither_opened_nor_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a", tmp_path / "no/b", tmp_path / "locked/c")
    (tmp_path / "locked").chmod(0)
    (tmp_path / "no-link").symlink_to("gone")
    os.mkfifo(tmp_path / "no-pipe")
    try:
        found = call_unprivileged(
            lambda: collect_objects(
                str(tmp_path),
                lambda items: sorted(item.url.removeprefix(f"{tmp_path}/") for item in items),
                wanted=lambda url: url == f"{tmp_path}/a",
            )
        )
    finally:
        (tmp_path / "locked").chmod(0o755)
    assert found == ["a", "locked/", "no-link", "no-pipe", "no/"]


@pytest.mark.parametrize("name", ["~", "~root", "dbfs:", "s3:"])
def test_a_relative_folder_with_any_name_is_listed_as_that_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path(f"./{name}/x"))
    for folder in (".", f"./{name}"):
        (found,) = list_objects(folder)
        assert read_object(found.url) == b"x"
