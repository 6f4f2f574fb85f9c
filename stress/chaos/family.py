"""Find and kill the processes of jobs, which have a mark in their environment."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import uuid
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path

from testkit import ROOT

MARK = "CLOUDLOAD_CHAOS"
_PRELOADED = ("boto3", "google.cloud.storage", "tokenizers")


class Family:
    """The fork server from which ranks are forked, and all descendants of that server."""

    def __init__(self) -> None:
        self.context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._mark = uuid.uuid4().hex
        self._servants: set[int] = set()

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """Start the fork server for a `with` block, and kill the whole family afterwards."""
        # ranks are forked from a server that does nothing but import their modules
        os.environ[MARK] = self._mark
        # a fork server does not inherit sys.path (python/cpython#117378)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.context.set_forkserver_preload(["stress.chaos.campaigns", *_PRELOADED])
        try:
            warm = self.context.Process(target=int)
            warm.start()
            warm.join()
            self._servants = self._living()
            del os.environ[MARK]
            yield
        finally:
            for pid in self._living():
                kill(pid)

    def members(self) -> set[int]:
        """Return the PIDs of the living processes of jobs, without those of the fork server."""
        return self._living() - self._servants

    def _living(self) -> set[int]:
        mark, found = f"{MARK}={self._mark}".encode(), set()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                state = path.with_name("stat").read_text().rpartition(")")[2].split()[0]
                if mark in path.read_bytes() and state != "Z":
                    found.add(int(path.parent.name))
        return found - {os.getpid()}


def kill(pid: int | None, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a process if it still exists."""
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
