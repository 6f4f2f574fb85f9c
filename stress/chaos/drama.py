"""Choose at random which signals a job's processes receive, and whether its disks fill up."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

CONNECTING = "SIGKILL a rank while it connects"
ENDS = {
    "none": 3,
    "SIGKILL a worker": 3,
    "SIGKILL a rank": 3,
    "SIGKILL all": 2,
    "SIGTERM a rank": 1,
    "SIGKILL ranks": 1,
    CONNECTING: 1,
}
STOPPED = {"a rank": 3, "a worker": 3, "all ranks": 1, "all processes": 1, "the store": 3}
# maps the range of a stop's seconds to its relative frequency
STOPS_S = {(0.5, 6.0): 14, (10.0, 35.0): 4, (65.0, 110.0): 1}
LONG_S = 60.0


@dataclass(frozen=True)
class Stop:
    """A pause of some of a job's processes, from SIGSTOP to SIGCONT."""

    of: str
    """The paused processes, as named in `STOPPED`."""
    seconds: float
    is_at_end: bool
    """Whether the signal that ends the job is sent while these processes are stopped."""

    def describe(self) -> str:
        """Describe the stopped processes and the rough duration, as a key for counts."""
        length = "a minute or more" if self.seconds >= LONG_S else "seconds"
        return f"SIGSTOP of {self.of} for {length}"


@dataclass(frozen=True)
class Drama:
    """The faults of one job, except those of its store and caches."""

    end: str
    """The way in which the job ends, as named in `ENDS`."""
    is_early: bool
    """Whether the job is killed before its first step."""
    stop: Stop | None
    disk: str | None
    """`small` if the disk is small from the start, `fills` if it fills up during the job, or None
    if it has ample space."""
    patience_s: float
    """Seconds that ranks wait for others. Some stops last longer."""


def draw_drama(draw: random.Random, *, has_disks: bool) -> Drama:
    """Choose the faults of a job at random. Its disks are left alone unless `has_disks`."""
    end = _choose(draw, ENDS)
    is_early = end not in ("none", CONNECTING) and draw.random() < 0.15
    stop = None
    if not is_early and end != CONNECTING and draw.random() < 0.45:
        stop = Stop(
            _choose(draw, STOPPED), draw.uniform(*_choose(draw, STOPS_S)), draw.random() < 0.3
        )
    disk = draw.choice(["small", "fills", None]) if has_disks else None
    is_long = stop is not None and stop.seconds > LONG_S
    return Drama(end, is_early, stop, disk, draw.choice([60.0, 150.0]) if is_long else 60.0)


def _choose(draw: random.Random, weights: dict[Any, int]) -> Any:
    return draw.choices(list(weights), list(weights.values()))[0]
