"""Find the processes of jobs, and watch their progress, which is a line for each batch."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path

from stress.chaos.rank import run_rank
from stress.chaos.scenario import Job
from testkit import ROOT
from testkit.processes import environment_of, running_processes

MARK = "CLOUDLOAD_CHAOS"
_PRELOADED = ("stress.chaos.rank", "boto3", "google.cloud.storage", "tokenizers")
_CONNECTS = "_create_gloo_process_group"
_POLL_S, _STACKS_S = 0.02, 1.0
CORE_WAITS_EVERY_S = 5.0


class ProcessTree:
    """All descendants of a fork server from which ranks are forked.

    They are found by a mark in their environment, because a process whose parent was killed has
    another parent.
    """

    def __init__(self) -> None:
        self.context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._mark = uuid.uuid4().hex
        self._server: set[int] = set()

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """Start the fork server for a `with` block, and kill the whole tree afterwards."""
        # ranks are forked from a server that does nothing but import their modules
        os.environ[MARK] = self._mark
        # a fork server does not inherit sys.path (python/cpython#117378)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.context.set_forkserver_preload(list(_PRELOADED))
        try:
            warm = self.context.Process(target=int)
            warm.start()
            warm.join()
            self._server = self._marked()
            del os.environ[MARK]
            yield
        finally:
            kill(*self._marked())

    def pids(self) -> set[int]:
        """Return the PIDs of the running processes of jobs, without those of the fork server."""
        return self._marked() - self._server

    def core_waits(self) -> dict[int, float]:
        """Return the seconds that each process has waited for a core so far, by PID."""
        found = {}
        for pid in self.pids():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/schedstat").read_text().split()
                found[pid] = int(fields[1]) / 1e9
        return found

    def _marked(self) -> set[int]:
        mark = f"{MARK}={self._mark}".encode()
        marked = {each.pid for each in running_processes() if mark in environment_of(each.pid)}
        return marked - {os.getpid()}


def kill(*pids: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to those of the processes that still exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class SilenceTimer:
    """A timer of how long processes have written nothing, not counting waits for a core."""

    def __init__(self, core_waits: Callable[[], dict[int, float]]) -> None:
        self._read, self._read_at = core_waits, -math.inf
        self._waits: dict[int, float] = {}
        """Seconds that each process had waited for a core when the measurement started, by PID."""
        self.restart()

    def restart(self) -> None:
        """Restart the measurement. To save work, keep readings of waits that are up to 5 s old."""
        self._began = time.monotonic()
        if self._began - self._read_at > CORE_WAITS_EVERY_S:
            self._read_at, self._waits = self._began, self._read()

    def exceeds(self, seconds: float) -> bool:
        """Whether the processes wrote nothing for `seconds` plus their longest wait for a core."""
        now = time.monotonic()
        passed = now - self._began
        if passed <= seconds or now - self._read_at < CORE_WAITS_EVERY_S / 5:
            return False
        self._read_at, waits = now, self._read()
        longest = max((waits[pid] - self._waits.get(pid, 0.0) for pid in waits), default=0.0)
        return passed > seconds + longest


class Monitor:
    """The processes of a job and their progress. Creating a `Monitor` starts the job's ranks."""

    def __init__(self, job: Job, tree: ProcessTree) -> None:
        self._job, self._tree = job, tree
        self.ranks = [
            tree.context.Process(target=run_rank, args=(job, rank)) for rank in range(job.ranks)
        ]
        for rank in self.ranks:
            rank.start()

    def rank_pids(self) -> list[int]:
        """Return the PIDs of the running ranks, in order."""
        return sorted(rank.pid for rank in self.ranks if rank.pid and rank.is_alive())

    def other_pids(self) -> list[int]:
        """Return the PIDs of the running processes that the ranks have started, in order."""
        return sorted(self._tree.pids() - set(self.rank_pids()))

    def has_ended(self) -> bool:
        """Whether all ranks have exited."""
        return not self.rank_pids()

    def has_lost_a_rank(self) -> bool:
        """Whether any rank has exited."""
        return len(self.rank_pids()) < len(self.ranks)

    def bytes_written(self) -> int:
        """Return the number of bytes of row hashes that all ranks have written."""
        return sum(self._sizes())

    def has_stepped(self) -> bool:
        """Whether all ranks have taken a step."""
        return all(self._sizes())

    def wait_until(self, condition: Callable[[], bool], silence_s: float) -> bool:
        """Wait until a condition is true, and return True.

        Returns False if the ranks write nothing for `silence_s` seconds, not counting the seconds
        in which their processes wait for a core of a busy machine.
        """
        written, silence = self.bytes_written(), SilenceTimer(self._tree.core_waits)
        while not condition():
            if silence.exceeds(silence_s):
                return condition()
            if (now := self.bytes_written()) > written:
                written = now
                silence.restart()
            time.sleep(_POLL_S)
        return True

    def stacks(self) -> dict[int, str]:
        """Make the running ranks print their stacks to their logs, and return these by rank."""
        alive = [number for number, rank in enumerate(self.ranks) if rank.is_alive()]
        sizes = {number: len(self.log(number)) for number in alive}
        kill(*self.rank_pids(), number=signal.SIGUSR1)
        time.sleep(_STACKS_S)
        return {number: self.log(number)[size:] for number, size in sizes.items()}

    def waits_for_torch(self) -> bool:
        """Whether all running ranks wait until torch's process group has connected.

        If one of the ranks was killed, torch lets the others wait until a launcher kills them.
        """
        stacks = self.stacks()
        return bool(stacks) and all(_CONNECTS in stack for stack in stacks.values())

    def log(self, rank: int) -> str:
        """Return the text that a rank and its workers have printed."""
        log = self._job.log_file(rank)
        return log.read_text(errors="replace") if log.exists() else ""

    def _sizes(self) -> list[int]:
        files = map(self._job.rows_file, range(self._job.ranks))
        return [file.stat().st_size if file.exists() else 0 for file in files]
