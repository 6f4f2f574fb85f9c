"""Measure the reader on real shards of the run.

cold      a new process with an empty cache ─► seconds from a loader's creation to its first batch
warm      batches in this process ─► tokens per second of CPU time
"""

from __future__ import annotations

import itertools
import math
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cloudload.loading.batch import Batch
from cloudload.loading.loader import CloudLoader
from cloudload.tools.forecast.figure import Figure

_PROGRAM = """
import pickle, sys
from cloudload.tools.forecast.speed import start
print(start(pickle.load(sys.stdin.buffer)))
"""
_COLD_STARTS, _COLD_BUDGET_S = 3, 30.0
_PARTS, _PART_CPU_S, _MOST_WALL_S = 5, 0.3, 60.0


@dataclass(frozen=True)
class Speed:
    """The speed of the reader on this machine."""

    first_batch_s: Figure
    """Seconds from the creation of a loader with an empty cache to its first batch."""
    tokens_per_cpu_s: Figure
    """Tokens per second that one core reads, tokenizes and packs."""


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
    began = time.monotonic()
    with CloudLoader(**options) as loader:
        batch = next(iter(loader), None)
        return math.nan if batch is None else time.monotonic() - began


def _read(options: Mapping[str, Any]) -> list[float]:
    """Measure the tokens per second of CPU time, in up to 5 parts of the run's beginning.

    A part consists of whole blocks of batches, because workers make a whole block at a time.
    """
    rates: list[float] = []
    with CloudLoader(**options) as loader:
        block, began = loader.plan().batches_at_once, time.monotonic()
        batches = iter(loader)
        _read_part(batches, block, 0.0)
        while len(rates) < _PARTS and time.monotonic() - began < _MOST_WALL_S:
            tokens, cpu_s = _read_part(batches, block, _PART_CPU_S)
            if not tokens:
                break
            rates.append(tokens / cpu_s)
    return rates or [math.nan]


def _read_part(batches: Iterator[Batch], block: int, least_s: float) -> tuple[int, float]:
    """Read for at least `least_s` CPU seconds. Returns the number of tokens and CPU seconds."""
    tokens, start = 0, time.process_time()
    while True:
        found = [batch.num_tokens for batch in itertools.islice(batches, block)]
        tokens += sum(found)
        used = time.process_time() - start
        if len(found) < block or used >= least_s:
            return tokens, max(1e-9, used)
