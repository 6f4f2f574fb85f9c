"""The plan of the demo, which has a reference run and the same run in three pieces."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TypedDict

GLOBAL_BATCH, SEQ_LEN, VOCAB_SIZE = 16, 128, 4096


@dataclass(frozen=True)
class Length:
    """The number of steps of the demo, and the steps at which runs are saved, killed and ended."""

    steps: int
    save_every: int
    kill_at: int
    second_ends: int

    @property
    def checkpoint_before_kill(self) -> int:
        """The step from which the killed run resumes, if the kill is not delayed."""
        return self.kill_at // self.save_every * self.save_every


FULL = Length(steps=240, save_every=40, kill_at=107, second_ends=160)
QUICK = Length(steps=24, save_every=8, kill_at=12, second_ends=16)


class Step(TypedDict):
    """One training step, over all ranks."""

    loss: float
    step_s: float
    wait_s: float
    rows: list[tuple[int, str]]
    """The index and the hash of each row of the global batch, in order."""


@dataclass
class Run:
    """One run of torchrun, with its arguments and, once it is over, the steps it recorded."""

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
    """The last step that counts. Later runs repeat the steps after it, but none from `first` to
    `last`."""

    @property
    def counted(self) -> list[int]:
        """The recorded steps that the final model was trained on."""
        return [step for step in self.steps if self.first <= step <= self.last]

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all ranks in a step of median duration."""
        return (
            GLOBAL_BATCH
            * SEQ_LEN
            / statistics.median(step["step_s"] for step in self.steps.values())
        )

    @property
    def wait_share(self) -> float:
        """The share of time that the training loop waited for the loader.

        The first step is left out, because workers start during it.
        """
        steps = list(self.steps.values())[1:]
        return sum(step["wait_s"] for step in steps) / sum(step["step_s"] for step in steps)


def plan_runs(length: Length) -> list[Run]:
    """Return the reference run, and three pieces that share their checkpoints.

    The last piece starts with an empty cache, as if on another machine.
    """
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
    """Describe a run in one line, as the heading of its stage."""
    ranks = name_ranks(run)
    if run.name == "reference":
        return f"Reference: {ranks}, {run.stop} steps without interruption"
    if run.kill_at:
        return (
            f"Piece 1: {ranks}, killed with SIGKILL at step {run.kill_at} (checkpoints every "
            f"{length.save_every} steps)"
        )
    return f"{run.name.capitalize()}: {ranks}, from the last checkpoint to step {run.stop}"


def name_ranks(run: Run) -> str:
    """Return the number of ranks with its noun, such as `1 rank` or `2 ranks`."""
    return f"{run.ranks} rank{'s' * (run.ranks > 1)}"
