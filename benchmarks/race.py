"""A race: every side in a process group of its own, pinned to the same cores, one turn after
another in rounds.

While one side has its turn the others are stopped (SIGSTOP), with their workers, so that whatever
else the machine does slows all alike. Every other round goes backwards. A side that fails is left
out from then on, with the reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.catalogue import Entry, Race
from benchmarks.environments import EnvironmentFailedError, environment_of
from benchmarks.side import Turn

ROOT = Path(__file__).resolve().parents[1]
START_TIMEOUT_S, TURN_TIMEOUT_S = 900.0, 180.0

ONE_THREAD = {
    "TOKENIZERS_PARALLELISM": "false",
    "FASTOKENS_BPE_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


@dataclass
class Result:
    """What came of a side."""

    entry: Entry
    turns: list[Turn] = field(default_factory=list)
    """One a round, until it failed."""
    versions: dict[str, str] = field(default_factory=dict)
    failure: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        # beside the medians of the report, for sides that work in bursts
        overall = (
            sum(turn.tokens for turn in self.turns) / sum(turn.wall for turn in self.turns)
            if self.turns
            else None
        )
        return {
            "entry": asdict(self.entry),
            "overall tokens/s": overall,
            "turns": [asdict(turn) for turn in self.turns],
            "versions": self.versions,
            "failure": self.failure,
        }


@contextlib.contextmanager
def pinned(cores: set[int]) -> Iterator[None]:
    """Run on these cores within the block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class SideFailedError(Exception):
    """A side did not start, or did not come back from its turn."""


class Side:
    """A running side, stopped but for its turns."""

    def __init__(
        self,
        command: list[str],
        folders: list[Path],
        request: dict[str, Any],
        cores: set[int],
        log: Path,
    ) -> None:
        self.log = log
        environment = (
            os.environ
            | ONE_THREAD
            | {
                "HOME": request["scratch"],
                "PYTHONPATH": os.pathsep.join(map(str, [ROOT, *folders])),
            }
        )
        with log.open("w") as words, pinned(cores):  # a child inherits its parent's cores
            self.process = subprocess.Popen(
                command,
                cwd=request["scratch"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                text=True,
                start_new_session=True,
            )
        self.request = request

    def start(self) -> dict[str, str]:
        """Hand it the request; its versions, once it is ready."""
        answer = self._ask(self.request, START_TIMEOUT_S)
        if "unavailable" in answer:
            raise SideFailedError(answer["unavailable"])
        os.killpg(self.process.pid, signal.SIGSTOP)
        versions: dict[str, str] = answer["versions"]
        return versions

    def take_turn(self, seconds: float) -> Turn:
        """Let it run for some seconds."""
        os.killpg(self.process.pid, signal.SIGCONT)
        answer = self._ask({"seconds": seconds}, TURN_TIMEOUT_S)
        os.killpg(self.process.pid, signal.SIGSTOP)
        return Turn(**answer)

    def close(self) -> None:
        """Let it end by itself, and kill what is left of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGCONT)
        assert self.process.stdin
        assert self.process.stdout
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def _ask(self, question: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            if not select.select([self.process.stdout], [], [], timeout_s)[0]:
                raise SideFailedError(f"no answer in {timeout_s:.0f} s")
            if line := self.process.stdout.readline():
                answer: dict[str, Any] = json.loads(line)
                return answer
        except BrokenPipeError:
            pass
        words = [
            line.strip()
            for line in self.log.read_text(errors="replace").splitlines()
            if line.strip()
        ]
        raise SideFailedError(f"ended: {words[-1][:300] if words else 'without a word'}")


def run_race(
    race: Race, requests: Sequence[dict[str, Any]], cores: set[int], length: tuple[int, float]
) -> list[Result]:
    """Start the sides of a race, each with its request, and let them take turns: so many rounds, of
    so many seconds each."""
    rounds, seconds = length
    results = [Result(entry) for entry in race.entries]
    sides: dict[int, Side] = {}
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # or stopped sides would outlive the run
    try:
        for number, (result, request) in enumerate(zip(results, requests, strict=True)):
            try:
                sides[number] = start_side(result, request, cores)
            except (SideFailedError, EnvironmentFailedError) as error:
                result.failure = str(error)
            note(f"  {result.entry.name}: {result.failure or 'ready'}")
        for turn in range(rounds):
            for number in sorted(sides, reverse=bool(turn % 2)):
                try:
                    results[number].turns.append(sides[number].take_turn(seconds))
                except SideFailedError as error:
                    results[number].failure = str(error)
                    sides.pop(number).close()
                    note(f"  {results[number].entry.name}: {error}")
            note(f"  round {turn + 1} of {rounds}")
    finally:
        for side in sides.values():
            side.close()
    return results


def start_side(result: Result, request: dict[str, Any], cores: set[int]) -> Side:
    """A side that is ready and stopped."""
    entry = result.entry
    python, folders = (
        environment_of(entry.environment, ROOT / ".bench")
        if entry.environment
        else (Path(sys.executable), [])
    )
    scratch = Path(request["scratch"])
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    side = Side(
        [str(python), "-m", f"benchmarks.{entry.script}"],
        folders,
        request,
        cores,
        scratch.with_suffix(".log"),
    )
    try:
        result.versions = side.start()
    except BaseException:
        side.close()
        raise
    return side


def note(text: str) -> None:
    """Say how the run gets on."""
    print(text, file=sys.stderr, flush=True)
