"""Run a job: disturb it, kill it or let it finish, and check its errors and leftovers."""

from __future__ import annotations

import contextlib
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from stress.chaos.caches import left_overs
from stress.chaos.disks import give_room, mount
from stress.chaos.drama import CONNECTING, Drama, Stop
from stress.chaos.family import Family, kill
from stress.chaos.findings import Findings
from stress.chaos.jobs import NUM_LANES
from stress.chaos.rank import Campaign, Job, describe
from stress.chaos.stores import Store
from stress.chaos.watch import Watch
from testkit.jobs import command_of
from testkit.left_behind import orphans, shared_memory
from testkit.patience import soon

MARGIN_S = 30.0
"""A job counts as hung if it writes nothing for its ranks' timeout plus this many seconds."""
_CONNECT_S = 300.0
"""How long gloo waits for a connection; see `cloudload.loading.delivery.gather`."""
_UNDER_TORCH_S = 12.0
_OF_CLOUDLOAD = "cloudload.errors."
_EXPLAINED = ("StoreError", "DatasetError", "RanksDisagreeError")
"""Errors of cloudload that a fault of the store or the exit of another rank can cause."""
_OF_OTHERS = {"RanksDisagreeError", "RuntimeError"}
"""Errors of ranks that lost the connection to another rank."""


@dataclass(frozen=True)
class Stage:
    """The objects and settings that all jobs share."""

    family: Family
    found: Findings
    draw: random.Random
    pause: float
    """Maximum seconds from a job's first step to the signal that ends it."""


