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

from stress.campaign import Report
from stress.chaos.monitor import Monitor, ProcessTree, kill
from stress.chaos.scenario import CONNECTING, NUM_LANES, Job, Pause
from stress.chaos.storage import AMPLE, Store, left_overs, resize
from testkit.disks import mount
from testkit.left_behind import orphans, shared_memory
from testkit.patience import soon
from testkit.processes import command_of

_MARGIN_S = 30.0
"""A job counts as hung if it writes nothing for its ranks' timeout plus this many seconds."""
_CONNECT_S = 300.0
"""How long gloo waits for a connection; see `cloudload.loading.delivery.all_gather`."""
_UNDER_TORCH_S = 12.0
_OF_CLOUDLOAD = "cloudload.errors."
_EXPLAINED = ("StoreError", "DatasetError", "RanksDisagreeError")
"""Errors of cloudload that a fault of the store or the exit of another rank can cause."""
_OF_OTHERS = {"RanksDisagreeError", "RuntimeError"}
"""Errors of ranks that lost the connection to another rank."""
_ERROR = re.compile(r"^([\w.]*(?:Error|Exception|Interrupt))\b", re.MULTILINE)
_CONNECTION = re.compile(r"gloo|Connection|peer|store|socket")


@dataclass
class JobRunner:
    """Runs one job with its faults, and checks it afterwards."""

    job: Job
    store: Store
    tree: ProcessTree
    report: Report
    draw: random.Random
    max_delay_s: float
    """Maximum seconds from the job's first step to the signal that ends it."""

    @property
    def silence_s(self) -> float:
        """Seconds without a row after which the job counts as hung."""
        connect_s = _CONNECT_S if self.job.scenario.end == CONNECTING else 0.0
        return max(self.job.scenario.timeout_s, connect_s) + _MARGIN_S

    def run(self) -> str:
        """Run the job until it finishes or is killed, and return a description of what happened."""
        old_files, old_names = left_overs(self.job.caches), shared_memory()
        launched = time.monotonic()
        self._make_disks()
        self._monitor = Monitor(self.job, self.tree)
        if self.job.scenario.is_early:
            time.sleep(self.draw.uniform(0.0, 2.0))
        else:
            self._await_step(old_files)
        stepped = time.monotonic()
        with self._paused():
            self._fill_disks()
            self._end()
        acted = time.monotonic()
        self._await_end()
        exit_s = time.monotonic() - acted
        self._check_leftovers(old_names, old_files)
        self._count(exit_s)
        return (
            f"{self._describe()}, {self._check_errors()}, {stepped - launched:.1f} s to the first "
            f"step, {acted - stepped:.1f} s of faults, {exit_s:.1f} s to the exit"
        )

    def _fail(self, what: str) -> None:
        self.report.fail(f"job {self.job.number} {what}")

    # ------------------------------------------------------------ before the end

    def _make_disks(self) -> None:
        for cache in self.job.caches:
            cache.mkdir(exist_ok=True)
            if self.job.run.has_disks:
                mount(cache, AMPLE)
                resize(cache, self.draw if self.job.scenario.disk == "small" else None)

    def _await_step(self, old_files: set[tuple[str, int]]) -> None:
        monitor = self._monitor
        if not monitor.wait_until(
            lambda: monitor.has_stepped() or monitor.has_lost_a_rank(), self.silence_s
        ):
            self._fail_hung("completed no step")
        if monitor.has_stepped() and not monitor.has_lost_a_rank():
            if kept := sorted(old_files & left_overs(self.job.caches)):
                self._fail(f"did not remove the leftovers of earlier jobs, such as {kept[:3]}")
            if self.job.scenario.end not in ("none", CONNECTING):
                time.sleep(self.draw.uniform(0.0, self.max_delay_s))

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        """Stop processes with SIGSTOP, and continue them before or after the `with` block."""
        pause = self.job.scenario.pause
        if pause is None or self._monitor.has_lost_a_rank():
            yield
            return
        self.report.counts["pauses"][pause.describe()] += 1
        pids = self._choose_pids(pause.of)
        try:
            kill(*pids, number=signal.SIGSTOP)
            time.sleep(pause.seconds)
            if pause.is_at_end:
                yield
        finally:
            kill(*pids, number=signal.SIGCONT)
        if not pause.is_at_end:
            self._check_progress(pause)
            yield

    def _choose_pids(self, which: str) -> list[int]:
        """Choose processes by name. If the job has no workers, a rank is chosen instead of one."""
        if which == "the store":
            return [self.store.server.pid]
        ranks, others = self._monitor.rank_pids(), self._monitor.other_pids()
        one = {"a rank": ranks, "a worker": others or ranks}.get(which)
        if one is not None:
            return self.draw.sample(one, min(1, len(one)))
        return ranks if which in ("ranks", "all ranks") else ranks + others

    def _check_progress(self, pause: Pause) -> None:
        """Check that the job continues after a short pause. After a long one, it may fail."""
        monitor, written = self._monitor, self._monitor.bytes_written()
        if not monitor.wait_until(
            lambda: monitor.bytes_written() > written or monitor.has_lost_a_rank(), self.silence_s
        ):
            self._fail_hung(f"made no progress after a {pause.describe()}")
        errors = {name.rpartition(".")[2] for name in self._errors().values()}
        limit_s = self.job.scenario.timeout_s / 2 - 5
        is_short = pause.seconds < limit_s and pause.of != "the store"
        # if there is any other error, that error is the cause instead of the pause
        if is_short and errors and errors <= _OF_OTHERS:
            self._fail(
                f"failed because of a {pause.describe()}, although it lasted only "
                f"{pause.seconds:.1f} s\n{self._last_lines()}"
            )

    def _fill_disks(self) -> None:
        if self.job.scenario.disk != "fills" or self._monitor.has_lost_a_rank():
            return
        for cache in self.job.caches:
            resize(cache, self.draw)
        time.sleep(self.draw.uniform(0.5, 4.0))
        if self.draw.random() < 0.5:
            for cache in self.job.caches:
                resize(cache, None)

    def _end(self) -> None:
        """Send the signal of the job's end, such as `SIGKILL a worker`, if there is one."""
        name, _, which = self.job.scenario.end.partition(" ")
        if name in ("SIGKILL", "SIGTERM") and self.job.scenario.end != CONNECTING:
            kill(*self._choose_pids(which), number=signal.Signals[name])

    # ------------------------------------------------------------ the end

    def _await_end(self) -> None:
        """Wait until all processes have exited, and kill those that hang."""
        monitor, end = self._monitor, self.job.scenario.end
        if not (
            monitor.wait_until(monitor.has_ended, _UNDER_TORCH_S)
            or monitor.waits_for_torch()
            or monitor.wait_until(monitor.has_ended, self.silence_s)
            or monitor.waits_for_torch()
        ):
            self._fail_hung(f"did not exit (end: {end})")
        elif not monitor.has_ended():
            self.report.counts["errors"]["waits for torch's process group"] += 1
        if monitor.has_ended() and not soon(lambda: not self.tree.pids()):
            running = [command_of(pid) for pid in self.tree.pids()]
            self._fail(f"left processes running (end: {end}): {running}")
        kill(*self.tree.pids())

    def _check_leftovers(self, old_names: set[str], old_files: set[tuple[str, int]]) -> None:
        end = self.job.scenario.end
        is_clean = end == "none" and all(rank.exitcode == 0 for rank in self._monitor.ranks)
        more = sorted(left_overs(self.job.caches) - old_files)
        if more and is_clean:
            self._fail(f"exited without an error, but left files in the cache, such as {more[:3]}")
        if not soon(lambda: not orphans(old_names), 5.0):
            self._fail(f"left files in /dev/shm (end: {end}): {orphans(old_names)}")

    def _count(self, exit_s: float) -> None:
        report, scenario, job = self.report, self.job.scenario, self.job
        end = f"{scenario.end}, before the first step" if scenario.is_early else scenario.end
        if scenario.end != "none":
            kind = f"from {end} to the last exit"
            report.max_seconds[kind] = max(report.max_seconds[kind], round(exit_s, 1))
        faults, options = self.store.count_faults(), job.options
        report.numbers["faults"] += faults.total()
        report.counts["injected"].update(faults)
        if job.run.has_disks:
            report.counts["disks"][scenario.disk or "ample"] += 1
        evenly = "lanes divided evenly" if NUM_LANES % job.ranks == 0 else "lanes divided unevenly"
        counted = "counted" if job.run.has_lengths else "no lengths"
        for name, value in {
            "ends": end,
            "stores": self.store.scheme,
            "kinds of runs": job.run.kind.name,
            "data": job.run.data,
            "lengths": f"{counted}, lengths={options['lengths']}",
            "start methods": options["start_method"] if options["num_workers"] else "no workers",
            "ranks": f"{job.ranks}, {evenly}",
            "nodes": str(job.nodes),
        }.items():
            report.counts[name][value] += 1

    # ------------------------------------------------------------ errors

    def _errors(self) -> dict[int, str]:
        """Return the names of the errors with which ranks exited, by rank."""
        errors = {}
        for number, rank in enumerate(self._monitor.ranks):
            if rank.exitcode == 1:
                names = _ERROR.findall(self._monitor.log(number))
                errors[number] = names[-1] if names else "an unnamed error"
        return errors

    def _check_errors(self) -> str:
        """Report errors that the scenario does not explain, and return a description of all."""
        found = Counter[str]()
        for number, error in self._errors().items():
            log = self._monitor.log(number)
            is_of_ranks = error == "RuntimeError" and _CONNECTION.search(log)
            if not (self._explains(error) or is_of_ranks or error.startswith("torch.distributed.")):
                self._fail(
                    f"had a rank, {number}, that failed with {error}, which the job's faults do "
                    f"not explain: {self.job.scenario}\n{log[-3000:]}"
                )
            found[error.removeprefix(_OF_CLOUDLOAD)] += 1
        is_undisturbed = self.job.scenario.end == "none" and self.job.scenario.pause is None
        if is_undisturbed and found and set(found) <= _OF_OTHERS:
            self._fail(
                "had ranks that lost the connection to another rank, but no rank was killed or "
                f"failed first\n{self._last_lines()}"
            )
        self.report.counts["errors"].update(found)
        return ", ".join(f"{times} {error}" for error, times in found.items()) or "no error"

    def _explains(self, error: str) -> bool:
        """Whether an error is cloudload's, and the faults of the job can cause it."""
        name = error.removeprefix(_OF_CLOUDLOAD)
        return name != error and (
            name in _EXPLAINED
            or (name == "CacheError" and self.job.scenario.disk is not None)
            or (name == "WorkerError" and self.job.scenario.end == "SIGKILL a worker")
        )

    def _fail_hung(self, what: str) -> None:
        stacks = self._monitor.stacks().items()
        shown = "\n".join(f"rank {rank}:\n{text}" for rank, text in stacks)
        self._fail(f"hung: it {what}. {self.job}\n{self._last_lines()}\n{shown}")

    def _last_lines(self) -> str:
        return "\n".join(self._monitor.log(rank)[-2000:] for rank in range(self.job.ranks))

    def _describe(self) -> str:
        job, options, scenario = self.job, self.job.options, self.job.scenario
        pause = scenario.pause
        parts = [
            f"{job.ranks} ranks on {job.nodes} nodes",
            f"{options['num_workers']} workers ({options['start_method']})",
            f"lengths {options['lengths']}",
            scenario.end + " early" * scenario.is_early,
            *([f"{pause.describe()} ({pause.seconds:.0f} s)"] if pause else []),
            *([f"disk {scenario.disk}"] if scenario.disk else []),
        ]
        return ", ".join(parts)
