"""On macOS, the import, the tools, and the loader use no call and no file that only Linux has.

There is no Mac here: a process of Linux hides what macOS lacks, as `testkit.hidden_linux` does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudload.system import machine
from testkit import ROOT
from testkit.hidden_linux import names_of


def first_try(folder: Path, *paths: Path) -> Any:
    """Run `testkit.first_try` in a folder, with these folders before others in the import path."""
    folder.mkdir()
    ended = subprocess.run(
        [sys.executable, "-m", "testkit.first_try", folder, ROOT / "examples/tokenizer"],
        env={
            **os.environ,
            "CLOUDLOAD_CACHE": f"{folder}/default cache",
            "PYTHONPATH": os.pathsep.join(map(str, [*paths, ROOT])),
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_first_try_without_what_macos_lacks_reads_the_same_rows(tmp_path: Path) -> None:
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    # every Python process, also a spawned one, imports this module when it starts
    (hiding / "sitecustomize.py").write_text(
        "from testkit.hidden_linux import hide_linux\nhide_linux()\n"
    )
    linux, macos = first_try(tmp_path / "linux"), first_try(tmp_path / "macos", hiding)
    assert set(linux["platforms"]) == {"linux"}
    assert len(macos["platforms"]) == 3, "this process, and the worker before and after the resume"
    assert set(macos["platforms"]) == {"darwin"}
    assert macos["result"] == linux["result"]


def test_what_is_hidden_is_what_the_package_replaces() -> None:
    missing = names_of("os", "linux") - names_of("os", "darwin")
    assert {"sched_getaffinity", "posix_fallocate", "memfd_create", "pidfd_open"} <= missing
    assert not {"fork", "pwrite", "sysconf", "nice"} & missing


def test_a_file_grows_with_zeros_where_space_cannot_be_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    with (tmp_path / "file").open("w+b", buffering=0) as file:
        file.write(b"kept")
        machine.allocate(file.fileno(), 4, 5 << 19)
        assert (tmp_path / "file").read_bytes() == b"kept" + bytes(5 << 19)


def test_a_full_disk_is_found_where_space_cannot_be_reserved(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    with (small_disk / "file").open("w+b") as file, pytest.raises(OSError, match="No space left"):
        machine.allocate(file.fileno(), 0, 1 << 20)


def test_a_measurement_of_workers_is_refused_where_their_cpu_time_is_unknown(
    folder: str, tmp_path: Path, tokenizer_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cloudload.bench import measure_loader

    monkeypatch.setattr(machine, "PROCESSES", tmp_path / "proc")
    options: dict[str, Any] = {"tokenizer": tokenizer_file, "eos": None, "seq_len": 16}
    with pytest.raises(ValueError, match="no /proc, so the CPU time of workers"):
        measure_loader(folder, steps=1, num_workers=1, batch_size=2, **options)
    assert measure_loader(folder, steps=1, num_workers=0, batch_size=2, **options).cores > 0
