"""Why workers are not faster: the stage in which they spend most of their time, and what to change.

statistics before, statistics after ─► find_bottleneck ─► Bottleneck ─► the log of long waits
                                                                    └─► cloudload bench
"""

from __future__ import annotations

from typing import NamedTuple

from cloudload.config import choices
from cloudload.loading.delivery.world import count_cores
from cloudload.loading.workers.worker_plan import WorkerPlan
from cloudload.stats import IDLE, STAGE_WORDS, STAGES, DeliveryStats

_WORDS = dict(zip(STAGES, STAGE_WORDS, strict=True))
_FEWEST_PERCENT = 3


class Bottleneck(NamedTuple):
    """The stage in which the workers of a rank spent most of their time."""

    stage: str
    """One of `STAGES`. If it is `idle`, the workers are fast enough."""
    spent: dict[str, float]
    """Seconds in each of `STAGES`, summed over the workers."""
    work: str
    """A sentence about how the workers spent their time, without the period."""
    subject: str
    """What the stage depends on, such as `The store`."""
    remedy: str
    """What makes the stage faster, such as `use more workers`."""

    @property
    def advice(self) -> str:
        """Advice for a training loop that waits, without the period."""
        if self.stage == STAGES[IDLE]:
            return (
                f"The workers are fast enough. If batches arrive unevenly, {self.remedy}. "
                "Otherwise, steps are so short that assembling a batch takes this share of them"
            )
        return f"{self.subject} is slower than training, so {self.remedy}"


def find_bottleneck(
    plan: WorkerPlan, before: DeliveryStats, after: DeliveryStats, seconds: float
) -> Bottleneck:
    """Find the bottleneck of a plan's workers in a period of `seconds` between two statistics."""
    spent = {name: getattr(after, f"{name}_s") - getattr(before, f"{name}_s") for name in STAGES}
    stage = max(spent, key=lambda name: spent[name])
    num_bytes = after.bytes_downloaded - before.bytes_downloaded
    work = _describe(plan, spent, num_bytes, seconds)
    return Bottleneck(stage, spent, work, *_advise(plan, stage))


def _describe(plan: WorkerPlan, spent: dict[str, float], num_bytes: int, seconds: float) -> str:
    """Describe how the workers spent their time, largest share first."""
    total = max(1e-9, sum(spent.values()))
    parts = []
    for name in sorted(spent, key=lambda name: -spent[name]):
        percent = round(100 * spent[name] / total)
        if percent >= _FEWEST_PERCENT:
            parts.append(f"{percent}% {_WORDS[name]}")
            if name == "fetch":
                parts[-1] += f" ({num_bytes / seconds / 1e6:,.1f} MB/s downloaded)"
    count = plan.share.num_workers
    who = f"The {count} workers" if count > 1 else "The worker"
    if not plan.delivery.has_worker_processes:
        who = "The training process (num_workers=0)"
    return f"{who} spent {', '.join(parts)}"


def _advise(plan: WorkerPlan, stage: str) -> tuple[str, str]:
    """Return the subject and the remedy of a bottleneck."""
    delivery = plan.delivery
    limit = "" if delivery.cache_limit is None else ", or a larger cache_limit"
    is_slow = plan.inputs.backend.name == choices.HF
    faster = "use tokenizer_backend='fastokens', or " if is_slow else ""
    cores, _ = count_cores()
    more = (
        f"use more workers (num_workers is {plan.share.num_workers}; this process may use "
        f"{cores} cores)"
    )
    if not delivery.has_worker_processes:
        more = "use num_workers=1 or more, so that rows are packed while the model trains"
    return {
        "fetch": (
            "The store",
            f"use more download_threads (now {delivery.download_threads}), a larger "
            f"predownload{limit}, or data that is closer or compressed",
        ),
        "read": (
            "Reading shards",
            f"set local to a folder on a faster disk than {plan.inputs.cache_root}",
        ),
        "transform": (
            "The transform",
            f"make it faster, apply it once with cloudload convert, or {more}",
        ),
        "tokenize": (
            "Tokenization",
            f"{faster}{more}, or train on token IDs (cloudload export)",
        ),
        "pack": ("Packing", more),
        "idle": (
            "Assembling batches",
            f"use a larger prefetch_batches (now {delivery.prefetch_batches})",
        ),
    }[stage]
