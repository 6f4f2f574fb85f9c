"""Rows are divided among ranks so that their work differs by at most that of one row."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloudload.order.balance import deal_by_work
from cloudload.order.lanes import Lanes
from cloudload.order.ranks import FILLER, StepShape, World, share_rows

WORK = st.one_of(st.integers(0, 9), st.sampled_from([1, 2, 30, 900]), st.integers(0, 10**12))


def test_each_row_goes_to_the_rank_with_the_least_work_that_has_a_seat() -> None:
    """The rows, most work first, are 9 3 3 2 · 2 2 2 1."""
    dealt = deal_by_work(np.array([[2, 3, 9, 2, 1, 3, 2, 2]]), 2, [2, 2])
    assert dealt.tolist() == [[[2, 0, 7, 4], [1, 5, 3, 6]]]
    dealt = deal_by_work(np.array([[2, 3, 9, 2, 1, 3, 2, 2]]), 2, [4])
    assert dealt.tolist() == [[[2, 6, 7, 4], [1, 5, 0, 3]]]


@given(
    num_ranks=st.integers(1, 8),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    data=st.data(),
)
def test_ranks_differ_by_at_most_two_rows_of_a_micro_batch(
    num_ranks: int, sizes: list[int], data: st.DataObject
) -> None:
    num_rows = num_ranks * sum(sizes)
    steps = st.lists(st.lists(WORK, min_size=num_rows, max_size=num_rows), min_size=1, max_size=3)
    work = np.array(data.draw(steps))
    dealt = deal_by_work(work, num_ranks, sizes)
    bounds = num_ranks * np.cumsum([0, *sizes])
    for of_step, rows in zip(work, dealt, strict=True):
        assert sorted(rows.ravel()) == list(range(num_rows))
        sums = of_step[rows].sum(axis=1)
        ordered = np.sort(of_step)[::-1]
        parts = [ordered[start:stop] for start, stop in pairwise(bounds)]
        assert np.ptp(sums) <= max(np.ptp(part) for part in parts)
        # micro-batch k of all ranks together has the k-th part of the rows
        for part, start, stop in zip(parts, bounds[:-1], bounds[1:], strict=True):
            taken = of_step[rows[:, start // num_ranks : stop // num_ranks]]
            assert np.sort(taken.ravel())[::-1].tolist() == part.tolist()


def test_filler_rows_are_work_too_and_are_dealt_first() -> None:
    share = share_rows(
        [Lanes(6, 100, None)], World(0, 2, 2), StepShape(5, 2), num_workers=1, balances=True
    )
    rows = share.list_machine_rows([0, 5])
    assert rows.tolist() == [[-1, 0, 1, 2, 3, 4], [-1, 5, 6, 7, 8, 9]]
    work = np.array([4, 4, 5, 2, 1, 3, 3, 3, 3, 3])
    dealt, of_rows = share.balance(rows, work, filler_work=9)
    assert dealt.tolist() == [[[-1, 1, 4], [2, 0, 3]], [[-1, 8, 9], [5, 6, 7]]]
    assert of_rows.sum(axis=2).tolist() == [[14, 11], [15, 9]]
    assert (dealt == FILLER).sum() == 2


def test_a_machine_balances_only_the_rows_that_it_has() -> None:
    lanes = [Lanes(6, 100, None, 2)]
    for rank in range(4):
        share = share_rows(lanes, World(rank, 4, 2), StepShape(12, 4), balances=True)
        own = np.unique(share.list_machine_rows([12]))
        assert np.isin(share.rank_rows(12, 24), own).all()
        assert len(own) == 6
    assert not share_rows(lanes, World(0, 4, 1), StepShape(12, 4), balances=True).is_balanced
