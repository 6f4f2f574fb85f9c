"""The result of a forecast: the reads and requirements of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloudload.system import reports

# Student's t for a two-sided 95% interval, by degrees of freedom (0 to 10); 1.96 beyond 10
_STUDENT = (math.nan, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
_NORMAL = 1.96


@dataclass(frozen=True)
class Figure:
    """A number with its range at 95% confidence."""

    value: float
    low: float
    high: float
    """The bounds `low` and `high` are NaN if the range is unknown."""
    is_exact: bool = False
    """Whether a run has exactly this value, because it follows from the data and the options."""

    @staticmethod
    def exact(value: float) -> Figure:
        """Create an exact figure, whose range is a single value."""
        return Figure(value, value, value, is_exact=True)

    @staticmethod
    def around(value: float, error: float) -> Figure:
        """Create an estimate with a relative error of at most `error`, which is NaN if unknown."""
        return Figure(value, value * (1 - error), value * (1 + error))

    @staticmethod
    def measured(values: Sequence[float]) -> Figure:
        """Return the mean of measurements and its 95% interval (NaN for a single measurement)."""
        return Figure._summarize(values, 1 / max(1, len(values)), 0.0)

    @staticmethod
    def predicted(values: Sequence[float], error: float = 0.0) -> Figure:
        """Return the mean of values and a 95% interval for another value (NaN for a single value).

        `error` is a relative error that all values share.
        """
        return Figure._summarize(values, 1 + 1 / max(1, len(values)), error)

    @staticmethod
    def _summarize(values: Sequence[float], variance: float, error: float) -> Figure:
        """Return the mean with Student's interval. `variance` scales the values' variance."""
        mean, freedom = float(np.mean(values)), len(values) - 1
        if not freedom:
            return Figure.around(mean, math.nan)
        student = _STUDENT[freedom] if freedom < len(_STUDENT) else _NORMAL
        spread = student * float(np.std(values, ddof=1)) * math.sqrt(variance)
        return Figure.around(mean, math.hypot(spread / mean if mean else 0.0, error))

    @property
    def error(self) -> float:
        """The larger side of the range, relative to the value; NaN if the range is unknown."""
        if self.is_exact or self.low == self.high:
            return 0.0
        return max(self.high - self.value, self.value - self.low) / max(1e-300, abs(self.value))

    def __str__(self) -> str:
        return self.with_unit("")

    def with_unit(self, unit: str, singular: str | None = None) -> str:
        """Format the figure and its range, such as `about 5 rows (± 1.2%)`.

        A value that is NaN, because there was too little data to measure it, is `unknown`.
        """
        if math.isnan(self.value):
            return "unknown, because there is too little data to measure it"
        shown = f"{self.value:,.4g}" if abs(self.value) < 100 else f"{self.value:,.0f}"
        if float(self.value).is_integer():
            shown = f"{self.value:,.0f}"
        if unit:
            shown += f" {singular if singular and self.value == 1 else unit}"
        return shown if self.is_exact else f"about {shown} ({self.describe_error()})"

    def describe_error(self) -> str:
        """Format the range of an estimate relative to its value, such as `± 1.2%`."""
        if math.isnan(self.error):
            return "error unknown"
        above, below = self.high - self.value, self.value - self.low
        whole = max(1e-300, abs(self.value))
        if abs(above - below) <= 1e-9 * whole:
            return f"± {self.error:.1%}"
        if not below:
            return f"up to +{above / whole:.1%}"
        if not above:
            return f"down to -{below / whole:.1%}"
        return f"-{below / whole:.1%} to +{above / whole:.1%}"


@dataclass(frozen=True)
class StreamPlan:
    """The part of a run that is read from one stream."""

    name: str
    tokens: Figure
    """Number of the stream's tokens in rows, including bos and eos."""
    epochs: Figure
    """Average number of times that the run reads each sample of the stream."""
    share: Figure
    """The stream's share of the run's tokens, from 0 to 1."""
    samples: int
    """Number of samples in the stream."""
    selected: int
    """Number of samples that the run reads; less than `samples` with `select` or `drop`."""
    egress: float
    """Bytes of the shards that an epoch fetches, for each byte of the documents that it reads: 1
    without a selection. Documents are assumed to be equally large within a shard."""
    last_step: Figure | None = None
    """The step with the stream's last row. None if the stream does not end in the run, or if the
    run is not a mixture with `epochs` or `max_epochs`."""
    tail_rows: Figure | None = None
    """Number of rows in the stream's tail. None if `last_step` is None."""


