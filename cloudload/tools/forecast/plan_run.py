"""Forecast a run: its length, streams, and speed, and each node's cache and downloads.

    options ─► loader's recipe ─► cases ─► extent   rows, tokens, epochs of each stream
                                       └─► uses     shards in use, downloads of each node
            └─► reader on real shards ─► first batch, workers

The reader is measured on real shards of the run:

    cold    a new process with an empty cache ─► seconds from a loader's creation to its first batch
    warm    batches in this process ─► tokens per second of CPU time
"""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cloudload.config import checks, choices
from cloudload.data import list_warnings, redact
from cloudload.loading import take_share
from cloudload.order import World
from cloudload.stats import READ, TOKENS
from cloudload.system import counted, divisors
from cloudload.tools.bench import reading_alone
from cloudload.tools.forecast.budget import parse_tokens
from cloudload.tools.forecast.cases import Cases, open_cases
from cloudload.tools.forecast.nodes import NodeForecast
from cloudload.tools.forecast.request import ForecastRequest
from cloudload.tools.forecast.result import BalancePlan, Figure, RunPlan, StreamPlan
from cloudload.tools.forecast.slowest_rank import plan_balance

_MOST_EPOCHS = 4
_SAMPLE = 0.01

_PROGRAM = """
import pickle, sys
from cloudload.tools.forecast.plan_run import start
print(start(pickle.load(sys.stdin.buffer)))
"""
_COLD_STARTS, _COLD_BUDGET_S = 3, 30.0
_ENOUGH_CORES = 1 << 20, 1 << 20
_PARTS, _PART_CPU_S, _MOST_WALL_S = 5, 0.3, 60.0


@dataclass(frozen=True)
class Speed:
    """The speed of the reader on this machine."""

    first_batch_s: Figure
    """Seconds from the creation of a loader with an empty cache to its first batch."""
    tokens_per_cpu_s: Figure
    """Tokens per second that one core reads, tokenizes and packs."""


def plan_run(
    data: Any,
    *,
    tokens: int | str | None = None,
    steps: int | None = None,
    nodes: int = 1,
    ranks_per_node: int = 1,
    gpu_tokens_per_s: float | None = None,
    sample: float = _SAMPLE,
    measure: bool = True,
    **options: Any,
) -> RunPlan:
    """Forecast the reads and requirements of a run.

    With token lengths (`cloudload count`), rows, tokens and epochs are exact. Without them, they
    are estimates from a sample of the documents, with error bounds.

    Args:
        data: as for `CloudLoader`.
        tokens: the length of the run in tokens: a number, or text such as `300B`. The run ends
            with the step that reaches this number.
        steps: the length of the run in steps. Without `steps` and `tokens`, the loader's
            `epochs` end the run.
        nodes: number of machines.
        ranks_per_node: number of data-parallel ranks on each machine.
        gpu_tokens_per_s: training speed of a rank in tokens per second, which determines the
            number of workers needed.
        sample: share of the documents to tokenize if there are no token lengths.
        measure: whether to measure the first batch and the reader on this machine, with real shards
            in a temporary folder.
        options: the other options of `CloudLoader`. The rank and the world have no effect.

    Raises:
        ValueError: if an argument is invalid, or nothing limits the run.
        CloudloadError: if the data, the tokenizer or a store cannot be used.
    """
    from cloudload.loading import CloudLoader  # imports torch

    budget = None if tokens is None else parse_tokens(tokens)
    nodes = checks.as_integer("nodes", nodes, 1)
    ranks_per_node = checks.as_integer("ranks_per_node", ranks_per_node, 1)
    steps = None if steps is None else checks.as_integer("steps", steps, 1)
    world_size = nodes * ranks_per_node
    options = {**options, "data": data, "device_mesh": None}
    alone = {**options, "dp_rank": 0, "dp_world_size": world_size, "cache_limit": None}
    with CloudLoader(**alone) as loader:
        plan = loader.worker_plan()
    inputs, ending = plan.inputs, plan.ending
    delivery = replace(plan.delivery, cache_limit=options.get("cache_limit"))
    # the nodes of the run have enough cores for their workers, unlike this machine
    share = take_share(inputs, delivery, World(0, world_size, ranks_per_node), _ENOUGH_CORES)
    asked = ForecastRequest(inputs, delivery, share, budget, steps)
    with open_cases(inputs, ending, share=sample, rows_of_lane=asked.rows_of_lane) as cases:
        found = _Forecast(asked, cases).summarize()
    if measure and found.epochs.value > found.steps.value:
        warning = "a step reads the data several times, so the speed of the reader was not measured"
        return replace(found, warnings=(*found.warnings, warning))
    speed = measure_speed(options, world_size) if measure else None
    return found if speed is None else _add_speed(found, speed, gpu_tokens_per_s)


