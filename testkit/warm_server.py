"""The process from which warm programs are forked.

server         imports modules, then accepts requests at a Unix socket; reports each program's exit
  │            code, and kills a program whose requester disconnects. It has one thread
  └─ program   is killed when the server dies
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import traceback
import weakref
from dataclasses import dataclass
from pathlib import Path

from cloudload.config.choices import AUTO
from cloudload.rows.tokenization import backend
from cloudload.rows.tokenization.tokenizer import load_tokenizer
from testkit.corpora import EOS, byte_tokenizer
from testkit.warm_stand_in import HEADER_BYTES

_PR_SET_PDEATHSIG = 1
"""The prctl option for the signal that a process gets when its parent dies, from prctl(2)."""

_PRELOAD = (
    "torch.distributed.run",
    "cloudload.loader",
    "boto3",
    "testkit.lone_trainer",
    "testkit.trainer",
    # meshes and checkpoints import these on first use. torch._dynamo is not in the list, because
    # it imports Triton, which reports leaks on stderr when a program exits
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
)


@dataclass(frozen=True)
class _Program:
    """A running program: its PID, a pidfd of it, and the connection to its requester."""

    pid: int
    pidfd: int
    requester: socket.socket


def serve(address: str) -> str:
    """Fork programs forever. In each program, returns the name of the module to run."""
    for module in _PRELOAD:
        importlib.import_module(module)
    # otherwise, each program would free torch's libraries when it exits, in 0.03 s of CPU time
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    _learn_backend()
    # otherwise, garbage collection in each program would copy the pages that it shares
    gc.freeze()
    assert len(os.listdir("/proc/self/task")) == 1, (
        "no other thread may run, because forked processes would not have the thread"
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    print("ready", flush=True)
    programs: list[_Program] = []
    while True:
        watched = [program.pidfd for program in programs]
        watched += [program.requester.fileno() for program in programs]
        ready, _, _ = select.select([listener.fileno(), *watched], [], [])
        for program in programs.copy():
            if program.pidfd in ready or program.requester.fileno() in ready:
                programs.remove(program)
                _end(program)
        if listener.fileno() in ready:
            requester, _ = listener.accept()
            if (request := _receive(requester)) is None:
                requester.close()
                continue
            settings, streams = request
            if (pid := os.fork()) == 0:
                listener.close()
                requester.close()
                for program in programs:
                    os.close(program.pidfd)
                    program.requester.close()
                return _become(settings, streams)
            for stream in streams:
                os.close(stream)
            programs.append(_Program(pid, os.pidfd_open(pid), requester))
            _tell(requester, pid)


def _learn_backend() -> None:
    """Choose the backend for the tests' tokenizer once, which saves each program about a second.

    A child process makes the choice, because that starts threads, and the server must have none.
    """
    receiver, sender = os.pipe()
    if os.fork() == 0:
        tokenizer = load_tokenizer(byte_tokenizer(), [(None, EOS)])
        with tempfile.TemporaryDirectory() as folder:
            backend.choose_backend(tokenizer.json, AUTO, Path(folder))
        os.write(sender, json.dumps(backend._refusals).encode())
        os._exit(0)
    os.close(sender)
    with os.fdopen(receiver) as answer:
        backend._refusals.update(json.load(answer))
    os.wait()


def _receive(requester: socket.socket) -> tuple[dict[str, object], list[int]] | None:
    """Settings and streams of a program; None if the requester disconnected before it sent all."""
    header, streams, *_ = socket.recv_fds(requester, HEADER_BYTES, 3)
    with requester.makefile("rb") as file:
        message = file.read(int.from_bytes(header, "big"))
    try:
        return json.loads(message), streams
    except ValueError:
        for stream in streams:
            os.close(stream)
        return None


def _end(program: _Program) -> None:
    """Kill a program if it still runs, and report its exit code."""
    signal.pidfd_send_signal(program.pidfd, signal.SIGKILL)  # does nothing if it has ended
    code = os.waitstatus_to_exitcode(os.waitpid(program.pid, 0)[1])
    os.close(program.pidfd)
    with program.requester:
        _tell(program.requester, code)


def _tell(requester: socket.socket, number: int) -> None:
    """Send a PID or an exit code to the requester, unless it has disconnected."""
    with contextlib.suppress(OSError):
        requester.sendall(b"%d\n" % number)


def _become(settings: dict[str, object], streams: list[int]) -> str:
    """Give this process a program's streams, environment, folder, and arguments."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    if settings["has_session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    variables = settings["variables"]
    assert isinstance(variables, dict)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(str(settings["folder"]))
    module, arguments = str(settings["module"]), settings["arguments"]
    assert isinstance(arguments, list)
    sys.argv = [module, *arguments]
    return module


def _run(module: str) -> None:
    """Run a module's `main`. If it succeeds, exit as the interpreter does, but do not free objects.

    To free them would copy all pages that the program shares with the server, in 0.3 s of CPU time.
    Of the programs that fail, only torchrun exits like this, because no test is about its exit.
    """
    code = 0
    try:
        importlib.import_module(module).main()
    except Exception:
        if module != "torch.distributed.run":
            raise
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _run(serve(sys.argv[1]))
