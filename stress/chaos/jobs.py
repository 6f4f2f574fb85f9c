"""Run jobs: choose their worlds, store faults and signals, and check their leftovers."""

from __future__ import annotations

import argparse
import collections
import random
import re
import signal
import time
from multiprocessing.context import ForkServerProcess

from stress.chaos.caches import left_overs
from stress.chaos.family import Family, kill
from stress.chaos.findings import Findings
from stress.chaos.rank import PATIENCE_S, Campaign, Job, describe, run_rank
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.jobs import command_of
from tests.support.left_behind import shared_memory
from tests.support.patience import soon
from tests.support.servers import S3Server

END_S = PATIENCE_S + 30.0
STATUSES = (
    (503, "SlowDown"),
    (500, "InternalError"),
    (429, "TooManyRequests"),
    (504, "GatewayTimeout"),
)
ACTIONS = {
    "none": 3,
    "SIGKILL a worker": 3,
    "SIGKILL a rank": 3,
    "SIGKILL all": 2,
    "SIGTERM a rank": 1,
    "SIGKILL ranks": 1,
}

Ranks = list[ForkServerProcess]


class Jobs:
    """Makes and runs the jobs of all campaigns."""

    def __init__(
        self,
        args: argparse.Namespace,
        draw: random.Random,
        server: S3Server,
        proxy: FaultProxy,
        found: Findings,
    ) -> None:
        self._args, self._draw, self._server, self._proxy = args, draw, server, proxy
        self._found, self._family = found, Family()
        self.family_started = self._family.started

    def make(self) -> Job:
        """Make a job with a random world and random options."""
        self._found.jobs += 1
        choose = self._draw.choice
        ranks = choose([1, 2, 2, 3, 4])
        return Job(
            number=self._found.jobs,
            ranks=ranks,
            nodes=choose([1, 2]) if ranks % 2 == 0 else 1,
            workers=choose([0, 1, 1, 2, 3]),
            batch_size=choose([1, 2, 4, 6]),
            steps=choose([40, 200, 1_000]),
            save_every=choose([1, 3, 7]),
            cache_limit=choose([None, None, 3_000_000]),
            verify=choose(["once", "once", "always"]),
            start_method="fork",
            tokenizer_backend=choose(["hf", "hf", "auto"]),
            environment=self._server.environment(self._proxy.endpoint),
        )

    def _make_faults(self) -> list[Fault]:
        share, at = self._args.share, self._draw.randrange(600)
        status, code = self._draw.choice(STATUSES)
        of_shards = [
            Fault("GET .*shard", "truncate", share=share / 4, at=at),
            Fault("GET .*shard", "corrupt", share=share / 4, at=at),
            Fault("GET .*shard", "stall", share=share / 20, at=at, seconds=5),
        ]
        of_all = [
            Fault(".", "status", share=share / 4, status=status, code=code),
            Fault(".", "reset", share=share / 6),
            Fault(".", "delay", share=share / 8, seconds=0.3),
            Fault(".", "drop", share=share / 40, seconds=5),
        ]
        return of_shards + of_all

    def run(self, campaign: Campaign, job: Job, littered: set[tuple[str, int]]) -> str:
        """Run a job until it ends or is killed, and return a description of what happened.

        `littered` are leftovers, (path, inode), that the job must remove once it steps.
        """
        self._proxy.set_faults(self._make_faults())
        named, launched = shared_memory(), time.monotonic()
        ranks = [
            self._family.context.Process(target=run_rank, args=(campaign, job, rank))
            for rank in range(job.ranks)
        ]
        for rank in ranks:
            rank.start()
        action = self._draw.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        has_stepped = self._wait_before(action, campaign, job, ranks)
        stepped = time.monotonic()
        if has_stepped and (kept := littered & left_overs(campaign, job.nodes)):
            self._found.fail(f"job {job.number} has not swept up {sorted(kept)[:3]}")
        acted = time.monotonic()
        self._act(action, ranks)
        deadline = acted + END_S
        for rank in ranks:
            rank.join(max(0.0, deadline - time.monotonic()))
        if any(rank.is_alive() for rank in ranks):
            for rank in ranks:
                kill(rank.pid, signal.SIGUSR1)
            time.sleep(1)
            words = [
                job.log_file(campaign, number).read_text(errors="replace")
                for number, rank in enumerate(ranks)
                if rank.is_alive()
            ]
            if all("_create_gloo_process_group" in log for log in words):
                # torch's fault: ranks that connect to a killed rank wait until a launcher ends them
                self._found.errors["waits for gloo to connect"] += 1
            else:
                self._found.fail(
                    f"job {job.number} hung after {action}: "
                    f"{describe(job)}\n{last_lines(campaign, job)}"
                )
        elif not soon(lambda: not self._family.members()):
            left = [command_of(pid) for pid in self._family.members()]
            self._found.fail(f"job {job.number} left processes after {action}: {left}")
        if action != "none":
            self._found.slowest_end_s = max(self._found.slowest_end_s, time.monotonic() - acted)
        for pid in self._family.members():
            kill(pid)
        if more := shared_memory() - named:
            self._found.fail(f"job {job.number} left {more} in /dev/shm after {action}")
        self._found.done[action] += 1
        self._found.faults.update(
            request.action for request in self._proxy.requests() if request.action
        )
        times = (
            f"{stepped - launched:.1f} s to the first step, "
            f"{time.monotonic() - acted:.1f} s to the end"
        )
        return (
            f"{action}, {self._note_errors(campaign, job, ranks)}, {times}, "
            f"{self._found.faults.total():,} faults so far"
        )

    def _wait_before(self, action: str, campaign: Campaign, job: Job, ranks: Ranks) -> bool:
        """Wait until the moment to act, and return whether the job has taken a step."""
        rows, deadline = job.rows_file(campaign, 0), time.monotonic() + END_S
        is_early = action != "none" and self._draw.random() < 0.2
        early = time.monotonic() + self._draw.uniform(0.0, 2.0)
        while all(rank.is_alive() for rank in ranks) and time.monotonic() < deadline:
            if is_early and time.monotonic() > early:
                return False
            if rows.exists() and rows.stat().st_size:
                if action != "none":
                    time.sleep(self._draw.uniform(0.0, self._args.pause))
                return True
            time.sleep(0.02)
        return False

    def _act(self, action: str, ranks: Ranks) -> None:
        heads = {rank.pid for rank in ranks if rank.pid and rank.is_alive()}
        others = self._family.members() - heads
        victims = {
            "none": [],
            "SIGKILL a worker": self._draw.sample(
                sorted(others or heads), min(1, len(others or heads))
            ),
            "SIGKILL a rank": self._draw.sample(sorted(heads), min(1, len(heads))),
            "SIGTERM a rank": self._draw.sample(sorted(heads), min(1, len(heads))),
            "SIGKILL ranks": sorted(heads),
            "SIGKILL all": sorted(heads | others),
        }[action]
        for victim in victims:
            kill(victim, signal.SIGTERM if action.startswith("SIGTERM") else signal.SIGKILL)

    def _note_errors(self, campaign: Campaign, job: Job, ranks: Ranks) -> str:
        found = []
        for number, rank in enumerate(ranks):
            if rank.exitcode == 1:
                log = job.log_file(campaign, number).read_text(errors="replace")
                [*_, error] = re.findall(
                    r"^([\w.]*(?:Error|Exception|Interrupt))\b", log, re.MULTILINE
                ) or ["nothing"]
                is_of_ranks = error == "RuntimeError" and re.search(
                    r"gloo|Connection|peer|store|socket", log
                )
                if not (
                    error.startswith("cloudload.errors.")
                    or is_of_ranks
                    or error.startswith("torch.distributed.")
                ):
                    self._found.fail(f"job {job.number}, rank {number}: {error}\n{log[-3000:]}")
                found.append(error.removeprefix("cloudload.errors."))
        self._found.errors.update(found)
        return (
            ", ".join(f"{times} {error}" for error, times in collections.Counter(found).items())
            or "no error"
        )


def last_lines(campaign: Campaign, job: Job) -> str:
    """The last 2,000 characters of each rank's output."""
    return "\n".join(
        job.log_file(campaign, rank).read_text(errors="replace")[-2000:]
        for rank in range(job.ranks)
    )
