"""Choose jobs at random. A job has a world, and options that may change at every resume."""

from __future__ import annotations

import random

from stress.chaos.drama import CONNECTING, Drama
from stress.chaos.kinds import COUNTED
from stress.chaos.rank import Campaign, Job

NUM_LANES = 24
MOST_ROWS = 48
"""At least as many rows as the global batch of any job."""
START_METHODS = {"fork": 10, "spawn": 1, "forkserver": 1}
_MOST_CONNECT_S = 0.2


def draw_job(
    draw: random.Random, number: int, campaign: Campaign, drama: Drama, environment: dict[str, str]
) -> Job:
    """Choose a job at random. Unless it uses all lengths, its ranks divide the lanes evenly."""
    start_method = draw.choices(list(START_METHODS), list(START_METHODS.values()))[0]
    lengths = _draw_lengths(draw, campaign)
    is_uneven = campaign.lengths == COUNTED and lengths != "off" and draw.random() < 0.6
    ranks = draw.choice([5, 5, 5, 5, 5, 7, 7, 9] if is_uneven else [1, 1, 2, 2, 2, 3, 3, 4, 6])
    if start_method != "fork":  # every new process imports torch again, so start only a few
        ranks = min(ranks, 5 if is_uneven else 2)
    if drama.end == CONNECTING:
        ranks = max(2, ranks)
    nodes = draw.choice([1, 1, 2, 3])
    return Job(
        number=number,
        ranks=ranks,
        ranks_per_node=-(-ranks // nodes),
        workers=_draw_workers(draw, ranks, start_method),
        batch_size=draw.choice([1, 2, 4, 6] if ranks <= 6 else [1, 2, 4]),
        steps=draw.choice([10, 40, 150]),
        save_every=draw.choice([1, 3, 7]),
        cache_limit=draw.choice([None, None, 3_000_000]),
        verify=draw.choice(["once", "once", "always"]),
        start_method=start_method,
        tokenizer_backend=draw.choice(["hf", "hf", "hf", "hf", "hf", "auto"]),
        lengths=lengths,
        exchange_every=1 if campaign.is_finite else draw.choice([1, 1, 3]),
        patience_s=drama.patience_s,
        dies=_draw_death(draw, ranks) if drama.end == CONNECTING else None,
        environment=environment,
    )


def _draw_workers(draw: random.Random, ranks: int, start_method: str) -> int:
    if start_method != "fork":
        return draw.choice([1, 1, 2])
    return draw.choice([0, 1, 1, 1, 2, 3] if ranks <= 3 else [0, 1, 1])


def _draw_lengths(draw: random.Random, campaign: Campaign) -> str:
    if campaign.needs_lengths:
        return draw.choice(["auto", "require"])
    if campaign.lengths == COUNTED:
        return draw.choice(["auto", "require", "require", "off"])
    return draw.choice(["auto", "off"])


def _draw_death(draw: random.Random, ranks: int) -> tuple[int, float]:
    return draw.randrange(ranks), draw.choice([0.0, draw.uniform(0.0, _MOST_CONNECT_S)])
