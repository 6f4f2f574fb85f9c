"""A lock is held by one process at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cloudload.system.file_locks import locked
from tests.support import ROOT


def test_a_lock_is_held_by_one_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with locked(path), locked(path, wait=False) as is_free:
        assert not is_free
    assert not path.exists()
    with locked(path, wait=False) as is_free:
        assert is_free
    script = f"""
from pathlib import Path
from cloudload.system.file_locks import locked
counter = Path({str(tmp_path / "counter")!r})
for _ in range(200):
    with locked(Path({str(path)!r})):
        counter.write_text(str(int(counter.read_text() or 0) + 1) if counter.exists() else "1")
"""
    processes = [subprocess.Popen([sys.executable, "-c", script], cwd=ROOT) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert (tmp_path / "counter").read_text() == "800"
    assert not path.exists()
