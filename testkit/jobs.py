"""Training jobs of `lone_trainer.py`, each in its own session, and the processes they leave."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testkit.left_behind import shared_memory
from testkit.processes import command_of, running_processes
from testkit.warm_start import Program, start


@dataclass
class Job:
    """A job that was started in its own session, and the processes that it leaves running."""

    data: str
    process: Program
    cache: Path
    out: Path
    shared_memory: set[str] = field(default_factory=shared_memory)

    def wait_for(self, step: int) -> None:
        """Wait until the job has completed this step."""
        self.wait_for_line(f"step {step}")

    def wait_for_line(self, expected: str) -> None:
        """Wait until the job has printed this line."""
        for line in self.process.stdout:
            if line == f"{expected}\n":
                return
        raise AssertionError(
            f"the job exited before it printed {expected!r}: {self.process.communicate()[1]}"
        )

    def family(self) -> set[int]:
        """The PIDs of the live processes in the job's session."""
        return {each.pid for each in running_processes() if each.session == self.process.pid}

    def workers(self) -> set[int]:
        """The PIDs of the job's live worker processes."""
        return {
            pid
            for pid in self.family() - {self.process.pid}
            if b"resource_tracker" not in command_of(pid)
        }

    def kill(self) -> None:
        """Kill all remaining processes of the job."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


def start_job(
    data: str, folder: Path, variables: Mapping[str, str] | None = None, **options: Any
) -> Job:
    """Start a job whose cache and output are in `folder`."""
    cache, out = folder / "cache", folder / "out"
    out.mkdir(exist_ok=True, parents=True)
    defaults = {
        "data": data,
        "cache": str(cache),
        "out": str(out),
        "workers": 2,
        "batches": 10_000,
        "pause_s": 0.05,
    }
    arguments = [json.dumps(defaults | options)]
    process = start("testkit.lone_trainer", arguments, variables)
    return Job(data, process, cache, out)
