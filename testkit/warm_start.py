"""Programs that start warm: forks of a process that has already imported torch and cloudload.

    start("testkit.lone_trainer", [options])               # similar to subprocess.Popen
    [*stand_in(), "testkit.trainer", options]              # a command that runs a module

A program calls the module's `main`, with its arguments in `sys.argv`. The warm
programs that it starts are forks of the same server.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO

from testkit import ROOT
from testkit.servers import running
from testkit.warm_stand_in import request

_ADDRESS = "CLOUDLOAD_TESTS_WARM_SERVER"

_exits = contextlib.ExitStack()
atexit.register(_exits.close)


@dataclass(frozen=True)
class WarmServer:
    """A running server that forks warm programs, and the path of its Unix socket."""

    address: str


class Program:
    """A warm program in a separate session, with pipes for its standard streams."""

    def __init__(self, module: str, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
        (input_end, stdin), (stdout, output_end), (stderr, error_end) = (
            os.pipe() for _ in range(3)
        )
        theirs = [input_end, output_end, error_end]
        self._connection = request(
            _server_address(), theirs, module, arguments, dict(variables), has_session=True
        )
        for descriptor in theirs:
            os.close(descriptor)
        self._lines = self._connection.makefile()
        self.pid = int(self._lines.readline())
        self.stdin: IO[str] = os.fdopen(stdin, "w")
        self.stdout: IO[str] = os.fdopen(stdout)
        self.stderr: IO[str] = os.fdopen(stderr)
        self.returncode: int | None = None

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Close the program's stdin, wait until it exits, and return its stdout and stderr."""
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        texts = {self.stdout: "", self.stderr: ""}

        def read(stream: IO[str]) -> None:
            if not stream.closed:
                texts[stream] = stream.read()
                stream.close()

        readers = [Thread(target=read, args=(stream,), daemon=True) for stream in texts]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        if self.returncode is None:
            self.returncode = int(self._lines.readline())
            self._lines.close()
            self._connection.close()
        return texts[self.stdout], texts[self.stderr]


def start(
    module: str, arguments: Sequence[str], variables: Mapping[str, str] | None = None
) -> Program:
    """Start a module as a warm program, with additional environment variables."""
    return Program(module, arguments, {**os.environ, **(variables or {})})


def stand_in(address: str = "") -> list[str]:
    """The start of a command that runs a module warm. Append the module's name and arguments.

    The program is a fork of the server at `address`, by default of the test run's server.
    """
    script = ROOT / "testkit" / "warm_stand_in.py"
    return [sys.executable, "-I", "-S", str(script), address or _server_address()]


@contextlib.contextmanager
def servers_from(start_server: Callable[[], AbstractContextManager[WarmServer]]) -> Iterator[None]:
    """Within the context, start the server for warm programs with `start_server`, on first use."""
    _starts.append(start_server)
    try:
        yield
    finally:
        _starts.pop()
        os.environ.pop(_ADDRESS, None)
        _exits.close()


@contextlib.contextmanager
def start_warm_server() -> Iterator[WarmServer]:
    """Run a server that forks warm programs."""
    with tempfile.TemporaryDirectory(prefix="cloudload-warm-") as folder:
        address = f"{folder}/socket"
        # keep numerical libraries from starting threads, because the server forks
        variables = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
        # torchrun calls inspect.stack, which searches all modules for each frame of a frozen module
        python = [sys.executable, "-X", "frozen_modules=off"]
        command = [*python, "-m", "testkit.warm_server", address]
        variables["PYTHONPATH"] = str(ROOT)
        with running(command, Path(folder), variables, pipe=True) as process:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(Path(folder, "server.log").read_text())
            yield WarmServer(address)


_starts: list[Callable[[], AbstractContextManager[WarmServer]]] = [start_warm_server]


def _server_address() -> str:
    if _ADDRESS not in os.environ:
        os.environ[_ADDRESS] = _exits.enter_context(_starts[-1]()).address
    return os.environ[_ADDRESS]
