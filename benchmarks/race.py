"""Run a race, in which all sides are pinned to the same cores and take one turn per round.

In every second round, the order of the sides is reversed. A side that fails takes no more turns,
and its result records the reason.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.catalogue import Entry, Race
from benchmarks.environments import EnvironmentFailedError, environment_of
from benchmarks.harness import ROOT, Message, Side, SideFailedError, exit_on_sigterm, note
from benchmarks.side import Turn


@dataclass
class Result:
    """The turns of a side in a race, and the reason if it failed."""

    entry: Entry
    turns: list[Turn] = field(default_factory=list)
    """The side's turns, one per round until the side failed."""
    versions: dict[str, str] = field(default_factory=dict)
    failure: str = ""

    def as_dict(self) -> Message:
        """The result as JSON values."""
        # average over all turns, because a median misleads for sides that work in bursts
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


def run_race(
    race: Race, requests: Sequence[Message], cores: set[int], length: tuple[int, float]
) -> list[Result]:
    """Start the sides of a race, let them take turns, and return their results.

    `requests` has one request per side. `length` is (rounds, seconds of a turn).
    """
    rounds, seconds = length
    results = [Result(entry) for entry in race.entries]
    sides: dict[int, Side] = {}
    exit_on_sigterm()
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
                    answer = sides[number].take_turn({"seconds": seconds})
                    results[number].turns.append(Turn(**answer))
                except SideFailedError as error:
                    results[number].failure = str(error)
                    sides.pop(number).close()
                    note(f"  {results[number].entry.name} failed because {error}")
            note(f"  round {turn + 1} of {rounds}")
    finally:
        for side in sides.values():
            side.close()
    return results


def start_side(result: Result, request: Message, cores: set[int]) -> Side:
    """Start a side, and return it when it is ready and stopped.

    Raises `SideFailedError` or `EnvironmentFailedError` if it cannot start.
    """
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
        f"benchmarks.{entry.script}",
        python=str(python),
        folders=folders,
        scratch=scratch,
        cores=cores,
        log=scratch.with_suffix(".log"),
    )
    try:
        result.versions = side.start(request)
    except BaseException:
        side.close()
        raise
    return side
