"""A local write leaves no temporary file, and pipes and devices are not read as objects."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudload.errors import StoreError
from cloudload.storage.objects import (
    list_objects,
    read_object,
    upload_file,
    write_object,
)
from cloudload.storage.urls import join_url
from tests.support.patience import SOON_S, within


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
        assert list_objects(str(tmp_path)) == []