class JobRun:
    """One run of a job, with its faults and the checks afterwards."""

    def __init__(
        self, campaign: Campaign, job: Job, drama: Drama, store: Store, stage: Stage
    ) -> None:
        self._campaign, self._job, self._drama, self._store = campaign, job, drama, store
        self._family, self._found = stage.family, stage.found
        self._draw, self._pause = stage.draw, stage.pause
        connect_s = _CONNECT_S if drama.end == CONNECTING else 0.0
        self._quiet_s = max(job.patience_s, connect_s) + MARGIN_S

    def run(self) -> str:
        """Run the job until it finishes or is killed, and return a description of what happened."""
        littered = left_overs(self._campaign, self._job)
        named, launched = shared_memory(), time.monotonic()
        self._make_disks()
        self._watch = Watch(self._campaign, self._job, self._family)
        if self._drama.is_early:
            time.sleep(self._draw.uniform(0.0, 2.0))
        else:
            self._await_step(littered)
        stepped = time.monotonic()
        with self._stopped():
            self._fill_disks()
            self._end()
        acted = time.monotonic()
        self._await_end()
        ended = time.monotonic() - acted
        self._check_left(named, littered)
        self._count(ended)
        return (
            f"{self._describe()}, {self._note_errors()}, {stepped - launched:.1f} s to the first "
            f"step, {acted - stepped:.1f} s of faults, {ended:.1f} s to the exit"
        )

    # ------------------------------------------------------------ before the end

    def _make_disks(self) -> None:
        for node in range(self._job.nodes):
            cache = self._job.cache(self._campaign, node)
            cache.mkdir(exist_ok=True)
            if self._campaign.has_disks:
                mount(cache)
                give_room(cache, self._draw if self._drama.disk == "small" else None)

    def _await_step(self, littered: set[tuple[str, int]]) -> None:
        watch = self._watch
        if not watch.wait_until(
            lambda: watch.has_stepped() or watch.has_lost_a_rank(), self._quiet_s
        ):
            self._fail_hung("completed no step")
        if watch.has_stepped() and not watch.has_lost_a_rank():
            if kept := littered & left_overs(self._campaign, self._job):
                self._found.fail(
                    f"job {self._job.number} did not remove the leftovers of earlier jobs, such as "
                    f"{sorted(kept)[:3]}"
                )
            if self._drama.end not in ("none", CONNECTING):
                time.sleep(self._draw.uniform(0.0, self._pause))

    @contextlib.contextmanager
    def _stopped(self) -> Iterator[None]:
        """Stop processes with SIGSTOP, and continue them before or after the `with` block."""
        stop = self._drama.stop
        if stop is None or self._watch.has_lost_a_rank():
            yield
            return
        self._found.stops[stop.describe()] += 1
        pids = self._pids_of(stop.of)
        try:
            for pid in pids:
                kill(pid, signal.SIGSTOP)
            time.sleep(stop.seconds)
            if stop.is_at_end:
                yield
        finally:
            for pid in pids:
                kill(pid, signal.SIGCONT)
        if not stop.is_at_end:
            self._check_progress(stop)
            yield

    def _pids_of(self, stopped: str) -> list[int]:
        heads, others = sorted(self._watch.heads()), sorted(self._watch.others())
        return {
            "a rank": self._sample(heads),
            "a worker": self._sample(others or heads),
            "all ranks": heads,
            "all processes": heads + others,
            "the store": [self._store.server.pid],
        }[stopped]

    def _check_progress(self, stop: Stop) -> None:
        """Check that the job continues after a short stop. After a long one, it may fail."""
        watch, written = self._watch, self._watch.written()
        if not watch.wait_until(
            lambda: watch.written() > written or watch.has_lost_a_rank(), self._quiet_s
        ):
            self._fail_hung(f"made no progress after a {stop.describe()}")
        errors = {name.rpartition(".")[2] for name in self._errors().values()}
        is_short = stop.seconds < self._job.patience_s / 2 - 5 and stop.of != "the store"
        # if there is any other error, that error is the cause instead of the stop
        if is_short and errors and errors <= _OF_OTHERS:
            self._found.fail(
                f"job {self._job.number} failed because of a {stop.describe()}, although the stop "
                f"lasted only {stop.seconds:.1f} s\n{self._last_lines()}"
            )

    def _fill_disks(self) -> None:
        if self._drama.disk != "fills" or self._watch.has_lost_a_rank():
            return
        caches = [self._job.cache(self._campaign, node) for node in range(self._job.nodes)]
        for cache in caches:
            give_room(cache, self._draw)
        time.sleep(self._draw.uniform(0.5, 4.0))
        if self._draw.random() < 0.5:
            for cache in caches:
                give_room(cache, None)

    def _end(self) -> None:
        heads = sorted(self._watch.heads())
        others = sorted(self._watch.others() - set(heads))
        victims: dict[str, list[int]] = {
            "SIGKILL a worker": self._sample(others or heads),
            "SIGKILL a rank": self._sample(heads),
            "SIGTERM a rank": self._sample(heads),
            "SIGKILL ranks": heads,
            "SIGKILL all": heads + others,
        }
        for victim in victims.get(self._drama.end, []):
            kill(victim, signal.SIGTERM if self._drama.end == "SIGTERM a rank" else signal.SIGKILL)

    def _sample(self, pids: list[int]) -> list[int]:
        return self._draw.sample(pids, min(1, len(pids)))

    # ------------------------------------------------------------ the end

    def _await_end(self) -> None:
        """Wait until all processes have exited, and kill those that hang."""
        watch = self._watch
        if not (
            watch.wait_until(watch.has_ended, _UNDER_TORCH_S)
            or watch.waits_for_torch()
            or watch.wait_until(watch.has_ended, self._quiet_s)
            or watch.waits_for_torch()
        ):
            self._fail_hung(f"did not exit (end: {self._drama.end})")
        elif not watch.has_ended():
            self._found.errors["waits for torch's process group"] += 1
        if watch.has_ended() and not soon(lambda: not self._family.members()):
            left = [command_of(pid) for pid in self._family.members()]
            self._found.fail(
                f"job {self._job.number} left processes running (end: {self._drama.end}): {left}"
            )
        for pid in self._family.members():
            kill(pid)

    def _check_left(self, named: set[str], littered: set[tuple[str, int]]) -> None:
        more = left_overs(self._campaign, self._job) - littered
        is_clean = self._drama.end == "none" and all(
            rank.exitcode == 0 for rank in self._watch.ranks
        )
        if more and is_clean:
            self._found.fail(
                f"job {self._job.number} exited without an error, but left files in the cache, "
                f"such as {sorted(more)[:3]}"
            )
        if not soon(lambda: not orphans(named), 5.0):
            self._found.fail(
                f"job {self._job.number} left files in /dev/shm (end: {self._drama.end}): "
                f"{orphans(named)}"
            )

    def _count(self, ended_s: float) -> None:
        found, drama, job = self._found, self._drama, self._job
        end = f"{drama.end}, before the first step" if drama.is_early else drama.end
        found.ends[end] += 1
        if drama.end != "none":
            found.slowest_end_s[end] = max(found.slowest_end_s[end], round(ended_s, 1))
        if self._campaign.has_disks:
            found.disks[drama.disk or "ample"] += 1
        found.faults.update(self._store.count_faults())
        evenly = "lanes divided evenly" if NUM_LANES % job.ranks == 0 else "lanes divided unevenly"
        for name, value in {
            "store": self._store.scheme,
            "run": self._campaign.name,
            "lengths": f"{self._campaign.lengths}, lengths={job.lengths}",
            "start method": job.start_method if job.workers else "no workers",
            "ranks": f"{job.ranks}, {evenly}",
            "nodes": str(job.nodes),
        }.items():
            found.drawn[name][value] += 1

    # ------------------------------------------------------------ errors

    def _errors(self) -> dict[int, str]:
        """Return the names of the errors with which ranks exited, by rank."""
        errors = {}
        for number, rank in enumerate(self._watch.ranks):
            if rank.exitcode == 1:
                names = re.findall(
                    r"^([\w.]*(?:Error|Exception|Interrupt))\b",
                    self._watch.log(number),
                    re.MULTILINE,
                )
                errors[number] = names[-1] if names else "an unnamed error"
        return errors

    def _note_errors(self) -> str:
        found = Counter[str]()
        for number, error in self._errors().items():
            log = self._watch.log(number)
            is_of_ranks = error == "RuntimeError" and re.search(
                r"gloo|Connection|peer|store|socket", log
            )
            if not (self._explains(error) or is_of_ranks or error.startswith("torch.distributed.")):
                self._found.fail(
                    f"job {self._job.number}: rank {number} failed with {error}, which the job's "
                    f"faults do not explain: {self._drama}\n{log[-3000:]}"
                )
            found[error.removeprefix(_OF_CLOUDLOAD)] += 1
        is_undisturbed = self._drama.end == "none" and self._drama.stop is None
        if is_undisturbed and found and set(found) <= _OF_OTHERS:
            self._found.fail(
                f"job {self._job.number}: ranks lost the connection to another rank, but no rank "
                f"was killed or failed first\n{self._last_lines()}"
            )
        self._found.errors.update(found)
        return ", ".join(f"{times} {error}" for error, times in found.items()) or "no error"

    def _explains(self, error: str) -> bool:
        """Whether an error is cloudload's, and the faults of the job can cause it."""
        if not error.startswith(_OF_CLOUDLOAD):
            return False
        name = error.removeprefix(_OF_CLOUDLOAD)
        return (
            name in _EXPLAINED
            or (name == "CacheError" and self._drama.disk is not None)
            or (name == "WorkerError" and self._drama.end == "SIGKILL a worker")
        )

    def _fail_hung(self, what: str) -> None:
        stacks = "\n".join(f"rank {rank}:\n{text}" for rank, text in self._watch.stacks().items())
        self._found.fail(
            f"job {self._job.number} hung: it {what}. {describe(self._job)} {self._drama}\n"
            f"{self._last_lines()}\n{stacks}"
        )

    def _last_lines(self) -> str:
        return "\n".join(self._watch.log(rank)[-2000:] for rank in range(self._job.ranks))

    def _describe(self) -> str:
        drama, job = self._drama, self._job
        parts = [
            f"{job.ranks} ranks on {job.nodes} nodes",
            f"{job.workers} workers ({job.start_method})",
            f"lengths {job.lengths}",
            drama.end + " early" * drama.is_early,
            *([f"{drama.stop.describe()} ({drama.stop.seconds:.0f} s)"] if drama.stop else []),
            *([f"disk {drama.disk}"] if drama.disk else []),
        ]
        return ", ".join(parts)
