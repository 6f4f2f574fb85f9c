"""Watch the progress of a job, whose ranks write a line for each batch."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from stress.chaos.family import Family, kill
from stress.chaos.rank import Campaign, Job, run_rank

_CONNECTS = "_create_gloo_process_group"
_LOOK_EVERY_S, _STACKS_S = 0.02, 1.0
_LOOK_AT_WAITS_EVERY_S = 5.0


class Quiet:
    """A timer of how long processes have written nothing, not counting waits for a core."""

    def __init__(self, family: Family) -> None:
        self._family, self._looked_at = family, -math.inf
        self._waits: dict[int, float] = {}
        """Seconds that each process had waited for a core when the measurement started, by PID."""
        self.restart()

    def restart(self) -> None:
        """Restart the measurement. To save work, keep readings of waits that are up to 5 s old."""
        self._began = time.monotonic()
        if self._began - self._looked_at > _LOOK_AT_WAITS_EVERY_S:
            self._looked_at, self._waits = self._began, self._read_waits()

    def has_lasted(self, seconds: float) -> bool:
        """Whether the processes wrote nothing for `seconds` plus their longest wait for a core."""
        passed = time.monotonic() - self._began
        if passed <= seconds or time.monotonic() - self._looked_at < _LOOK_AT_WAITS_EVERY_S / 5:
            return False
        self._looked_at = time.monotonic()
        waits = self._read_waits()
        longest = max((waits[pid] - self._waits.get(pid, 0.0) for pid in waits), default=0.0)
        return passed > seconds + longest

    def _read_waits(self) -> dict[int, float]:
        found = {}
        for pid in self._family.members():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/schedstat").read_text().split()
                found[pid] = int(fields[1]) / 1e9
        return found


class Watch:
    """The processes of a job and their progress. Creating a `Watch` starts the job's ranks."""

    def __init__(self, campaign: Campaign, job: Job, family: Family) -> None:
        self._campaign, self._job, self._family = campaign, job, family
        self.ranks: list[ForkServerProcess] = [
            family.context.Process(target=run_rank, args=(campaign, job, rank))
            for rank in range(job.ranks)
        ]
        for rank in self.ranks:
            rank.start()

    def heads(self) -> set[int]:
        """Return the PIDs of the living ranks."""
        return {rank.pid for rank in self.ranks if rank.pid and rank.is_alive()}

    def others(self) -> set[int]:
        """Return the PIDs of the living processes that the ranks have started."""
        return self._family.members() - self.heads()

    def has_ended(self) -> bool:
        """Whether all ranks have exited."""
        return not self.heads()

    def has_lost_a_rank(self) -> bool:
        """Whether any rank has exited."""
        return len(self.heads()) < len(self.ranks)

    def written(self) -> int:
        """Return the number of bytes of row hashes that all ranks have written."""
        return sum(file.stat().st_size for file in self._rows_files() if file.exists())

    def has_stepped(self) -> bool:
        """Whether all ranks have taken a step."""
        return all(file.exists() and file.stat().st_size for file in self._rows_files())

    def wait_until(self, condition: Callable[[], bool], quiet_s: float) -> bool:
        """Wait until a condition is true, and return True.

        Returns False if the ranks write nothing for `quiet_s` seconds, not counting the seconds in
        which their processes wait for a core of a busy machine.
        """
        written, quiet = self.written(), Quiet(self._family)
        while not condition():
            if quiet.has_lasted(quiet_s):
                return condition()
            if (now := self.written()) > written:
                written = now
                quiet.restart()
            time.sleep(_LOOK_EVERY_S)
        return True

    def stacks(self) -> dict[int, str]:
        """Make the living ranks print their stacks to their logs, and return the stacks by rank."""
        logs = {
            number: self._job.log_file(self._campaign, number)
            for number, rank in enumerate(self.ranks)
            if rank.is_alive()
        }
        sizes = {number: log.stat().st_size for number, log in logs.items() if log.exists()}
        for number in sizes:
            kill(self.ranks[number].pid, signal.SIGUSR1)
        time.sleep(_STACKS_S)
        return {
            number: logs[number].read_bytes()[size:].decode(errors="replace")
            for number, size in sizes.items()
        }

    def waits_for_torch(self) -> bool:
        """Whether all living ranks wait until torch's process group has connected.

        If one of the ranks was killed, torch lets the others wait until a launcher kills them.
        """
        stacks = self.stacks()
        return bool(stacks) and all(_CONNECTS in stack for stack in stacks.values())

    def log(self, rank: int) -> str:
        """Return the text that a rank and its workers have printed."""
        log = self._job.log_file(self._campaign, rank)
        return log.read_text(errors="replace") if log.exists() else ""

    def _rows_files(self) -> Iterator[Path]:
        return (self._job.rows_file(self._campaign, rank) for rank in range(self._job.ranks))
