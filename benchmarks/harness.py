"""Measure fairly on a machine that also does other work, with short turns and CPU time.

    benchmark                                       side: a separate process group
    Side("benchmarks.peers.litdata", ...)       ->  python -m benchmarks.peers.litdata
    side.start(request)                         ->  serve(): builds and warms up its loader
                                                <-  {"versions": {...}}
    side.take_turn(question)    SIGCONT         ->  works
                                SIGSTOP         <-  {"tokens": ..., "wall": ..., "cpu": ...}
    side.close()                end of stdin    ->  exits

During a side's turn, all other sides and their workers are stopped. Because turns are short and
interleaved, other work on the machine slows all sides alike.

    benchmark                                       child: one function in a new process
    Child(read_rank, rank=0)                    ->  python -m benchmarks.harness MODULE read_rank …
    child.answer()                              <-  the value that the function returns or yields
    child.close()               end of stdin    ->  a generator continues after its `yield`

A child does not share caches, memory, or imports with the benchmark. Messages are JSON, one per
line. This module needs only the standard library, because sides also run in the environments of
other loaders.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import inspect
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parents[1]
START_TIMEOUT_S, TURN_TIMEOUT_S = 900.0, 600.0
ONE_THREAD = {
    "TOKENIZERS_PARALLELISM": "false",
    "FASTOKENS_BPE_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}

Message = dict[str, Any]
"""A JSON object that a benchmark and a side exchange."""
Take = Callable[[Message], Message]
"""A side's function that takes one turn: it receives a question, and returns the answer."""