@dataclass(frozen=True)
class NodePlan:
    """The shard cache of one node during the run. Shards that are mapped in place do not count."""

    node: int
    """Index of the node, from 0."""
    shards: Figure
    """Number of different shards that the node fetches."""
    all_bytes: Figure
    """Uncompressed bytes of the fetched shards: the size of a cache without a limit."""
    working_set_bytes: Figure
    """Peak bytes of shards in use at the same time, including the drift of lanes. A shard is in use
    from the first to the last row that reads one of its documents."""
    needed_bytes: Figure
    """Size in bytes of a cache for the working set and the shards that are fetched ahead."""
    bytes_downloaded: Figure
    """Bytes downloaded during the run."""
    bytes_by_epoch: tuple[int, ...]
    """Bytes downloaded for each epoch of the data."""
    requests: Figure
    """Number of shard downloads, including repeated downloads."""


@dataclass(frozen=True)
class BalancePlan:
    """The attention of the ranks without and with the option `balance`, if documents are apart."""

    steps: int
    """Number of steps that were computed, at equal distances."""
    attended: Figure
    """The mean length of a token's segment: its document's part of the row, or padding."""
    dealt: Figure
    """The work of a step's slowest rank over the mean of all ranks, without `balance`."""
    balanced: Figure
    """The same with `balance`."""


@dataclass(frozen=True)
class RunPlan:
    """The reads and requirements of a run."""

    description: str
    """The data and the most important options, as one line of text."""
    basis: str
    """The basis of the figures in words, such as `token lengths`."""
    seq_len: int
    global_batch: int
    """Rows per step, across all ranks."""
    world_size: int
    nodes: int
    steps: Figure
    rows: Figure
    tokens: Figure
    """Number of tokens, without padding."""
    padding: Figure
    """The share of padding in the rows, from 0 to 1."""
    epochs: Figure
    """Average number of times that the run reads each sample, over all streams."""
    streams: tuple[StreamPlan, ...]
    num_lanes: int
    any_world: bool
    """Whether any world size works, because there are token lengths."""
    worlds: tuple[int, ...]
    """The world sizes that divide the number of lanes, which always work."""
    cache_limit_bytes: int | None
    least_cache_bytes: int
    """The cache limit in bytes below which a loader refuses to start."""
    node_plans: tuple[NodePlan, ...]
    balance: BalancePlan | None
    """None without the option `balance`, or if a node has a single rank."""
    first_batch_s: Figure | None = None
    """Seconds from an empty cache to the first batch, measured on this machine."""
    tokens_per_worker_s: Figure | None = None
    """Tokens per second that one core of this machine prepares."""
    workers: Figure | None = None
    """Workers per rank needed to keep up with the GPU; None without `gpu_tokens_per_s`."""
    warnings: tuple[str, ...] = ()

    @property
    def bytes_downloaded(self) -> Figure:
        """Bytes that all nodes download during the run."""
        return add([each.bytes_downloaded for each in self.node_plans])

    @property
    def requests(self) -> Figure:
        """Number of shard downloads of all nodes, including repeated downloads."""
        return add([each.requests for each in self.node_plans])

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON types. A figure is a dict; an unknown bound is None."""
        values: dict[str, Any] = reports.to_plain(self)
        return values

    def to_json(self) -> str:
        """Return the plan as indented JSON."""
        return reports.to_json(self)


def add(figures: list[Figure]) -> Figure:
    """Return the sum of figures. Its range is the sum of their ranges."""
    return Figure(
        sum(each.value for each in figures),
        sum(each.low for each in figures),
        sum(each.high for each in figures),
        is_exact=all(each.is_exact for each in figures),
    )
