"""How the processes of a job learn of each other's failures before all of them iterate.

    process 3    a loader cannot be created ─► notice in the store: "DatasetError: …"
                 ends ───────────────────────► its connection closes (`presence`)
    process 0    waits for process 3 to start iterating ─► finds both, and raises

A process that is only slow posts no notice, and the others wait for it. A process withdraws its
notice when it tries again. The others act on a notice after 30 s. A process ignores a notice if it
has raised an error of the same class itself and continued, because the other may continue, too.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, NamedTuple

from cloudload.delivery.presence import open_presence

logger = logging.getLogger(__name__)

_GRACE_S = 30.0
_ANSWER_S = 0.5
_MOST_TEXT = 1_000


class _Notice(NamedTuple):
    error: str
    """The name of the error's class, or "" if the process tries again."""
    text: str
    read_at: float
    """In `time.monotonic` seconds."""


class Attendance:
    """The notices and connections of one process, by which it learns that others have failed."""

    def __init__(self, store: Any, rank: int) -> None:
        self._store, self._rank = store, rank
        self._presence = open_presence(store, rank)
        self._notices: dict[int, _Notice] = {}
        self._num_read = 0
        self._own_errors, self._has_failed = set[str](), False

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

    def find_lost(self, has_arrived: Callable[[int], bool]) -> dict[int, str]:
        """Find the processes that will not arrive. Returns what happened to each, by rank.

        Raises `RuntimeError` if the store does not answer.
        """
        lost = dict.fromkeys(self._presence.find_ended() - {self._rank}, "has ended")
        notices, now = self._read(), time.monotonic()
        for rank, (error, text, read_at) in notices.items():
            if rank in lost:
                lost[rank] = f"has ended after it raised {text}"
            elif (
                error not in {"", *self._own_errors}
                and now - read_at >= _GRACE_S
                and not has_arrived(rank)
            ):
                lost[rank] = f"raised {text}"
        return lost

    def find_ended(self) -> dict[int, str]:
        """Find the processes that have ended, in half a second and without the store."""
        self._presence.find_ended()
        time.sleep(_ANSWER_S)
        return dict.fromkeys(self._presence.find_ended() - {self._rank}, "has ended")

    def _post(self, error: str, text: str) -> None:
        with contextlib.suppress(RuntimeError):  # without the store, the others fail, too
            number = self._store.add("notices", 1)
            self._store.set(f"notice/{number}", json.dumps([self._rank, error, text]))

    def _read(self) -> dict[int, _Notice]:
        """Read the notices posted since the last call, and return the latest of each process."""
        number = self._store.add("notices", 0)
        while self._num_read < number and self._store.check([f"notice/{self._num_read + 1}"]):
            self._num_read += 1
            rank, error, text = json.loads(self._store.get(f"notice/{self._num_read}"))
            self._notices[rank] = _Notice(error, text, time.monotonic())
        return {rank: each for rank, each in self._notices.items() if each.error}

    def close(self) -> None:
        """Close the connections. The other processes then regard this process as ended."""
        self._presence.close()


_joined: MutableMapping[Any, Attendance] = weakref.WeakKeyDictionary()
"""The attendance of this process in each torch.distributed job."""


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
        _joined[job] = attendance = Attendance(store, dist.get_rank())
        weakref.finalize(job, attendance.close)
    return _joined[job]
