"""Measure a loader alone: read its batches as fast as they come, without a training loop.

    options ─► loader ─► first batch ─► warm-up ─► measured batches ─► LoaderSpeed ─► text, JSON
                │                                    └─► tokens/s, ms a batch, CPU, bottleneck
                └─ alone: no other rank, and the whole machine

`cloudload plan` measures in the same way how soon a run starts, and how fast one core reads.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cloudload.config import checks
from cloudload.data import check_seconds, redact
from cloudload.loading import count_cores, find_bottleneck, limit_batches, limit_blocks_ahead
from cloudload.stats import IDLE, STAGES, DeliveryStats
from cloudload.system import Floats, counted, machine, reports

if TYPE_CHECKING:
    from cloudload.loading import CloudLoader  # which imports torch

_SECONDS, _WARM_UP_S = 10.0, 1.0
_MARGIN = " " * len("  bottleneck   ")


@dataclass(frozen=True)
class LoaderSpeed:
    """The speed of one rank's loader on this machine, without a training loop.

    Only `first_batch_s` and `first_batch_bytes` are about the start. The warm-up is not counted.
    """

    description: str
    """The data and the rows."""
    first_batch_s: float
    """Seconds from the loader's creation to its first batch, without imports. They depend on what
    is in the cache."""
    first_batch_bytes: int
    """Number of bytes downloaded by then."""
    seconds: float
    """Seconds that were measured."""
    batches: int
    """Number of batches."""
    tokens: int
    """Number of tokens, without padding."""
    batch_ms: float
    """Mean milliseconds per batch."""
    batch_ms_median: float
    """Median. It is below the mean if the batches are small, because workers then make several at a
    time."""
    batch_ms_p99: float
    """99th percentile."""
    cores: float
    """Mean number of cores that the loader's processes kept busy."""
    num_workers: int
    """Number of workers. 0 means that the process itself makes the rows."""
    stages: Mapping[str, float]
    """Share of the workers' time in each stage; see `cloudload.stats.DeliveryStats`."""
    queue: float
    """Mean fill level of the workers' queues, from 0 to 1. If it is near 1, the workers are ahead,
    and taking the batches is what limits the speed."""
    bottleneck: str
    """What limits the speed, and what to change."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    @property
    def tokens_per_cpu_s(self) -> float:
        """Tokens per second of CPU time, of all processes together."""
        return self.tokens_per_s / max(1e-9, self.cores)

    def as_dict(self) -> dict[str, Any]:
        """Return all values as JSON types."""
        names = ("tokens_per_s", "tokens_per_cpu_s")
        return {**vars(self), **{name: getattr(self, name) for name in names}}

    def describe(self) -> Iterator[str]:
        """Yield the report as lines of text."""
        own, _ = count_cores()
        yield self.description
        yield (
            f"  first batch  {self.first_batch_s:,.2f} s, with {self.first_batch_bytes / 1e6:,.1f} "
            "MB downloaded"
        )
        yield f"  measured     {self.batches:,} batches in {self.seconds:,.1f} s"
        yield f"  speed        {self.tokens_per_s:,.0f} tokens/s"
        times = (self.batch_ms, self.batch_ms_median, self.batch_ms_p99)
        mean, median, p99 = (f"{each:,.{2 if each < 10 else 0}f} ms" for each in times)
        yield f"  a batch      {mean} on average, median {median}, 99th percentile {p99}"
        yield (
            f"  CPU          {self.cores:.2f} of {counted(own, 'core')} busy; "
            f"{self.tokens_per_cpu_s:,.0f} tokens per CPU second"
        )
        yield f"  workers      {self.num_workers}, whose queues are {self.queue:.0%} full"
        room = reports.WIDTH - len(_MARGIN)
        first, *others = reports.wrap_text(self.bottleneck, room, room)
        yield f"  bottleneck   {first}"
        yield from (f"{_MARGIN}{line.strip()}" for line in others)


def measure_loader(
    data: Any,
    *,
    seconds: float | None = None,
    steps: int | None = None,
    ranks: int = 1,
    **options: Any,
) -> LoaderSpeed:
    """Read a loader's batches as fast as they come, and measure its speed.

    The loader starts at the beginning of the run, with all options as in a run. It uses the run's
    cache, so set `local` to an empty folder to measure a first start. A warm-up of at least a
    second, which also takes what the workers have read ahead, is not counted.

    Args:
        data: as for `CloudLoader`.
        seconds: how long to measure at least; by default, 10 s, unless there are `steps`.
        steps: the minimum number of steps to measure, instead of `seconds`. A whole number of
            workers' blocks is read.
        ranks: number of data-parallel ranks of the run, of which only the first is measured.
        options: the other options of `CloudLoader`. The rank and the world have no effect.

    Raises:
        ValueError: if an argument is invalid, or the data ends in the warm-up.
        CloudloadError: if the data, the tokenizer or a store cannot be used.
    """
    if seconds is not None and steps is not None:
        raise ValueError(f"seconds is {seconds} and steps is {steps}. Set only one of them")
    check_seconds("seconds", least_s := _SECONDS if seconds is None else seconds)
    steps = None if steps is None else checks.as_integer("steps", steps, 1)
    ranks = checks.as_integer("ranks", ranks, 1)
    world = {"device_mesh": None, "dp_rank": 0, "dp_world_size": ranks}
    with reading_alone({**options, **world, "data": data}) as reading:
        if reading.plan.delivery.has_worker_processes and not machine.shows_processes():
            raise ValueError(
                "this system has no /proc, so the CPU time of workers cannot be measured. Use "
                "num_workers=0"
            )
        reading.warm_up(_WARM_UP_S)
        before = reading.loader.stats().delivery
        if steps is None:
            period = reading.read(least_s=least_s)
        else:
            period = reading.read(least_batches=steps * reading.loader.micro_batches)
        if not len(period.batch_s):
            raise ValueError(
                "the data ends in the warm-up, so nothing could be measured. Omit epochs, so that "
                "the run repeats its data"
            )
        return _summarize(reading, period, before)


def _summarize(reading: Reading, period: Period, before: DeliveryStats) -> LoaderSpeed:
    plan, after = reading.plan, reading.loader.stats().delivery
    config = plan.recipe.config
    found = find_bottleneck(plan, before, after, period.seconds)
    remedy = f"To read faster, {found.remedy}"
    if found.stage == STAGES[IDLE]:
        remedy = "The workers are fast enough, and assembling batches takes the rest of the time"
    batch_ms, total_s = 1e3 * period.batch_s, max(1e-9, sum(found.spent.values()))
    urls = ", ".join(redact(stream.url) for stream in config.streams)
    rows = counted(reading.loader.batch_size, "row")
    return LoaderSpeed(
        description=f"{urls}: {config.packing}, batches of {rows} of {config.seq_len:,} tokens",
        first_batch_s=reading.first_batch_s,
        first_batch_bytes=reading.first_batch_bytes,
        seconds=period.seconds,
        batches=len(period.batch_s),
        tokens=period.tokens,
        batch_ms=float(batch_ms.mean()),
        batch_ms_median=float(np.median(batch_ms)),
        batch_ms_p99=float(np.percentile(batch_ms, 99)),
        cores=period.cpu_s / period.seconds,
        num_workers=plan.share.num_workers if plan.delivery.has_worker_processes else 0,
        stages={name: each / total_s for name, each in found.spent.items()},
        queue=period.queue,
        bottleneck=f"{found.work}. {remedy}",
    )


# ---------------------------------------------------------------- reading


@contextmanager
def reading_alone(options: Mapping[str, Any]) -> Iterator[Reading]:
    """Create a loader that meets no other rank, and read its first batch.

    Raises the errors of `CloudLoader`.
    """
    from cloudload.loading import CloudLoader, LoneEnvironment, use_environment  # imports torch

    clock, began = _CpuClock(), time.monotonic()
    with use_environment(LoneEnvironment()), CloudLoader(**options) as loader:
        yield Reading(loader, clock, began)


class Reading:
    """The reading of a loader's batches, as fast as they come."""

    def __init__(self, loader: CloudLoader, clock: _CpuClock, began: float) -> None:
        self.loader, self._clock, self._batches = loader, clock, iter(loader)
        first = next(self._batches, None)
        self.first_batch_s = math.nan if first is None else time.monotonic() - began
        """Seconds from `began`, in `time.monotonic` seconds; NaN if there is no batch."""
        self.first_batch_bytes = loader.stats().delivery.bytes_downloaded
        """Number of bytes downloaded for it."""
        self.plan = plan = loader.worker_plan()
        self._block = limit_batches(plan.inputs, plan.share)
        self._blocks_ahead = limit_blocks_ahead(plan.delivery.prefetch_batches, self._block)

    def read(
        self, *, least_s: float = 0.0, least_cpu_s: float = 0.0, least_batches: int = 0
    ) -> Period:
        """Read whole blocks of batches, at least one, until all minimums are reached.

        A worker makes a whole block at a time. The period is shorter if the data ends.
        """
        arrivals, tokens, queues = [time.perf_counter()], 0, []
        cpu_s, start_s = 0.0, self._clock.seconds()
        while True:
            for batch in itertools.islice(self._batches, self._block):
                tokens += batch.num_tokens
                arrivals.append(time.perf_counter())
            queues.append(self.loader.stats().delivery.queue)
            cpu_s, read = self._clock.seconds() - start_s, len(arrivals) - 1
            is_whole = read == len(queues) * self._block
            is_long = arrivals[-1] - arrivals[0] >= least_s and cpu_s >= least_cpu_s
            if not is_whole or (is_long and read >= least_batches):
                return Period(tokens, np.diff(arrivals), cpu_s, float(np.mean(queues)))

    def warm_up(self, least_s: float) -> None:
        """Read for at least `least_s`, and all blocks that workers have made ahead."""
        began, ahead = time.monotonic(), self._blocks_ahead
        while ahead or time.monotonic() - began < least_s:
            period = self.read()
            ahead = ahead - 1 if ahead and period.queue else 0
            if len(period.batch_s) < self._block:  # the data ends
                return


@dataclass(frozen=True)
class Period:
    """What was read in a period."""

    tokens: int
    """Number of tokens, without padding."""
    batch_s: Floats
    """Seconds until each batch arrived, since the one before: float64 [batches]."""
    cpu_s: float
    """CPU seconds of the loader's processes."""
    queue: float
    """Mean fill level of the workers' queues, from 0 to 1."""

    @property
    def seconds(self) -> float:
        """Seconds until the last batch arrived."""
        return float(self.batch_s.sum())


class _CpuClock:
    """The CPU seconds of this process, and of the child processes that it starts from now on."""

    def __init__(self) -> None:
        self._others = _list_children()

    def seconds(self) -> float:
        """Return the CPU seconds so far. Those of children that have ended are not counted."""
        return time.process_time() + sum(map(machine.cpu_seconds, _list_children() - self._others))


def _list_children() -> set[int]:
    return {each.pid for each in multiprocessing.active_children() if each.pid is not None}
