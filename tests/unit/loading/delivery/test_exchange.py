"""If several processes share a rank, each exchange group has one process of every rank."""

from __future__ import annotations

import re

import pytest

from cloudload.errors import RanksDisagreeError
from cloudload.loading.delivery.exchange import group_processes


@pytest.mark.parametrize(
    ("ranks", "groups"),
    [
        ([0, 1, 2], [[0, 1, 2]]),
        ([0, 0, 1, 1], [[0, 2], [1, 3]]),
        ([0, 1, 0, 1], [[0, 1], [2, 3]]),
        ([1, 0, 0, 1], [[1, 0], [2, 3]]),
        ([0, 0], [[0], [1]]),
    ],
)
def test_a_group_that_exchanges_has_a_process_of_every_rank(
    ranks: list[int], groups: list[list[int]]
) -> None:
    assert group_processes(ranks, max(ranks) + 1) == groups


@pytest.mark.parametrize(
    ("ranks", "numbers"),
    [([0, 0, 0, 1], [3, 1, 0]), ([0, 2], [1, 0, 1]), ([0, 1, 1, 2], [1, 2, 1])],
)
def test_ranks_with_unequal_numbers_of_processes_are_refused(
    ranks: list[int], numbers: list[int]
) -> None:
    with pytest.raises(
        RanksDisagreeError,
        match=re.escape(f"the data-parallel ranks 0 to 2 have {numbers} processes"),
    ):
        group_processes(ranks, 3)