def note(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- the benchmark's half


class SideFailedError(Exception):
    """A side failed to start, exited, or did not answer in time."""


class Side:
    """A process group that runs only during its turns."""

    def __init__(
        self,
        module: str,
        *,
        python: str = sys.executable,
        folders: Sequence[Path] = (),
        variables: Mapping[str, str] | None = None,
        scratch: Path = ROOT,
        cores: set[int] | None = None,
        log: Path | None = None,
    ) -> None:
        """Start `python -m module` in the folder `scratch`, pinned to `cores` if given.

        `folders` are added to its PYTHONPATH, and `variables` to its environment. Its stderr goes
        to `log`, or, if that is None, to the stderr of this process.
        """
        variables = {
            **(variables or {}),
            "PYTHONPATH": os.pathsep.join(map(str, [ROOT, *folders])),
        }
        if scratch != ROOT:
            variables["HOME"] = str(scratch)
        self._log = log
        with contextlib.ExitStack() as stack:
            errors = stack.enter_context(log.open("w")) if log else None
            stack.enter_context(pinned(cores))  # a child inherits the cores of its parent
            self._process = subprocess.Popen(
                [python, "-m", module],
                cwd=scratch,
                env=os.environ | ONE_THREAD | variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The PID of the side's first process."""
        return self._process.pid

    def start(self, request: Message) -> dict[str, str]:
        """Send the request, wait until the side is ready, stop it, and return its versions.

        Raises `SideFailedError` if the side cannot run, exits, or takes longer than 900 s.
        """
        answer = self._ask(request, START_TIMEOUT_S)
        if "unavailable" in answer:
            raise SideFailedError(answer["unavailable"])
        os.killpg(self._process.pid, signal.SIGSTOP)
        versions: dict[str, str] = answer["versions"]
        return versions

    def take_turn(self, question: Message | None = None) -> Message:
        """Let the side run until it answers, and return the answer.

        Raises `SideFailedError` if the side exits or takes longer than 600 s.
        """
        os.killpg(self._process.pid, signal.SIGCONT)
        answer = self._ask(question or {}, TURN_TIMEOUT_S)
        os.killpg(self._process.pid, signal.SIGSTOP)
        return answer

    def close(self) -> None:
        """Give the side 20 s to exit, then kill its process group."""
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGCONT)
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()

    def _ask(self, question: Message, timeout_s: float) -> Message:
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            if not select.select([self._process.stdout], [], [], timeout_s)[0]:
                raise SideFailedError(f"the side did not answer within {timeout_s:.0f} s")
            if line := self._process.stdout.readline():
                answer: Message = json.loads(line)
                return answer
        lines = self._log.read_text(errors="replace").split("\n") if self._log else []
        last = [line.strip() for line in lines if line.strip()][-1:]
        unlogged = "it logged no error" if self._log else "see its output above"
        raise SideFailedError(f"the side exited: {last[0][:300] if last else unlogged}")


@contextlib.contextmanager
def pinned(cores: set[int] | None) -> Iterator[None]:
    """Pin this process to `cores` in a `with` block. None leaves its cores unchanged."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def last_cores(number: int = 1) -> set[int]:
    """Return the last `number` cores, for the sides. The benchmark itself runs on the first."""
    return set(sorted(os.sched_getaffinity(0))[-number:])


def exit_on_sigterm() -> None:
    """Turn SIGTERM into `SystemExit`, so that sides are closed and do not outlive the benchmark."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


# ---------------------------------------------------------------- the side's half


class UnavailableError(Exception):
    """A side cannot run on this machine. The message is the reason."""


def serve(start: Callable[[Message], Take], packages: Sequence[str] = ()) -> None:
    """Read the request, call `start` with it, and take a turn for each question.

    The side reports the versions of `packages`.
    """
    answers = _open_answers()
    try:
        take = start(json.loads(sys.stdin.readline()))
        versions = {name: metadata.version(name) for name in packages}
        print(json.dumps({"versions": versions}), file=answers)
        for line in sys.stdin:
            print(json.dumps(take(json.loads(line))), file=answers)
    except UnavailableError as error:
        print(json.dumps({"unavailable": str(error)}), file=answers)
    exit_within(10)


def _open_answers() -> TextIO:
    """Die with the benchmark, and keep what libraries print out of the answers on stdout."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def exit_within(seconds: int) -> None:
    """Exit after `seconds` at the latest, even if a loader hangs while it closes."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.alarm(seconds)


def family_cpu() -> float:
    """Return the CPU seconds of this process and all its descendants, including exited ones."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    living = sum(map(cpu_of, descendants(os.getpid())))
    return time.process_time() + ended.ru_utime + ended.ru_stime + living


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of the process with this PID, or 0 if it has exited."""
    with contextlib.suppress(OSError):
        return time.clock_gettime((~pid << 3) | 2)  # the clock ID, as in clock_getcpuclockid(3)
    return 0.0


def descendants(pid: int) -> list[int]:
    """The PIDs of a process's living descendants."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread or process may exit at any time
            for child in map(int, file.read_text().split()):
                found += [child, *descendants(child)]
    return found


def memory_of(field: str, pid: int | None = None) -> int:
    """Return the bytes of a field of a process's memory, or 0 if the process has exited.

    Examples are `VmHWM`, the peak resident set; `RssAnon`; and `Pss`, in which a shared page is
    divided among the processes that share it. `pid` None means this process.
    """
    file = Path("/proc", str(pid or "self"), "smaps_rollup" if field == "Pss" else "status")
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines():
            if line.startswith(f"{field}:"):
                return 1024 * int(line.split()[1])
    return 0


# ---------------------------------------------------------------- children


class Child:
    """A process that calls one function of a benchmark, with arguments that travel as JSON."""

    def __init__(
        self,
        function: Callable[..., Any],
        variables: Mapping[str, str] | None = None,
        /,
        **arguments: Any,
    ) -> None:
        """Start the process with additional environment variables."""
        module = function.__module__
        if module == "__main__":
            module = sys.modules["__main__"].__spec__.name  # type: ignore[union-attr]
        self._name = f"{module}.{function.__name__}"
        words = [module, function.__name__, json.dumps(arguments)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.harness", *words],
            cwd=ROOT,
            env=os.environ | (variables or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def answer(self) -> Any:
        """Wait for the function's value. Raises `SystemExit` if the process exits without it."""
        assert self._process.stdout
        if line := self._process.stdout.readline():
            return json.loads(line)
        raise SystemExit(
            f"{self._name} exited with status {self._process.wait()} before it answered. See its "
            "output above"
        )

    def close(self) -> None:
        """Close the child's stdin, and wait until it exits."""
        self._process.communicate()


def run_child(
    function: Callable[..., Any], variables: Mapping[str, str] | None = None, /, **arguments: Any
) -> Any:
    """Call a function in a new process, and return its value."""
    with Child(function, variables, **arguments) as child:
        return child.answer()


def _answer(module: str, function: str, arguments: str) -> None:
    """Call the function, and print its value. A generator continues when stdin is closed."""
    answers = _open_answers()
    found = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    if inspect.isgenerator(found):
        print(json.dumps(next(found)), file=answers)
        sys.stdin.read()
        exit_within(20)
        next(found, None)
    else:
        print(json.dumps(found), file=answers)
        exit_within(20)


if __name__ == "__main__":
    _answer(*sys.argv[1:])
