"""Measure fairly on a machine that also does other work, with short turns and CPU time.

    benchmark                                       side: a separate process group
    Side("benchmarks.packing.speed", ...)       ->  python -m benchmarks.packing.speed
    side.start(request)                         ->  serve(): builds and warms up its loader
                                                <-  {"versions": {...}}
    side.take_turn(question)    SIGCONT         ->  works
                                SIGSTOP         <-  {"tokens": ..., "wall": ..., "cpu": ...}
    side.close()                end of stdin    ->  exits

During a side's turn, all other sides and their workers are stopped. Because turns are short and
interleaved, other work on the machine slows all sides alike. Messages are JSON objects, one per
line. This module needs only the standard library, because sides also run in the environments of
other loaders.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import platform
import resource
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

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
        scratch: Path = ROOT,
        cores: set[int] | None = None,
        log: Path | None = None,
    ) -> None:
        """Start `python -m module` in the folder `scratch`, pinned to `cores` if given.

        `folders` are added to its PYTHONPATH. Its stderr goes to `log`, or, if that is None, to the
        stderr of this process.
        """
        variables = {"PYTHONPATH": os.pathsep.join(map(str, [ROOT, *folders]))}
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
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: die with the benchmark
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print to stdout, which is only for answers
    try:
        take = start(json.loads(sys.stdin.readline()))
        versions = {name: metadata.version(name) for name in packages}
        print(json.dumps({"versions": versions}), file=answers)
        for line in sys.stdin:
            print(json.dumps(take(json.loads(line))), file=answers)
    except UnavailableError as error:
        print(json.dumps({"unavailable": str(error)}), file=answers)
    exit_within(10)


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


# ---------------------------------------------------------------- the command line


class Options(argparse.ArgumentParser):
    """The command-line parser of a benchmark, with `--quick`, and `--json` if `has_json`."""

    def __init__(self, description: str | None, *, has_json: bool = True) -> None:
        super().__init__(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        self._amounts: dict[str, tuple[float, float]] = {}
        self.add_argument(
            "--quick", action="store_true", help="run a small version that takes seconds"
        )
        if has_json:
            text = "print one JSON object instead of tables"
            self.add_argument("--json", action="store_true", help=text)

    def add_folders(self) -> None:
        """Add `--corpus`, `--tokenizers` and `--output`, the folder for the results."""
        for name, text in {
            "corpus": "folder of *.jsonl or *.jsonl.gz files with a `text` field",
            "tokenizers": "folder with a subfolder for each tokenizer",
        }.items():
            self.add_argument(f"--{name}", type=Path, metavar="FOLDER", help=text)
        self.add_argument(
            "--output",
            type=Path,
            default=ROOT / "benchmarks",
            metavar="FOLDER",
            help="folder for the results (default: benchmarks)",
        )

    def add_amount(self, name: str, full: float, quick: float, what: str) -> None:
        """Add a numeric option whose default is `full`, or `quick` if `--quick` is given."""
        text = f"{what} (default: {full:g}; with --quick: {quick:g})"
        self.add_argument(f"--{name}", type=type(full), help=text)
        self._amounts[name.replace("-", "_")] = full, quick

    def parse(self) -> argparse.Namespace:
        """Parse the command line, and fill in the defaults of the amounts."""
        args = self.parse_args()
        for name, amounts in self._amounts.items():
            if getattr(args, name) is None:
                setattr(args, name, amounts[args.quick])
        return args


# ---------------------------------------------------------------- facts about the measurement


def hardware() -> str:
    """The processor, available cores, memory and kernel of this machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return (
        f"{[*models, platform.machine()][0]}, {len(os.sched_getaffinity(0))} cores, "
        f"{memory:.0f} GB of memory, Linux {platform.release().split('-')[0]}"
    )


def commit() -> str:
    """The measured commit, with a note if the package `cloudload` has uncommitted changes."""
    head, changes = (
        subprocess.run(
            ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False
        ).stdout.strip()
        for words in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "cloudload"])
    )
    return f"{head or 'unknown'}{' with uncommitted changes' if changes else ''}"


def shown_command(module: str) -> str:
    """The command line as Markdown, with only the last component of each path."""
    words = [
        Path(word).name.split(".")[0] if word.startswith(("/", "..")) else word
        for word in sys.argv[1:]
    ]
    return f"`{shlex.join(['python', '-m', module, *words])}`"
