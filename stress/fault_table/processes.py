"""The section `processes`: the error, its delay, and the leftovers when a training job ends.

Each job is `lone_trainer.py` with 2 workers, in a new session. It reads a hundred zstd shards from
S3 through a proxy that no other job uses. The store "answers" if it works. It is "silent" if the
bodies of shards stop in the middle, so that fetches hang when the fault occurs.

seconds     from the signal or call to the exit of the job's last process, or to the end of the
            call. A transform fails while workers run ahead, so its seconds include the training
            loop's steps until the error.
left        processes / names in /dev/shm (torch_, psm_, sem., mp-) / lock and part files in the
            cache. After a call, only worker processes are counted, because the training process
            continues. If something different is left when that process exits, it is added.
message     the class and text of the last error on stderr. For calls, the effect of next() on the
            old iterator.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cloudload.data.cache.cache_folder import sweep
from stress.fault_table.markdown import shorten, table
from testkit.corpora import random_documents, write_mds
from testkit.fault_proxy import Fault, FaultProxy, start_fault_proxy
from testkit.jobs import Job, start_job
from testkit.left_behind import left_overs, orphans
from testkit.patience import soon
from testkit.servers import S3Server, start_s3

HEADS = ("fault", "store", "seconds:", "end", "left", "message")
SILENCE_S = 600.0
MOST_S = 200.0
"""Seconds after which a job counts as hung. This is longer than a request is retried."""
_CGROUP_BYTES = 64 << 20
_ERROR = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?((?:\w*Error|KeyboardInterrupt|SystemExit)\b.*)",
    re.MULTILINE | re.DOTALL,
)

SIGNALS = {
    "SIGKILL of a worker": (signal.SIGKILL, "worker"),
    "SIGTERM of a worker": (signal.SIGTERM, "worker"),
    "SIGKILL of the training process": (signal.SIGKILL, "trainer"),
    "SIGKILL of the whole group": (signal.SIGKILL, "group"),
    "SIGTERM of the training process": (signal.SIGTERM, "trainer"),
    "SIGTERM of the whole group": (signal.SIGTERM, "group"),
    "Ctrl-C": (signal.SIGINT, "group"),
}
TRANSFORMS = {
    "exception in a transform": "explode",
    "sys.exit in a transform": "leave",
    "MemoryError in a transform": "swell",
    "SIGSEGV in a transform": "crash",
    "kernel OOM kill of a worker": "hoard",
}
WAYS = {
    "close()": "close",
    "abandoned iterator": "abandon",
    "second iterator of one loader": "two iterators",
    "end without close()": "end",
    "exception in the training loop": "fail",
}


@dataclass(frozen=True)
class JobWorkspace:
    """The data and server of all jobs, with the proxy and folder of one job."""

    data: str
    server: S3Server
    proxy: FaultProxy
    folder: Path
    is_silent: bool

    def start(self, variables: Mapping[str, str] | None = None, **options: Any) -> Job:
        """Start a job with `variables` in its environment, and the options of `start_job`."""
        given = self.server.environment(self.proxy.endpoint) | dict(variables or {})
        return start_job(self.data, options.pop("folder", self.folder), given, **options)

    @property
    def store(self) -> str:
        """What the store does, for the table."""
        return "silent" if self.is_silent else "answers"

    def silence(self, job: Job) -> None:
        """If `is_silent`, make the store's responses stop in the middle, and wait for a fetch.

        Raises `RuntimeError` if no fetch starts.
        """
        if self.is_silent:
            self.proxy.set_faults([Fault("GET .*shard", "stall", at=200, seconds=SILENCE_S)])
            if not soon(lambda: any(path.suffix == ".part" for path in left_overs(job.cache))):
                raise RuntimeError("The job started no fetch that a silent store could hang.")


Row = tuple[str, ...]
Case = Callable[[JobWorkspace, str], Row]


def cases() -> Iterator[tuple[str, Case, bool]]:
    """Yield the name, the function, and whether the store is silent, for every fault."""
    for is_silent in (False, True):
        yield from ((name, end_by_signal, is_silent) for name in SIGNALS)
        yield from ((name, end_by_call, is_silent) for name in WAYS)
        yield "SIGKILL of one of two ranks, as seen by the other rank", end_a_rank, is_silent
    yield from ((name, end_by_transform, False) for name in TRANSFORMS)


def measure(names: Sequence[str], threads: int = 2) -> str:
    """Measure the named faults, or all, and return the table. `threads` jobs run at a time."""
    with ExitStack() as running:
        server = running.enter_context(start_s3())
        os.environ.update(server.environment())
        data = write_mds(
            "s3://cloudload/jobs", random_documents(3, 400), shard_bytes=800, compression="zstd"
        )
        found = [case for case in cases() if not names or case[0] in names]

        def run(case: tuple[str, Case, bool]) -> Row:
            name, act, is_silent = case
            with (
                start_fault_proxy(server.endpoint) as proxy,
                TemporaryDirectory("", "cloudload-faults-", ignore_cleanup_errors=True) as folder,
            ):
                return act(JobWorkspace(data, server, proxy, Path(folder), is_silent), name)

        with ThreadPoolExecutor(threads) as pool:
            return table("Processes", HEADS, pool.map(run, found))


# ---------------------------------------------------------------- ends


def end_by_signal(work: JobWorkspace, name: str) -> Row:
    """Send a signal to a worker, to the training process, or to the whole process group."""
    number, whom = SIGNALS[name]
    job = work.start()
    job.wait_for(5)
    work.silence(job)
    began = time.monotonic()
    if whom == "group":
        os.killpg(job.process.pid, number)
    else:
        os.kill(min(job.workers()) if whom == "worker" else job.process.pid, number)
    return _see_end(work, name, job, lambda: began)


def end_by_transform(work: JobWorkspace, name: str) -> Row:
    """Run a job with a transform that fails on one document."""
    when = work.folder / "when"
    with _control_group() if TRANSFORMS[name] == "hoard" else contextlib.nullcontext("") as group:
        if group is None:
            why = "no memory control group could be created (needs root and cgroup v1)"
            return (name, "answers", "", "", "", f"not measured, because {why}")
        variables = {"FAULT_TIME": str(when), "FAULT_CGROUP": group}
        job = work.start(variables, settings={"transform": TRANSFORMS[name]}, pause_s=0.0)
        *row, message = _see_end(work, name, job, lambda: float(when.read_text()))
        is_right = not group or _has_killed(group)
        return (*row, message if is_right else f"NOT KILLED BY THE KERNEL: {message}")


def end_by_call(work: JobWorkspace, name: str) -> Row:
    """End the training loop between two batches, in one of `WAYS`, such as a call of close()."""
    job = work.start(way=WAYS[name])
    job.wait_for_line("ready")
    work.silence(job)
    began = time.monotonic()
    print(file=job.process.stdin, flush=True)
    if WAYS[name] in ("end", "fail"):
        return _see_end(work, name, job, lambda: began)
    seconds, message = json.loads(job.process.stdout.readline())
    soon(lambda: not job.workers(), 5.0)
    left = f"{len(job.workers())} / {_other_left(job)}"
    print(file=job.process.stdin, flush=True)
    ended = _see_end(work, name, job, time.monotonic)
    if ended[4] != left:
        left += f"; {ended[4]} when the job exits"
    message = f"next() of the old iterator: {message}" if message else "nothing"
    return (name, work.store, f"{seconds:.1f}", "continues", left, shorten(message))


def end_a_rank(work: JobWorkspace, name: str) -> Row:
    """Kill the training process of rank 1, and measure how rank 0 ends."""
    options: dict[str, Any] = {"ranks": 2, "rendezvous": str(work.folder / "rendezvous")}
    one, other = (
        work.start(folder=work.folder / f"rank-{rank}", rank=rank, **options) for rank in range(2)
    )
    try:
        one.wait_for(5)
        work.silence(one)
        began = time.monotonic()
        os.kill(other.process.pid, signal.SIGKILL)
        return _see_end(work, name, one, lambda: began)
    finally:
        other.kill()


# ---------------------------------------------------------------- the outcome


def _see_end(work: JobWorkspace, name: str, job: Job, began: Callable[[], float]) -> Row:
    try:
        _, errors = job.process.communicate(timeout=MOST_S)
        soon(lambda: not job.family())
        seconds = f"{time.monotonic() - began():.1f}"
    except subprocess.TimeoutExpired:
        seconds, errors = f"more than {MOST_S:.0f}", "HangError: the job hung"
    left = f"{len(job.family())} / {_other_left(job)}"
    if left_overs(job.cache):
        sweep(job.cache)  # as the next loader does
        left += f" ({len(left_overs(job.cache))} after the next start)"
    job.kill()
    return (name, work.store, seconds, _status(job.process.returncode), left, _message(errors))


def _other_left(job: Job) -> str:
    soon(lambda: not orphans(job.shared_memory), 2.0)
    return f"{len(orphans(job.shared_memory))} / {len(left_overs(job.cache))}"


def _status(code: int | None) -> str:
    if code is None:
        return "still running"
    return signal.Signals(-code).name if code < 0 else f"status {code}"


def _message(errors: str) -> str:
    """Return the class and message of the last error in the chain that ended the process."""
    errors = re.sub(r"^\[rank\d+\]:? ?", "", errors, flags=re.MULTILINE)  # torch adds this prefix
    last = re.split(r"\n\n(?:The above exception|During handling)[^\n]*\n\n", errors)[-1]
    if found := _ERROR.search(last):
        return shorten(found[1])
    return shorten(errors) or "nothing"


def _has_killed(group: str) -> bool:
    """Whether the kernel killed a process in the control group because memory ran out."""
    control = Path(group, "memory.oom_control").read_text()
    return bool(re.search(r"^oom_kill [1-9]", control, re.MULTILINE))


@contextlib.contextmanager
def _control_group() -> Iterator[str | None]:
    """Create a memory control group with a limit of 64 MiB, below that of this process.

    Yields its folder, or None if it cannot be created. Requires cgroup v1 and root.
    """
    own = re.search(r"^\d+:memory:(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    group = Path(f"/sys/fs/cgroup/memory{own[1] if own else ''}", f"cloudload-faults-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(_CGROUP_BYTES))
    except OSError:
        yield None
        return
    try:
        yield str(group)
    finally:
        soon(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
