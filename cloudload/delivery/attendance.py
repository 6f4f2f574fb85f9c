"""How the processes of a job learn of each other's failures before all of them iterate.

    process 3    a loader cannot be created ─► notice in the store: "DatasetError: …"
                 ends ───────────────────────► its connection closes (`presence`)
    process 0    waits for process 3 to start iterating ─► finds both, and raises

A process that is only slow posts no notice, and the others wait for it. A process withdraws its
notice when it tries again. A process that waits acts on a notice after 90 s. It ignores the notice
if it has raised an error of the same class itself and continued, because the other may, too.

The store may contain notices of an earlier job. A notice counts if its process is connected to the
same process as this one (`Presence.generation`). If this process has had no earlier job, then a
notice that is newer than this process counts, too.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import time
import weakref
from collections.abc import Callable, Collection, Iterator, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from cloudload.delivery.gather import FindLost
from cloudload.delivery.presence import open_presence

logger = logging.getLogger(__name__)

_GRACE_S = 90.0
_CONFIRM_S = 5.0
"""A process has ended if two looks with this time between them find so."""
_ANSWER_S = 0.5
_MOST_TEXT = 1_000


class _Notice(NamedTuple):
    error: str
    """The name of the error's class, or "" if the process tries again."""
    text: str
    generation: str
    posted_at: float
    """In `time.time` seconds."""
    read_at: float
    """In `time.monotonic` seconds."""


class Attendance:
    """The notices and connections of one process, by which it learns that others have failed."""

    def __init__(
        self, store: Any, rank: int, retired: Collection[str] = (), since: float = -math.inf
    ) -> None:
        """`retired` has the generations of this process's earlier jobs. Notices of other
        generations count if they were posted after `since`, in `time.time` seconds."""
        self._store, self._rank, self._since = store, rank, since
        self._presence = open_presence(store, rank, retired)
        self._notices: dict[int, _Notice] = {}
        self._num_read = 0
        self._own_errors, self._has_failed = set[str](), False

    @property
    def generation(self) -> str:
        """See `Presence.generation`."""
        return self._presence.generation

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Post a notice if this block raises an error. The next such block withdraws the notice."""
        if self._has_failed:
            self._post("", "")
        self._has_failed = False
        try:
            yield
        except Exception as error:
            self._has_failed = True
            name = type(error).__name__
            self._own_errors.add(name)
            self._post(name, f"{name}: {error}"[:_MOST_TEXT])
            raise

    def watch(self) -> FindLost:
        """Begin to wait for the other processes.

        Returns a function that finds processes that will not arrive: what happened to them, by
        rank. It raises `RuntimeError` if the store does not answer.
        """
        began_at, first_found = time.monotonic(), dict[int, float]()

        def find_lost(has_arrived: Callable[[int], bool]) -> dict[int, str]:
            notices, now = self._read(), time.monotonic()
            found = self._presence.find_ended() - {self._rank}
            for rank in {*first_found} - found:
                del first_found[rank]
            ended = {
                rank for rank in found if now - first_found.setdefault(rank, now) >= _CONFIRM_S
            }
            lost = dict.fromkeys(ended, "has ended")
            for rank, notice in notices.items():
                if rank in ended:
                    lost[rank] = f"has ended after it raised {notice.text}"
                elif (
                    notice.error not in self._own_errors
                    and now - max(began_at, notice.read_at) >= _GRACE_S
                ):
                    lost[rank] = f"raised {notice.text}"
            return {rank: text for rank, text in lost.items() if not has_arrived(rank)}

        return find_lost

    def find_ended(self) -> dict[int, str]:
        """The processes that seem to have ended. Only for the text of another error."""
        time.sleep(_ANSWER_S)
        return dict.fromkeys(self._presence.find_ended() - {self._rank}, "has ended")

    def _post(self, error: str, text: str) -> None:
        with contextlib.suppress(RuntimeError):  # without the store, the others fail, too
            notice = [self._rank, error, text, self.generation, time.time()]
            number = self._store.add("notices", 1)
            self._store.set(f"notice/{number}", json.dumps(notice))

    def _read(self) -> dict[int, _Notice]:
        """Read the notices posted since the last call, and return the latest of each process."""
        number = self._store.add("notices", 0)
        while self._num_read < number and self._store.check([f"notice/{self._num_read + 1}"]):
            self._num_read += 1
            found = json.loads(self._store.get(f"notice/{self._num_read}"))
            rank, error, text, generation, posted_at = found
            notice = _Notice(error, text, generation, posted_at, time.monotonic())
            is_own = bool(self.generation) and notice.generation == self.generation
            if rank != self._rank and (is_own or notice.posted_at > self._since):
                self._notices[rank] = notice
        return {rank: each for rank, each in self._notices.items() if each.error}

    def close(self) -> None:
        """Close the connections. The other processes then regard this process as ended."""
        self._presence.close()


_joined: MutableMapping[Any, Attendance] = weakref.WeakKeyDictionary()
"""The attendance of this process, by the job of torch.distributed."""
_attendances: list[Attendance] = []
"""Those of all jobs of this process, the current one included."""


def join_job() -> Attendance | None:
    """Return this process's attendance in the torch.distributed job. The first call opens it.

    Returns None if torch.distributed is not initialized, or has one process. The connections close
    when the process group is destroyed, or when this process ends.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return None
    job = dist.group.WORLD
    if job not in _joined:
        store = dist.PrefixStore("cloudload/start", dist.distributed_c10d._get_default_store())
        since = math.inf if _attendances else _find_own_start()
        attendance = Attendance(
            store, dist.get_rank(), {each.generation for each in _attendances}, since
        )
        _attendances.append(attendance)
        _joined[job] = attendance
        weakref.finalize(job, attendance.close)
    return _joined[job]


def _find_own_start() -> float:
    """When this process started, in `time.time` seconds. Infinite if /proc does not show it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(") ")[2].split()[19])
        up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.time() - up_s + ticks / os.sysconf("SC_CLK_TCK")
    return math.inf
