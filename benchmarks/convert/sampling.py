"""Sample the memory of a side's processes, and the bytes in a folder, during a turn."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from benchmarks.harness import descendants

INTERVAL_S = 0.1


class Sampler:
    """A thread that samples memory and disk use every 0.1 s during a `with` block.

    The memory of a process is its high-water mark, which the kernel keeps. Samples therefore miss
    only about the last 0.1 s before a process exits.
    """

    def __init__(self, pid: int, folder: Path) -> None:
        self._pid, self._folder = pid, folder
        self._peaks: dict[int, int] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.disk = 0
        """The largest total size of the files in the folder, in bytes."""

    def __enter__(self) -> Sampler:
        with contextlib.suppress(OSError):
            Path(f"/proc/{self._pid}/clear_refs").write_text("5")  # reset the high-water mark
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._sample()

    def memory(self, processes: int) -> int:
        """Return the largest resident set of a process that converts, in bytes."""
        if processes == 1:
            return self._peaks[self._pid]
        others = [peak for pid, peak in self._peaks.items() if pid != self._pid and peak]
        return max(others, default=self._peaks[self._pid])

    def _run(self) -> None:
        while not self._end.wait(INTERVAL_S):
            self._sample()

    def _sample(self) -> None:
        for pid in (self._pid, *descendants(self._pid)):
            self._peaks[pid] = max(self._peaks.get(pid, 0), high_water_mark(pid))
        self.disk = max(self.disk, size_of(self._folder))


def high_water_mark(pid: int) -> int:
    """Return the peak resident set of a process in bytes, or 0 if the process has exited."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 0


def size_of(folder: Path) -> int:
    """Return the total size of the files in a folder, in bytes."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # a file may be deleted at any time
            total += path.stat().st_size
    return total
