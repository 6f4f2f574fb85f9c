"""A folder on a network file system is recognized by the type of its mount."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudload.system import machine
from cloudload.system.machine import network_type


def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, device: str) -> None:
    """Replace the mount table with one that lists proc, and a mount of type `kind` on `device`."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 27 0:99999 / /proc rw,relatime - proc proc rw\n"
        f"36 27 {device} / /mnt/a\\040folder rw,noatime shared:1 master:2 - {kind} host:/a rw\n"
    )
    monkeypatch.setattr(machine, "_MOUNTS", mounts)


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
    monkeypatch.setattr(machine, "_MOUNTS", tmp_path / "nothing")
    assert network_type(tmp_path) is None
    (tmp_path / "damaged").write_text("36\n\n")
    monkeypatch.setattr(machine, "_MOUNTS", tmp_path / "damaged")
    assert network_type(tmp_path) is None
