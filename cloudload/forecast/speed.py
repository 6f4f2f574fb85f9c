"""Measure the reader on real shards of the run.

cold      a loader with an empty cache, from its creation to its first batch
warm      batches in this process ─► tokens per second of CPU time
"""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cloudload.batch import Batch
from cloudload.forecast.figure import Figure
from cloudload.loader import CloudLoader

_COLD_STARTS, _COLD_BUDGET_S = 3, 30.0
_PARTS, _PART_CPU_S, _MOST_WALL_S = 5, 0.3, 60.0


@dataclass(frozen=True)
class Speed:
    """The speed of the reader on this machine."""

    first_batch_s: Figure
    """Seconds from the creation of a loader with an empty cache to its first batch."""
    tokens_per_cpu_s: Figure
    """Tokens per second that one core reads, tokenizes and packs."""


def measure_speed(options: Mapping[str, Any], world_size: int) -> Speed:
    """Read the first batches of rank 0 of a world of `world_size` ranks.

    Keeps shards in a temporary folder, which is removed. Raises the errors of `CloudLoader`.
    """
    alone = {**options, "dp_rank": 0, "dp_world_size": world_size, "cache_limit": None}
    began = time.monotonic()
    cold: list[float] = []
    while not cold or (
        len(cold) < _COLD_STARTS and time.monotonic() - began + cold[-1] < _COLD_BUDGET_S
    ):
        with tempfile.TemporaryDirectory(prefix="cloudload-plan-") as folder:
            cold.append(_start({**alone, "local": folder}))
    with tempfile.TemporaryDirectory(prefix="cloudload-plan-") as folder:
        warm = _read({**alone, "local": folder, "num_workers": 0})
    return Speed(Figure.predicted(cold), Figure.measured(warm))


def _start(options: Mapping[str, Any]) -> float:
    """Seconds to the first batch."""
    began = time.monotonic()
    with CloudLoader(**options) as loader:
        next(iter(loader))
        return time.monotonic() - began


def _read(options: Mapping[str, Any]) -> list[float]:
    """Tokens per second of CPU time, measured in several parts of the run's beginning.

    A part has whole blocks of batches, because workers make a block at once.
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
    """Read whole blocks for at least `least_s` of CPU time. Returns the tokens and the time."""
    tokens, start = 0, time.process_time()
    while True:
        found = [batch.num_tokens for batch in itertools.islice(batches, block)]
        tokens += sum(found)
        used = time.process_time() - start
        if len(found) < block or used >= least_s:
            return tokens, max(1e-9, used)
