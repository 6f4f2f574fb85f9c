"""Choose at random the jobs of a training run, and the faults of each job.

TrainingRun    its data, and the options that determine its rows
Job            one start of a run, with options that may change at every resume
Scenario       the signals that the job's processes receive, and whether its disks fill up
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloudload import CloudLoader, Stream

NUM_LANES = 24
MAX_GLOBAL_BATCH = 48
"""No job has a larger global batch."""


# ---------------------------------------------------------------- training runs


@dataclass(frozen=True)
class RunKind:
    """A kind of training run, with the options that determine its rows."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    proportions: tuple[float, ...] | None = None

    @property
    def is_finite(self) -> bool:
        """Whether the run ends, after a number of epochs."""
        return "epochs" in self.settings

    @property
    def needs_lengths(self) -> bool:
        """Whether the run is a finite mixture, which cannot run without token lengths."""
        return self.is_finite and self.proportions is not None


_ROWS = {"packing": "one_per_row", "overflow": "rows"}
_BEST_FIT = {"packing": "best_fit", "open_rows": 4}
_FIRST = {**_BEST_FIT, "epochs": 2, "stopping": "first"}
RUN_KINDS = (
    RunKind("concat"),
    RunKind("best_fit, finite mixture", {**_BEST_FIT, "epochs": 1}, (0.7, 0.3)),
    RunKind("best_fit, mixed", _BEST_FIT, (0.7, 0.3)),
    RunKind("best_fit, finite", {**_BEST_FIT, "epochs": 1}),
    RunKind("one_per_row, seekable", {**_ROWS, "shuffle_algo": "seekable"}),
    RunKind("best_fit, finite mixture, first", _FIRST, (0.5, 0.5)),
    RunKind("concat, mixed, py1br", {"shuffle_algo": "py1br"}, (0.5, 0.5)),
    RunKind("concat, finite", {"epochs": 2}),
    RunKind("one_per_row, finite", {**_ROWS, "epochs": 1}),
    RunKind("concat, finite mixture", {"epochs": 1}, (0.6, 0.4)),
)


@dataclass(frozen=True)
class TrainingRun:
    """A run that a sequence of jobs continues, with a folder for its files."""

    kind: RunKind
    seed: int
    folder: Path
    urls: tuple[str, ...]
    tokenizer: str
    has_lengths: bool = False
    """Whether the token lengths of the datasets are stored beside them."""
    has_disks: bool = False
    """Whether each cache of the run is a separate file system, which may be filled."""
    other_urls: tuple[str, ...] = ()
    """MDS shards of the same documents for the undisturbed run, if `urls` are Parquet files."""
    environment: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def data(self) -> str:
        """The form of the data, for counts."""
        return "Parquet files" if self.other_urls else "MDS shards"

    @property
    def state_file(self) -> Path:
        """The file of the run's last checkpoint."""
        return self.folder / "state.json"

    @property
    def end_file(self) -> Path:
        """A file that exists once the run has reached the end of its data."""
        return self.folder / "ended"

    def open(self, **settings: Any) -> CloudLoader:
        """Create a loader for the run's rows. `settings` are additional options."""
        return self._open(self.urls, settings)

    def open_undisturbed(self, **settings: Any) -> CloudLoader:
        """Create a loader for the rows with which those of the jobs are compared."""
        return self._open(self.other_urls or self.urls, settings)

    def _open(self, urls: tuple[str, ...], settings: Mapping[str, Any]) -> CloudLoader:
        shares = self.kind.proportions or (None,) * len(urls)
        streams = [Stream(url, proportion=share) for url, share in zip(urls, shares, strict=True)]
        return CloudLoader(
            streams,
            tokenizer=self.tokenizer,
            eos="<|endoftext|>",
            seq_len=64,
            num_lanes=NUM_LANES,
            seed=self.seed,
            **self.kind.settings,
            **settings,
        )


# ---------------------------------------------------------------- the faults of a job

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
"""Each way in which a job may end, and its relative frequency."""
PAUSED = {"a rank": 3, "a worker": 3, "all ranks": 1, "all processes": 1, "the store": 3}
PAUSES_S = {(0.5, 6.0): 14, (10.0, 35.0): 4, (65.0, 110.0): 1}
START_METHODS = {"fork": 10, "spawn": 1, "forkserver": 1}
_LONG_S, _MAX_CONNECT_S = 60.0, 0.2


@dataclass(frozen=True)
class Pause:
    """A pause of some of a job's processes, from SIGSTOP to SIGCONT."""

    of: str
    """The paused processes, as named in `PAUSED`."""
    seconds: float
    is_at_end: bool
    """Whether the signal that ends the job is sent while these processes are paused."""

    def describe(self) -> str:
        """Describe the paused processes and the rough duration, as a key for counts."""
        length = "a minute or more" if self.seconds >= _LONG_S else "seconds"
        return f"SIGSTOP of {self.of} for {length}"


@dataclass(frozen=True)
class Scenario:
    """The faults of one job, except those of its store and caches."""

    end: str
    """The way in which the job ends, as named in `ENDS`."""
    is_early: bool
    """Whether the job is killed before its first step."""
    pause: Pause | None
    disk: str | None
    """`small` if the disk is small from the start, `fills` if it fills up during the job, or None
    if it has ample space."""
    timeout_s: float
    """Seconds that ranks wait for others. Some pauses last longer. Requests are retried for half of
    this time."""


