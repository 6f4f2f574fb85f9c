"""An installation during a process is seen, until the package is imported."""

from __future__ import annotations

import importlib
import shutil
from importlib import metadata
from pathlib import Path

import pytest

from cloudload.system.machine import package_version

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
