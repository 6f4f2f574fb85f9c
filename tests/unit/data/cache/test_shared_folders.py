"""A cache folder is used only if its locks work, and other users' files in it are not trusted."""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload import convert_to_mds
from cloudload.data.cache.cache_folder import default_cache, open_cache_folder
from cloudload.data.cache.kept_tokenizers import _hash, keep, read_kept
from cloudload.data.mds.shard_entries import INDEX_NAME
from cloudload.data.storage.locations import Location
from cloudload.data.storage.urls import expand_home
from cloudload.errors import CacheError
from cloudload.losses import read_losses
from cloudload.system.temp_files import explained_full_disk
from cloudload.system.verified_files import mark_verified
from cloudload.tools.count.count import count_tokens
from testkit.corpora import byte_tokenizer, random_documents, write_mds
from testkit.loaders import make_loader

TEXTS = random_documents(7, 60)


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that makes a file look as if another user wrote and marked it."""

    def give(path: Path) -> None:
        mark_verified(path)
        if os.geteuid() == 0:
            os.chown(path, 65534, -1)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: 12345)

    return give


def read_rows(data: str, cache: Path, **settings: Any) -> list[Any]:
    """The tokens of all rows of a run."""
    with make_loader(data, local=cache, epochs=1, seed=3, **settings) as loader:
        return [batch["input_ids"].tolist() for batch in loader]


def spoil(path: Path) -> None:
    """Change a file's bytes, but not its size."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + content[len(content) // 2 :][::-1])


@pytest.mark.parametrize("pattern", ["*/*.mds", "orders/**/*.npy", "lengths/*.lengths"])
def test_what_another_user_wrote_to_the_cache_changes_no_row(
    tmp_path: Path, give_away: Any, pattern: str
) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    settings: dict[str, Any] = {"tokenizer": str(tmp_path / "tokenizer.json")}
    draft = write_mds(tmp_path / "draft", TEXTS, shard_samples=[30, 30])
    data = str(tmp_path / "data")
    convert_to_mds([draft], data, compression="zstd", processes=1, progress=False)
    count_tokens(data, **settings, processes=1, progress=False)
    cache = tmp_path / "cache"
    expected = read_rows(data, cache, **settings)
    found = list(cache.glob(pattern))
    assert found
    for path in found:
        spoil(path)
        give_away(path)
    assert read_rows(data, cache, **settings) == expected
    assert read_rows(data, cache, **settings) == expected


def test_a_tokenizer_that_another_user_kept_is_not_read(tmp_path: Path, give_away: Any) -> None:
    path = tmp_path / "tokenizers" / "name"
    keep(path, "ours")
    assert read_kept(path) == "ours"
    path.write_bytes(b"%s\ntheirs" % _hash(b"theirs"))
    assert read_kept(path) is None, "written to after it was kept"
    mark_verified(path)
    assert read_kept(path) == "theirs", "only its owner can set the mark"
    give_away(path)
    assert read_kept(path) is None


def test_a_link_to_another_file_of_the_cache_is_not_an_order(tmp_path: Path) -> None:
    data = write_mds(tmp_path / "data", TEXTS)
    cache = tmp_path / "cache"
    expected = read_rows(data, cache)
    [order] = cache.glob("orders/**/*.npy")
    other = tmp_path / "other.npy"
    np.save(other, np.load(order)[::-1])
    mark_verified(other)
    order.unlink()
    order.symlink_to(other)
    assert read_rows(data, cache) == expected


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_cache_on_a_file_system_without_locks_is_refused_with_advice_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    data = write_mds(tmp_path / "data", TEXTS)
    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(CacheError, match=r"does not support file locks .*Lustre: flock") as failure,
        make_loader(data, local=tmp_path / "cache") as loader,
    ):
        next(iter(loader))
    assert "disk space" not in str(failure.value)
    assert str(tmp_path / "cache") in str(failure.value)


def test_a_cache_whose_locks_exclude_nobody_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_cache_folder(tmp_path / "cache")
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with pytest.raises(CacheError, match="grants one file lock to several holders"):
        open_cache_folder(tmp_path / "cache")


def test_the_check_of_locks_leaves_nothing_behind(tmp_path: Path) -> None:
    open_cache_folder(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as a user without HOME and without an entry in the user database."""

    def find_nobody(_: int) -> None:
        raise KeyError

    for name in ("HOME", "XDG_CACHE_HOME", "CLOUDLOAD_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", find_nobody)


@pytest.mark.usefixtures("homeless")
def test_without_a_home_folder_the_error_says_how_to_choose_a_cache(tmp_path: Path) -> None:
    data = write_mds(tmp_path / "data", TEXTS)
    with pytest.raises(CacheError, match=r"no home folder\. Set HOME, .*`local` or CLOUDLOAD_"):
        make_loader(data)
    with pytest.raises(ValueError, match=r"~/losses cannot be found, because this user has no"):
        read_losses("~/losses")
    with pytest.raises(ValueError, match=r"~ cannot be found"):
        expand_home("~")
    assert expand_home("~no-such-user/x") == Path("~no-such-user/x"), "a folder may have this name"


@pytest.mark.usefixtures("homeless")
def test_without_a_home_folder_a_chosen_cache_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUDLOAD_CACHE", str(tmp_path))
    assert default_cache() == tmp_path


def test_a_full_folder_for_temporary_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def pieces() -> Iterator[bytes]:
        yield b"one"
        with open("/dev/full", "wb", buffering=0) as full:
            full.write(b"two")

    advice = rf"^no space left for temporary files in {tmp_path}, which has [\d,]+ bytes free\. .*"
    with pytest.raises(OSError, match=f"{advice}set TMPDIR to") as failure:
        Location(str(tmp_path / INDEX_NAME)).write_pieces(pieces())
    assert failure.value.errno == errno.ENOSPC
    assert not (tmp_path / INDEX_NAME).exists()


def test_an_error_about_another_file_is_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    for error in (OSError(errno.ENOSPC, "full", str(tmp_path)), OSError(errno.EIO, "broken")):
        with pytest.raises(OSError, match=str(error.strerror)) as failure, explained_full_disk():
            raise error
        assert failure.value is error
