"""The converter's worker processes: whatever happens to one, nobody waits for it."""

from __future__ import annotations

import os
import resource
import socket
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from cloudload.convert.process_pool import open_executor
from cloudload.convert.shared_bytes import Message, SharedBytes, receive
from cloudload.errors import WorkerError
from cloudload.system.ordered_results import run_in_order

LARGE = 3 << 20


@pytest.fixture
def descriptor_limit() -> Iterator[None]:
    """The limit of open files, put back afterwards."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def halve(_: str, data: bytes) -> tuple[bytes, bytes]:
    return data[: len(data) // 2], data[len(data) // 2 :]


def join(separator: str, parts: tuple[bytes, ...]) -> bytes:
    return separator.encode().join(parts)


def die(_: str, how: str) -> None:
    os._exit(3) if how == "exit" else os.kill(os.getpid(), 9)


def misbehave(_: str, __: Any) -> Any:
    return lambda: "not picklable"


@pytest.mark.parametrize("processes", [1, 2])
def test_large_bytes_come_back_and_go_on_to_another_process(processes: int) -> None:
    data = os.urandom(LARGE)
    with open_executor("|", processes) as executor:
        for _, (left, right) in run_in_order(partial(executor.submit, halve), [data] * 5, ahead=3):
            rejoined = executor.submit(join, (right, left[10:])).result()
            rejoined = rejoined.read() if isinstance(rejoined, SharedBytes) else rejoined
            assert rejoined == data[LARGE // 2 :] + b"|" + data[10 : LARGE // 2]


@pytest.mark.parametrize(
    ("function", "how", "message"),
    [(die, "exit", "exit status 3"), (die, "kill", "killed by SIGKILL")],
)
def test_a_process_that_dies_is_said_to_be_dead(function: Any, how: str, message: str) -> None:
    with open_executor("", 2) as executor, pytest.raises(WorkerError, match=message):
        executor.submit(function, how).result(60)


def test_what_cannot_be_sent_is_an_error_of_its_task_alone() -> None:
    with open_executor("", 2) as executor:
        with pytest.raises(WorkerError, match="cannot send work"):
            executor.submit(join, lambda: "not picklable").result(60)
        assert executor.submit(join, (b"a", b"b")).result(60) == b"ab"
        with pytest.raises(WorkerError, match="worker process"):
            executor.submit(misbehave, None).result(60)


@pytest.mark.usefixtures("descriptor_limit")
def test_too_few_descriptors_are_an_error_not_a_wait() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        message = Message.of([SharedBytes.of(b"x" * LARGE) for _ in range(30)])
        sender = threading.Thread(target=message.send, args=(ours,))
        sender.start()
        sender.join(60)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 10, hard))
        theirs.settimeout(30)
        with pytest.raises(OSError, match="too many open files"):
            receive(theirs, lambda shared: shared)