def draw_scenario(draw: random.Random, *, has_disks: bool) -> Scenario:
    """Choose the faults of a job at random. Its disks are left alone unless `has_disks`."""
    end = _choose(draw, ENDS)
    is_early = end not in ("none", CONNECTING) and draw.random() < 0.15
    pause = None
    if not is_early and end != CONNECTING and draw.random() < 0.45:
        seconds = draw.uniform(*_choose(draw, PAUSES_S))
        pause = Pause(_choose(draw, PAUSED), seconds, draw.random() < 0.3)
    disk = draw.choice(["small", "fills", None]) if has_disks else None
    is_long = pause is not None and pause.seconds > _LONG_S
    return Scenario(end, is_early, pause, disk, draw.choice([60.0, 150.0]) if is_long else 60.0)


def _choose(draw: random.Random, weights: Mapping[Any, int]) -> Any:
    return draw.choices(list(weights), list(weights.values()))[0]


# ---------------------------------------------------------------- jobs


@dataclass(frozen=True)
class Job:
    """One start of a training run, with its world, its delivery options, and its faults."""

    run: TrainingRun
    number: int
    scenario: Scenario
    ranks: int
    ranks_per_node: int
    steps: int
    save_every: int
    options: dict[str, Any]
    """Options of the loader that may change at every resume."""
    killed_while_connecting: tuple[int, float] | None
    """The rank that kills itself while it connects, and the seconds after its first attempt."""

    @property
    def nodes(self) -> int:
        """The number of nodes. The last one may have fewer ranks than the others."""
        return -(-self.ranks // self.ranks_per_node)

    @property
    def caches(self) -> list[Path]:
        """The cache folder of each node."""
        return [self.run.folder / f"cache-{node}" for node in range(self.nodes)]

    def rows_file(self, rank: int) -> Path:
        """The file of a rank's row hashes. Each batch is a JSON line that maps rows to hashes."""
        return self.run.folder / f"job-{self.number}-rank-{rank}.jsonl"

    def log_file(self, rank: int) -> Path:
        """The file to which a rank and its workers write stdout and stderr."""
        return self.run.folder / f"job-{self.number}-rank-{rank}.log"


def draw_job(draw: random.Random, number: int, run: TrainingRun) -> Job:
    """Choose a job at random. Unless it uses all lengths, its ranks divide the lanes evenly."""
    scenario = draw_scenario(draw, has_disks=run.has_disks)
    is_connecting = scenario.end == CONNECTING
    start_method, lengths = _choose(draw, START_METHODS), _draw_lengths(draw, run)
    is_uneven = run.has_lengths and lengths != "off" and draw.random() < 0.6
    ranks = draw.choice([5, 5, 5, 5, 5, 7, 7, 9] if is_uneven else [1, 1, 2, 2, 2, 3, 3, 4, 6])
    if start_method != "fork":  # every new process imports torch again, so start only a few
        ranks = min(ranks, 5 if is_uneven else 2)
    if is_connecting:
        ranks = max(2, ranks)
    delay_s = draw.choice([0.0, draw.uniform(0.0, _MAX_CONNECT_S)])
    options = {
        **_draw_steps(draw, ranks, run),
        "num_workers": _draw_workers(draw, ranks, start_method),
        "cache_limit": draw.choice([None, None, 3_000_000]),
        "verify": draw.choice(["once", "once", "always"]),
        "start_method": start_method,
        "tokenizer_backend": draw.choice(["hf", "hf", "hf", "hf", "hf", "auto"]),
        "lengths": lengths,
        "exchange_every": 1 if run.kind.is_finite else draw.choice([1, 1, 3]),
    }
    return Job(
        run=run,
        number=number,
        scenario=scenario,
        ranks=ranks,
        ranks_per_node=-(-ranks // draw.choice([1, 1, 2, 3])),
        steps=draw.choice([10, 40, 150]),
        save_every=draw.choice([1, 3, 7]),
        options=options,
        killed_while_connecting=(draw.randrange(ranks), delay_s) if is_connecting else None,
    )


def _draw_steps(draw: random.Random, ranks: int, run: TrainingRun) -> dict[str, int | None]:
    """Choose the rows of a step: as many on each rank, or a number that they share unequally."""
    if draw.random() < 0.6:
        return {"batch_size": draw.choice([1, 2, 4, 6] if ranks <= 6 else [1, 2, 4])}
    # with micro-batches, rows after the end of a run are filler rows, which are not compared
    micro = None if run.kind.is_finite else draw.choice([None, 1, 3])
    size = draw.randint(ranks, MAX_GLOBAL_BATCH)
    return {"batch_size": None, "global_batch_size": size, "micro_batch_size": micro}


def _draw_workers(draw: random.Random, ranks: int, start_method: str) -> int:
    if start_method != "fork":
        return draw.choice([1, 1, 2])
    return draw.choice([0, 1, 1, 1, 2, 3] if ranks <= 3 else [0, 1, 1])


def _draw_lengths(draw: random.Random, run: TrainingRun) -> str:
    if run.kind.needs_lengths:
        return draw.choice(["auto", "require"])
    required = ["require", "require"] if run.has_lengths else []
    return draw.choice(["auto", *required, "off"])
