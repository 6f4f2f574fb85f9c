"""The process from which warm programs are forked.

server           imports modules, and then waits for requests at a Unix socket; has one thread
  └─ keeper      one per program: reports its exit code, and kills it if the requester disconnects
       └─ program
"""

from __future__ import annotations

import atexit
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
from pathlib import Path

from cloudload.config.choices import AUTO
from cloudload.tokenization import backend
from cloudload.tokenization.tokenizer import load_tokenizer
from tests.support.corpora import EOS, byte_tokenizer
from tests.support.warm_stand_in import HEADER_BYTES

_PRELOAD = (
    "torch.distributed.run",
    "cloudload.loader",
    "boto3",
    "tests.support.lone_trainer",
    "tests.support.trainer",
    # meshes and checkpoints import these on first use. torch._dynamo is not in the list, because
    # it imports Triton, which reports leaks on stderr when a program exits
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
)


def serve(address: str) -> str:
    """Fork programs forever. In each program, returns the name of the module to run."""
    for module in _PRELOAD:
        importlib.import_module(module)
    _learn_backend()
    # otherwise, garbage collection in each program would copy the pages that it shares
    gc.freeze()
    assert len(os.listdir("/proc/self/task")) == 1, (
        "no other thread may run, because forked processes would not have the thread"
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers leave no zombies
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return _keep(connection)
        connection.close()


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


def _keep(connection: socket.socket) -> str:
    """Fork a program, and wait until it exits. In the program, returns the name of its module."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    header, streams, *_ = socket.recv_fds(connection, HEADER_BYTES, 3)
    with connection.makefile("rb") as file:
        program = json.loads(file.read(int.from_bytes(header, "big")))
    pid = os.fork()
    if pid == 0:
        connection.close()
        return _become(program, streams)
    for stream in streams:
        os.close(stream)
    connection.sendall(b"%d\n" % pid)
    ended = os.pidfd_open(pid)
    ready, _, _ = select.select([connection.fileno(), ended], [], [])
    if ended not in ready:
        signal.pidfd_send_signal(ended, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        connection.sendall(b"%d\n" % code)
    finally:
        os._exit(0)


def _become(program: dict[str, object], streams: list[int]) -> str:
    """Give this process a program's streams, environment, folder, and arguments."""
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    if program["has_session"]:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    variables = program["variables"]
    assert isinstance(variables, dict)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(str(program["folder"]))
    module, arguments = str(program["module"]), program["arguments"]
    assert isinstance(arguments, list)
    sys.argv = [module, *arguments]
    return module


def _run(module: str) -> None:
    """Run a module's `main`. If it succeeds, exit as the interpreter does, but do not free objects.

    To free them would copy all pages that the program shares with the server, in 0.3 s of CPU time.
    """
    importlib.import_module(module).main()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    _run(serve(sys.argv[1]))
