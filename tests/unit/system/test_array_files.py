"""A file of arrays is mapped only if it is intact and has the expected key, and only if no other
user can write to it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.system import array_files
from cloudload.system.array_files import make_own_folder, map_arrays, write_arrays
from cloudload.system.arrays import divisors

ARRAYS = [np.arange(6, dtype="<i8").reshape(2, 3), np.frombuffer(b"abc", np.uint8)]
FACTS = {"names": ["ü", "b"], "empty": {}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_arrays(tmp_path / "file", "key", FACTS, [*ARRAYS, np.zeros(0, "<i8")])
    return tmp_path / "file"


def test_a_mapped_file_has_what_was_written(path: Path) -> None:
    found = map_arrays(path, "key")
    assert found is not None
    assert found.facts == FACTS
    assert [array.dtype.str for array in found.arrays] == ["<i8", "|u1", "<i8"]
    assert found.arrays[0].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found.arrays[1].tobytes() == b"abc"
    assert len(found.arrays[2]) == 0
    path.unlink()
    assert found.arrays[0].tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ValueError, match="read-only"):
        found.arrays[0][0, 0] = 9


def test_any_damage_counts_as_missing(path: Path) -> None:
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert map_arrays(path, "key") is None, place
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert map_arrays(path, "key") is None, size
    path.write_bytes(whole + b"\0")
    assert map_arrays(path, "key") is None
    path.write_bytes(whole)
    assert map_arrays(path, "key") is not None


def test_another_key_and_another_format_count_as_missing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert map_arrays(path, "another key") is None
    monkeypatch.setattr(array_files, "MAGIC", b"cloudload arrays 2\n".ljust(24, b"\0"))
    assert map_arrays(path, "key") is None


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_can_write_to_counts_as_missing(path: Path, mode: int) -> None:
    path.chmod(mode)
    assert map_arrays(path, "key") is None
    path.chmod(0o644)
    assert map_arrays(path, "key") is not None


def test_a_file_of_another_user_counts_as_missing_unless_it_is_root(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    if owner:
        assert map_arrays(path, "key") is None
        return
    assert map_arrays(path, "key") is not None
    os.chown(path, owner + 2, -1)
    assert map_arrays(path, "key") is None


def test_links_pipes_and_folders_count_as_missing(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder", "nothing"):
        assert map_arrays(tmp_path / name, "key") is None


def test_a_written_file_replaces_a_link_and_not_its_target(path: Path, tmp_path: Path) -> None:
    link, umask = tmp_path / "link", os.umask(0)
    link.symlink_to(path)
    try:
        write_arrays(link, "other", {}, ARRAYS)
    finally:
        os.umask(umask)
    assert map_arrays(link, "other") is not None
    assert map_arrays(path, "key") is not None


def test_a_valid_file_is_kept_and_an_invalid_one_is_replaced(path: Path) -> None:
    before = path.stat().st_ino
    with path.open("rb"):  # keep the file open, so its inode number is not reused
        write_arrays(path, "key", {}, ARRAYS)
        assert path.stat().st_ino == before
        write_arrays(path, "other", {}, ARRAYS)
        assert path.stat().st_ino != before
    assert map_arrays(path, "other") is not None
    assert list(path.parent.iterdir()) == [path]


def test_a_missing_file_is_created_and_never_replaces_one_that_appears(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "replace", None)
    write_arrays(tmp_path / "new", "key", FACTS, ARRAYS)
    assert map_arrays(tmp_path / "new", "key") is not None
    write_arrays(path, "key", {}, ARRAYS)


def test_a_file_system_without_hard_links_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no hard links")

    monkeypatch.setattr(os, "link", refuse)
    write_arrays(tmp_path / "file", "key", FACTS, ARRAYS)
    assert map_arrays(tmp_path / "file", "key") is not None
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_write_that_fails_leaves_the_file_as_it_was(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="full"):
        write_arrays(path, "other", {}, ARRAYS)
    assert map_arrays(path, "key") is not None
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_in_which_others_can_create_files_is_refused(tmp_path: Path) -> None:
    folder, umask = tmp_path / "a" / "own", os.umask(0)
    try:
        make_own_folder(folder)
    finally:
        os.umask(umask)
    make_own_folder(folder)
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="another user"):
        make_own_folder(folder)
    folder.chmod(0o755)
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(NotADirectoryError, match="is not a folder"):
            make_own_folder(tmp_path / name)


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "own"
    make_own_folder(folder)
    owner = folder.stat().st_uid
    if not owner:
        os.chown(folder, 2, -1)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(PermissionError, match="another user"):
        make_own_folder(folder)


# ---------------------------------------------------------------- divisors


@given(st.integers(1, 5_000))
def test_divisors_divide(number: int) -> None:
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]
