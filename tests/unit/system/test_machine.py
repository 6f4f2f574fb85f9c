"""What this machine has: package versions, network folders, and pipes."""

from __future__ import annotations

import importlib
import os
import shutil
import threading
import traceback
from importlib import metadata
from multiprocessing import Pipe
from pathlib import Path

import pytest

from cloudload.system import machine
from cloudload.system.child_processes import send
from cloudload.system.machine import network_type, package_version

NAME = "a_package_of_this_test"


def install(folder: Path, version: str) -> None:
    """Replace the package that is installed in a folder with this version."""
    for old in folder.glob("*.dist-info"):
        shutil.rmtree(old)
    (folder / f"{NAME}.py").touch()
    info = folder / f"{NAME}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n")
    importlib.invalidate_caches()


def test_a_version_is_that_installed_now_and_then_that_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    assert package_version(NAME) is None
    for version in ("1.0", "2.0"):
        install(tmp_path, version)
        assert package_version(NAME) == version
    importlib.import_module(NAME)
    assert package_version(NAME) == "2.0"
    install(tmp_path, "3.0")
    assert metadata.version(NAME) == "3.0"
    assert package_version(NAME) == "2.0"


# ---------------------------------------------------------------- network folders


def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, device: str) -> None:
    """Replace the mount table with one that lists proc, and a mount of type `kind` on `device`."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 27 0:99999 / /proc rw,relatime - proc proc rw\n"
        f"36 27 {device} / /mnt/a\\040folder rw,noatime shared:1 master:2 - {kind} host:/a rw\n"
    )
    monkeypatch.setattr(machine, "MOUNTS", mounts)


@pytest.fixture
def device(tmp_path: Path) -> str:
    found = tmp_path.stat().st_dev
    return f"{os.major(found)}:{os.minor(found)}"


@pytest.mark.parametrize(
    ("kind", "is_network"),
    [
        *[(each, True) for each in ("nfs", "nfs4", "cifs", "smb3", "lustre", "fuse.sshfs", "fuse")],
        *[
            (each, False)
            for each in ("ext4", "xfs", "overlay", "tmpfs", "fuseblk", "fuse.mergerfs", "new")
        ],
    ],
)
def test_the_type_of_the_mount_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, kind: str, is_network: bool
) -> None:
    mount(tmp_path, monkeypatch, kind, device)
    for folder in (tmp_path, tmp_path / "not" / "yet"):
        assert network_type(folder) == (kind if is_network else None)


def test_an_unknown_mount_counts_as_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount(tmp_path, monkeypatch, "nfs", "0:99998")
    assert network_type(tmp_path) is None
    monkeypatch.setattr(machine, "MOUNTS", tmp_path / "nothing")
    assert network_type(tmp_path) is None
    (tmp_path / "damaged").write_text("36\n\n")
    monkeypatch.setattr(machine, "MOUNTS", tmp_path / "damaged")
    assert network_type(tmp_path) is None


# ---------------------------------------------------------------- pipes


def test_a_value_is_received_unchanged() -> None:
    ours, theirs = Pipe()
    value = {"one": [b"x" * 10_000], "two": print}
    send(ours, value)
    assert theirs.recv() == value


def test_the_traceback_of_a_failed_send_has_no_view_of_a_bytes_io() -> None:
    ours, theirs = Pipe()
    theirs.close()
    with pytest.raises(BrokenPipeError) as raised:
        send(ours, b"x" * 10_000)
    frames = [frame for frame, _ in traceback.walk_tb(raised.tb)]
    views = [value for frame in frames for value in frame.f_locals.values()]
    views = [value for value in views if isinstance(value, memoryview)]
    assert views, "the frame that writes has a view of the bytes"
    assert all(isinstance(view.obj, bytes) for view in views)


def test_a_value_without_a_pickle_raises_the_picklers_error() -> None:
    ours, _theirs = Pipe()
    with pytest.raises(TypeError, match="cannot pickle"):
        send(ours, threading.Lock())