def _add_speed(found: RunPlan, speed: Speed, wanted: float | None) -> RunPlan:
    rate = speed.tokens_per_cpu_s
    workers = None
    if wanted is not None and rate.value > 0:
        counts = [math.ceil(wanted / each) for each in (rate.value, rate.high, rate.low)]
        workers = Figure(counts[0], counts[1], counts[2])
    return replace(
        found, first_batch_s=speed.first_batch_s, tokens_per_worker_s=rate, workers=workers
    )


class _Forecast:
    """Computes the parts of a `RunPlan` that follow from lengths and order."""

    def __init__(self, asked: ForecastRequest, cases: Cases) -> None:
        self._asked, self._recipe, self._share = asked, asked.recipe, asked.share
        self._limit = asked.limit
        self._cases, self._corpus = asked.choose(cases), asked.recipe.corpus
        self._found = asked.follow(self._cases)
        if played := self._found[0].extent.played:
            samples = np.maximum(1, np.diff(self._corpus.stream_starts))
            epochs = played.counts[:, list(READ)].sum(1) / samples
            self._cases = replace(self._cases, epochs_played=tuple(epochs.tolist()))
        self._nodes = NodeForecast(asked, self._cases, self._found)

    def summarize(self) -> RunPlan:
        """Return the plan without the measured speed."""
        share, config = self._share, self._recipe.config
        node_plans = tuple(self._nodes.plan_node(node) for node in range(self._asked.num_nodes))
        streams = tuple(self._plan_stream(stream) for stream in range(len(self._corpus.datasets)))
        least = self._nodes.measure_least()
        tokens = self._count_tokens()
        rows = self._count([case.extent.steps * share.global_batch for case in self._found])
        found = RunPlan(
            description=self._describe(),
            basis=self._cases.basis,
            seq_len=config.seq_len,
            global_batch=share.global_batch,
            world_size=self._share.world_size,
            nodes=self._asked.num_nodes,
            steps=self._count([case.extent.steps for case in self._found]),
            rows=rows,
            tokens=tokens,
            padding=self._find_padding(),
            epochs=self._count_epochs(range(len(streams)), self._cases.error),
            streams=streams,
            num_lanes=share.num_lanes,
            any_world=self._asked.inputs.lengths is not None,
            worlds=tuple(divisors(share.num_lanes)),
            cache_limit_bytes=self._limit,
            least_cache_bytes=least,
            node_plans=node_plans,
            balance=self._plan_balance(),
        )
        return replace(found, warnings=tuple(self._warn(found)))

    def _describe(self) -> str:
        config = self._recipe.config
        urls = ", ".join(redact(stream.url) for stream in config.streams)
        ranks = counted(self._share.world_size, "rank")
        until = ""
        is_whole = all(case.extent.is_whole for case in self._found)
        if config.is_mixed and config.has_ends and is_whole:
            which = (
                "the first stream ends" if config.stopping == choices.FIRST else "all streams end"
            )
            until = f", until {which}"
        return (
            f"{urls}: {config.packing} rows of {config.seq_len:,} tokens, {ranks} on "
            f"{counted(self._asked.num_nodes, 'node')}, {self._share.global_batch:,} rows per step"
            f"{until}"
        )

    def _count(self, values: Sequence[float]) -> Figure:
        """Summarize a number of rows or steps, which is exact if it does not depend on lengths."""
        is_endless = not self._recipe.has_tails
        is_exact = self._asked.has_full_rows or (is_endless and self._asked.steps is not None)
        return self._cases.summarize(values, is_exact=is_exact, error=self._cases.error)

    def _count_tokens(self) -> Figure:
        if self._asked.has_full_rows:
            return Figure.exact(self._found[0].extent.rows * self._recipe.packing.seq_len)
        values = [int(case.extent.counts[:, TOKENS].sum()) for case in self._found]
        return self._cases.summarize(values, error=self._cases.error)

    def _find_padding(self) -> Figure:
        fill = self._cases.fill
        if not fill.is_exact:
            return Figure(1 - fill.value, 1 - fill.high, max(0.0, 1 - fill.low))
        shares = []
        for case in self._found:
            # includes the padding rows that complete the last step
            rows = case.extent.steps * self._share.global_batch
            tokens = int(case.extent.counts[:, TOKENS].sum())
            shares.append(1 - tokens / max(1, rows * self._recipe.packing.seq_len))
        return self._cases.summarize(shares, is_exact=self._asked.has_full_rows)

    def _plan_stream(self, stream: int) -> StreamPlan:
        counts = [case.extent.counts for case in self._found]
        cases, is_mixed = self._cases, self._recipe.config.is_mixed
        num_streams, error = len(self._corpus.datasets), self._cases.error_of(stream)
        is_exact = self._asked.has_full_rows and (is_mixed or num_streams == 1)
        own = [int(each[stream, TOKENS]) for each in counts]
        totals = [max(1, int(each[:, TOKENS].sum())) for each in counts]
        shares = [value / total for value, total in zip(own, totals, strict=True)]
        last_step, tail_rows = self._find_end(stream)
        samples, selected = (
            int(np.diff(self._corpus.stream_starts)[stream]),
            self._recipe.selected[stream],
        )
        return StreamPlan(
            name=self._recipe.labels[stream],
            tokens=cases.summarize(own, is_exact=is_exact, error=math.hypot(error, cases.error)),
            epochs=self._count_epochs(range(stream, stream + 1), error),
            share=cases.summarize(shares, is_exact=is_exact, error=math.hypot(error, cases.error)),
            samples=samples,
            selected=samples if selected is None else selected.num_selected,
            egress=self._measure_egress(stream),
            last_step=last_step,
            tail_rows=tail_rows,
        )

    def _measure_egress(self, stream: int) -> float:
        """Return the bytes of shards that an epoch fetches for each byte of their documents."""
        table = self._corpus.datasets[stream].table
        first = int(np.searchsorted(self._corpus.shard_starts, self._corpus.stream_starts[stream]))
        read = self._recipe.read_of_shards[first : first + len(table)]
        own = read / np.maximum(1, table.samples) * table.stored_bytes
        return float(table.stored_bytes[read > 0].sum() / max(1.0, own.sum()))

    def _find_end(self, stream: int) -> tuple[Figure | None, Figure | None]:
        """Return a stream's last step and number of tail rows; None if it does not end."""
        # streams have ends only in runs with token lengths, which have a single case
        extent = self._found[0].extent
        end = extent.stream_ends[stream] if extent.stream_ends else None
        if end is None:
            return None, None
        last_step, error = -(-end.row // self._share.global_batch), self._cases.error
        return (
            self._cases.summarize([last_step], error=error),
            self._cases.summarize([end.tail_rows], error=error),
        )

    def _count_epochs(self, streams: range, error: float) -> Figure:
        """Divide the number of documents read by the number of samples in the streams."""
        starts = self._corpus.stream_starts
        samples = int(starts[streams.stop] - starts[streams.start])
        read = [
            int(case.extent.counts[streams.start : streams.stop, list(READ)].sum())
            for case in self._found
        ]
        # with tail="drop", some documents are not read, and their number depends on lengths
        drops = self._asked.delivery.tail == "drop"
        is_whole = not drops and all(case.extent.is_whole for case in self._found)
        values = [each / max(1, samples) for each in read]
        found = self._cases.summarize(values, is_exact=is_whole, error=error)
        if self._cases.fill.is_exact or is_whole:
            return found
        # best_fit lanes have also read the documents of their open rows
        open_rows = self._recipe.packing.open_rows * self._share.num_lanes
        rows = min(case.extent.rows for case in self._found)
        return replace(found, high=found.high * (1 + open_rows / max(1, rows)))

    def _plan_balance(self) -> BalancePlan | None:
        if not self._share.is_balanced:
            return None
        # there is one case, because balance needs token lengths
        return plan_balance(self._found[0].reading, is_exact=self._cases.is_exact)

    # ------------------------------------------------------------ warnings

    def _warn(self, found: RunPlan) -> list[str]:
        warnings = [
            f"stream {each.name} is repeated {each.epochs.value:,.1f} times, which is more than "
            f"{_MOST_EPOCHS}. A model learns less from repeated tokens, so add data, or lower the "
            "stream's proportion"
            for each in found.streams
            if each.epochs.value > _MOST_EPOCHS
        ]
        if any(case.extent.is_shortened for case in self._found):
            warnings.append(
                f"the data ends after {found.steps.value:,.0f} steps, before the requested length. "
                "Use more epochs, or add data"
            )
        if played := self._found[0].extent.played:
            warnings.append(
                f"the run reads its data {found.epochs.value:,.0f} times. Its first "
                f"{played.steps:,} steps were computed, and the rest was extrapolated from them"
            )
        if self._asked.delivery.balance is not None and not self._share.is_balanced:
            warnings.append(
                "balance has no effect with one rank on each node, because rows do not move "
                "between nodes. Set ranks_per_node"
            )
        warnings += self._warn_of_cache(found)
        warnings += [text for each in self._corpus.datasets for text in list_warnings(each)]
        if not self._cases.is_exact and self._cases.samples:
            warnings.append(
                "there are no token lengths, so the figures are estimates. Run cloudload count to "
                "get exact figures"
            )
        return warnings

    def _warn_of_cache(self, found: RunPlan) -> list[str]:
        limit = self._limit
        if limit is None:
            return []
        working = max(each.working_set_bytes.value for each in found.node_plans)
        needed = max(each.needed_bytes.value for each in found.node_plans)
        if limit < found.least_cache_bytes:
            return [
                f"cache_limit {limit:,} is below the minimum of {found.least_cache_bytes:,} bytes, "
                "so the loader will refuse to start. Raise it to "
                f"{max(found.least_cache_bytes, round(needed)):,}"
            ]
        if limit < working:
            return [
                f"cache_limit {limit:,} is below the working set, which grows to {working:,.0f} "
                "bytes as lanes drift apart, so shards will be downloaded repeatedly. Raise it to "
                f"{needed:,.0f}"
            ]
        return []


def measure_speed(options: Mapping[str, Any], world_size: int) -> Speed | None:
    """Measure how fast rank 0 of `world_size` ranks reads its first batches.

    Returns None if the rank has no batch. Downloads shards to temporary folders, which are removed.
    Raises the errors of `CloudLoader`.
    """
    alone = {**options, "dp_rank": 0, "dp_world_size": world_size, "cache_limit": None}
    began = time.monotonic()
    cold: list[float] = []
    while not cold or (
        len(cold) < _COLD_STARTS and time.monotonic() - began + cold[-1] < _COLD_BUDGET_S
    ):
        with tempfile.TemporaryDirectory(prefix="cloudload-plan-") as folder:
            cold_options = {**alone, "local": folder}
            seconds = _start_in_process(cold_options)
            cold.append(start(cold_options) if seconds is None else seconds)
        if math.isnan(cold[-1]):
            return None
    with tempfile.TemporaryDirectory(prefix="cloudload-plan-") as folder:
        warm = _read({**alone, "local": folder, "num_workers": 0})
    first = Figure.predicted(cold)
    return Speed(replace(first, low=max(0.0, first.low)), Figure.measured(warm))


def _start_in_process(options: Mapping[str, Any]) -> float | None:
    """Measure the seconds to the first batch in a new process, as in the start of a real run.

    Returns None if an option cannot be pickled, such as a transform that is a local function, or
    if the process fails.
    """
    try:
        data = pickle.dumps(dict(options))
    except Exception:  # pickling a user's object may raise any error
        return None
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", _PROGRAM]
    done = subprocess.run(command, input=data, capture_output=True, env=environment, check=False)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def start(options: Mapping[str, Any]) -> float:
    """Create a loader, and return the seconds to its first batch; NaN if it has no batch."""
    with reading_alone(options) as reading:
        return reading.first_batch_s


def _read(options: Mapping[str, Any]) -> list[float]:
    """Measure the tokens per second of CPU time, in up to 5 parts of the run's beginning."""
    rates: list[float] = []
    with reading_alone(options) as reading:
        began = time.monotonic()
        reading.read()
        while len(rates) < _PARTS and time.monotonic() - began < _MOST_WALL_S:
            part = reading.read(least_cpu_s=_PART_CPU_S)
            if not part.tokens:
                break
            rates.append(part.tokens / max(1e-9, part.cpu_s))
    return rates or [math.nan]
