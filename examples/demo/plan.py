"""The plan of the demo: a reference run, and a run in three pieces."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TypedDict

GLOBAL_BATCH, SEQ_LEN, VOCAB_SIZE = 16, 128, 4096


@dataclass(frozen=True)
class Length:
    """How long the demo runs, in steps."""

    steps: int
    save_every: int
    kill_at: int
    second_ends: int

    @property
    def checkpoint_before_kill(self) -> int:
        """The step from which the killed run is resumed, if the kill is prompt."""
        return self.kill_at // self.save_every * self.save_every


FULL = Length(steps=240, save_every=40, kill_at=107, second_ends=160)
QUICK = Length(steps=24, save_every=8, kill_at=12, second_ends=16)


class Step(TypedDict):
    """A step of all ranks."""

    loss: float
    step_s: float
    wait_s: float
    rows: list[tuple[int, str]]
    """Index and hash of each row, in order."""


@dataclass
class Run:
    """One `torchrun`: its arguments and, afterwards, the steps that its ranks recorded."""

    name: str
    ranks: int
    stop: int
    checkpoints: str
    cache: str
    kill_at: int | None = None
    seconds: float = 0.0
    steps: dict[int, Step] = field(default_factory=dict)
    first: int = 0
    last: int = 0
    """The steps that count: no later run repeats them."""

    @property
    def counted(self) -> list[int]:
        """The steps that the final model went through."""
        return [step for step in self.steps if self.first <= step <= self.last]

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second over the run's steps."""
        return (
            GLOBAL_BATCH
            * SEQ_LEN
            / statistics.median(step["step_s"] for step in self.steps.values())
        )

    @property
    def wait_share(self) -> float:
        """The share of time that the training loop waited for the loader, without the first step,
        when workers start."""
        steps = list(self.steps.values())[1:]
        return sum(step["wait_s"] for step in steps) / sum(step["step_s"] for step in steps)


def plan_runs(length: Length) -> list[Run]:
    """The reference and three pieces that share their checkpoints; the last has an empty cache, as
    on another machine."""
    return [
        Run(
            "reference",
            2,
            length.steps,
            checkpoints="checkpoints-reference",
            cache="cache-reference",
        ),
        Run(
            "piece 1",
            2,
            length.steps,
            checkpoints="checkpoints",
            cache="cache",
            kill_at=length.kill_at,
        ),
        Run("piece 2", 1, length.second_ends, checkpoints="checkpoints", cache="cache"),
        Run("piece 3", 4, length.steps, checkpoints="checkpoints", cache="cache-elsewhere"),
    ]


def describe(run: Run, length: Length) -> str:
    """The stage's headline."""
    ranks = name_ranks(run)
    if run.name == "reference":
        return f"Reference: {ranks}, {run.stop} steps without a stop"
    if run.kill_at:
        return (
            f"Piece 1: {ranks}, killed with SIGKILL at step {run.kill_at} (a checkpoint every "
            f"{length.save_every} steps)"
        )
    return f"{run.name.capitalize()}: {ranks}, from the last checkpoint to step {run.stop}"


def name_ranks(run: Run) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{run.ranks} rank{'s' * (run.ranks > 1)}"
