"""Log once why the training loop waits for batches, and how to fix it.

    next() ─► statistics, every second ─► waited for more than 5% of the last 30 s? ─► log why

The reason is the stage in which the workers spent most of their time, or the other ranks if this
rank waited for them.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from cloudload.config.choices import FASTOKENS
from cloudload.loading.delivery.world import count_cores
from cloudload.loading.workers.plan import Plan
from cloudload.stats import STAGES, DeliveryMeter, DeliveryStats

logger = logging.getLogger("cloudload.wait")

_WINDOW_S, _LOOK_EVERY_S, _MOST_SHARE = 30.0, 1.0, 0.05
_WORDS = {
    "fetch": "waiting for shards",
    "read": "reading shards",
    "transform": "running the transform",
    "tokenize": "tokenizing",
    "pack": "packing",
    "idle": "waiting for the training loop",
}
_FEWEST_PERCENT = 3


class _Look(NamedTuple):
    at: float
    """In `time.monotonic` seconds."""
    stats: DeliveryStats


class WaitLog:
    """Watches how long the training loop waits for a loader's batches, and logs the reason once."""

    def __init__(self) -> None:
        self._looks: deque[_Look] = deque()
        self._next_look, self._has_logged = 0.0, False

    def restart(self) -> None:
        """Discard the statistics so far, such as waits for workers to start or batches to skip."""
        self._looks.clear()

    def look(self, meter: DeliveryMeter, plan: Plan) -> None:
        """Record the statistics after a batch. Log the waits if they exceed 5% of the last 30 s."""
        if self._has_logged or (now := time.monotonic()) < self._next_look:
            return
        self._next_look = now + _LOOK_EVERY_S
        self._looks.append(_Look(now, meter.stats()))
        while len(self._looks) > 1 and now - self._looks[1].at >= _WINDOW_S:
            self._looks.popleft()
        first, last = self._looks[0], self._looks[-1]
        seconds = last.at - first.at
        waited = last.stats.stall_s - first.stats.stall_s
        if seconds >= _WINDOW_S and waited > _MOST_SHARE * seconds:
            self._has_logged = _log(first.stats, last.stats, seconds, plan)


def _log(before: DeliveryStats, after: DeliveryStats, seconds: float, plan: Plan) -> bool:
    """Log the waits unless another rank logs them. Returns whether this rank logged them."""
    waited = after.stall_s - before.stall_s
    start = f"the training loop waited for batches for {waited / seconds:.0%} of the last "
    start += f"{seconds:.0f} s ({waited:.1f} s)"
    if plan.world_size > 1:
        start = f"rank {plan.rank}: {start}"
    exchanged = after.exchange_s - before.exchange_s
    if exchanged > waited / 2:
        if plan.world_index:
            return False  # otherwise every rank but the late one would log this
        logger.info(
            "%s, including %.1f s for other ranks while this rank's rows were ready. If the late "
            "rank's loader is the cause, that rank's log says why",
            start,
            exchanged,
        )
        return True
    spent = {name: getattr(after, f"{name}_s") - getattr(before, f"{name}_s") for name in STAGES}
    reason = max(spent, key=lambda name: spent[name])
    logger.info(
        "%s. %s. %s",
        start,
        _describe(spent, after.bytes_downloaded - before.bytes_downloaded, seconds, plan),
        _ADVICE[reason](plan),
    )
    return True


def _describe(spent: dict[str, float], num_bytes: int, seconds: float, plan: Plan) -> str:
    """Describe how the workers spent their time, largest share first."""
    total = max(1e-9, sum(spent.values()))
    parts = []
    for name in sorted(spent, key=lambda name: -spent[name]):
        percent = round(100 * spent[name] / total)
        if percent >= _FEWEST_PERCENT:
            parts.append(f"{percent}% {_WORDS[name]}")
            if name == "fetch":
                parts[-1] += f" ({num_bytes / seconds / 1e6:,.1f} MB/s downloaded)"
    number = plan.num_workers
    who = f"The {number} workers" if number > 1 else "The worker"
    if not plan.delivery.has_worker_processes:
        who = "The training process (num_workers=0)"
    return f"{who} spent {', '.join(parts)}"


def _more_workers(plan: Plan) -> str:
    own, _ = count_cores()
    if not plan.delivery.has_worker_processes:
        return "use num_workers=1 or more, so that rows are packed while the model trains"
    return f"use more workers (num_workers is {plan.num_workers}; this process may use {own} cores)"


def _advise_fetch(plan: Plan) -> str:
    limit = "" if plan.delivery.cache_limit is None else ", or a larger cache_limit"
    return (
        "The store is slower than training, so use more download_threads (now "
        f"{plan.delivery.download_threads}), a larger predownload{limit}, or data that is closer "
        "or compressed"
    )


def _advise_read(plan: Plan) -> str:
    return (
        "Reading shards is slower than training, so set local to a folder on a faster disk than "
        f"{plan.cache_root}"
    )


def _advise_transform(plan: Plan) -> str:
    return (
        "The transform is slower than training, so make it faster, apply it once with cloudload "
        f"convert, or {_more_workers(plan)}"
    )


def _advise_tokenize(plan: Plan) -> str:
    faster = "" if plan.backend.name == FASTOKENS else "use tokenizer_backend='fastokens', or "
    return (
        f"Tokenization is slower than training, so {faster}{_more_workers(plan)}, or train on "
        "token IDs (cloudload export)"
    )


def _advise_pack(plan: Plan) -> str:
    return f"Packing is slower than training, so {_more_workers(plan)}"


def _advise_idle(plan: Plan) -> str:
    return (
        "The workers are fast enough. If batches arrive unevenly, use a larger prefetch_batches "
        f"(now {plan.delivery.prefetch_batches}). Otherwise, steps are so short that assembling a "
        "batch takes this share of them"
    )


_ADVICE: dict[str, Callable[[Plan], str]] = {
    "fetch": _advise_fetch,
    "read": _advise_read,
    "transform": _advise_transform,
    "tokenize": _advise_tokenize,
    "pack": _advise_pack,
    "idle": _advise_idle,
}
