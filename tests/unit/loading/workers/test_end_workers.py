"""Removing a killed worker's temporary files delays the error by at most a second."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from cloudload.loading.workers import processes
from cloudload.loading.workers.processes import end_workers


class KilledWorker:
    """A fake worker that reports that it had to be killed."""

    is_own = True

    def ask_to_end(self) -> None:
        pass

    def end(self, deadline: float) -> bool:
        return True


def test_the_cleanup_of_a_large_cache_delays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, swept = threading.Event(), threading.Event(), threading.Event()

    def sweep(root: Path) -> None:
        assert root == tmp_path
        begun.set()
        may_end.wait()
        swept.set()

    monkeypatch.setattr("cloudload.data.cache.cache_folder.sweep", sweep)
    monkeypatch.setattr(processes, "_SWEEP_S", 0.01)
    worker: Any = KilledWorker()
    end_workers([worker], tmp_path)
    assert begun.wait(60)
    assert not swept.is_set()
    may_end.set()
    assert swept.wait(60)
