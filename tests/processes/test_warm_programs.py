"""Warm programs, which tests start instead of processes, die with their requester and server."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from pathlib import Path

import pytest

from testkit.warm_start import stand_in, start_warm_server

MOST_S = 60.0

SCRIPT = """
import os, time
print(os.getpid(), os.getppid(), flush=True)
time.sleep(600)
"""


def start_program(folder: Path, stand_in: list[str]) -> tuple[subprocess.Popen[str], int, int]:
    """Start a program that sleeps. Returns its requester, its pidfd, and its server's PID."""
    script = folder / "sleep.py"
    script.write_text(SCRIPT)
    command = [*stand_in, "testkit.warm_script", str(script)]
    requester = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert requester.stdout is not None
    pid, server = map(int, requester.stdout.readline().split())
    return requester, os.pidfd_open(pid), server


def has_died(pidfd: int, most_s: float = MOST_S) -> bool:
    """Wait until a process ends. Returns whether it did."""
    poll = select.poll()  # unlike select, it takes descriptors above 1,023
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(1000 * most_s))


def test_a_program_dies_with_its_requester(tmp_path: Path) -> None:
    requester, program, _ = start_program(tmp_path, stand_in())
    with requester:
        assert not has_died(program, 0)
        requester.kill()
    assert has_died(program)
    os.close(program)


def test_a_requester_ends_like_its_program(tmp_path: Path) -> None:
    requester, program, _ = start_program(tmp_path, stand_in())
    with requester:
        signal.pidfd_send_signal(program, signal.SIGTERM)
        assert requester.wait(MOST_S) == -signal.SIGTERM
    os.close(program)


@pytest.mark.long  # a server starts in seconds
def test_a_program_dies_with_its_server(tmp_path: Path) -> None:
    with start_warm_server() as server:
        requester, program, pid = start_program(tmp_path, stand_in(server.address))
        with requester:
            os.kill(pid, signal.SIGKILL)
            assert has_died(program)
    os.close(program)
