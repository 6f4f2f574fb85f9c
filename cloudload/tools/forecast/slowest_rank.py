"""Forecast what the option `balance` changes: the attention of the slowest rank of a step.

token lengths ─► work of each row of a step ─┬─► work of each rank, as rows are dealt
                                             └─► work of each rank, balanced on each node
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cloudload.order import RankShare
from cloudload.system import Ints
from cloudload.tools.forecast.node_reads import NodeReads
from cloudload.tools.forecast.result import BalancePlan, Figure

_MOST_STEPS, _MOST_ROWS = 64, 1 << 16


def plan_balance(reading: NodeReads, *, is_exact: bool) -> BalancePlan | None:
    """Compute the work of the ranks in steps at equal distances, before any tail.

    Returns None if no step is before the tails. `is_exact` says that a run has these rows.
    """
    share, seq_len = reading.share, reading.recipe.packing.seq_len
    num_steps = min(reading.num_rows, *reading.tail_starts) // share.global_batch
    if not num_steps:
        return None
    most = max(1, min(_MOST_STEPS, _MOST_ROWS // share.global_batch))
    steps = np.unique(np.linspace(0, num_steps - 1, most).astype(np.int64))
    firsts = (steps * share.global_batch).tolist()
    work = np.stack([_measure_step(reading, first) for first in firsts])
    dealt = np.stack(
        [
            _sum_by_rank(share, first, of_step, seq_len**2)
            for first, of_step in zip(firsts, work, strict=True)
        ]
    )
    balanced = _balance_nodes(share, firsts, work, seq_len**2)
    is_exact = is_exact and len(steps) == num_steps

    def compare(work_of_ranks: Ints) -> Figure:
        found = Figure.measured(work_of_ranks.max(axis=1) / dealt.mean())
        return Figure.exact(found.value) if is_exact else found

    attended = Figure.measured(work.mean(axis=1) / seq_len)
    return BalancePlan(
        steps=len(steps),
        attended=Figure.exact(attended.value) if is_exact else attended,
        dealt=compare(dealt),
        balanced=compare(balanced),
    )


def _measure_step(reading: NodeReads, first: int) -> Ints:
    """Return the work of each row of the step from row `first` on: int64 [rows]."""
    rows = np.arange(first, first + reading.share.global_batch)
    return reading.finder.measure_attention(reading.finder.find(rows), len(rows))


def _sum_by_rank(share: RankShare, first: int, work: Ints, filler_work: int) -> Ints:
    """Return the work of each rank as rows are dealt, with that of its filler rows: int64
    [ranks]."""
    ranks = share.ranks_of(first)
    sums = (share.shape.rank_rows - np.bincount(ranks, minlength=share.world_size)) * filler_work
    np.add.at(sums, ranks, work)
    return sums


def _balance_nodes(share: RankShare, firsts: list[int], work: Ints, filler_work: int) -> Ints:
    """Return the work of each rank after each node has balanced its rows: int64 [steps, ranks].

    `work` is that of each row of the steps that begin at rows `firsts`: int64 [steps, rows].
    """
    found = []
    for rank in range(0, share.world_size, share.world.ranks_per_node):
        of_node = replace(share, world=replace(share.world, rank=rank))
        rows = of_node.list_machine_rows(firsts)
        steps, columns = np.nonzero(rows >= 0)
        own = work[steps, rows[steps, columns] - np.array(firsts)[steps]]
        found.append(of_node.balance(rows, own, filler_work)[1].sum(axis=2))
    return np.concatenate(found, axis=1)
