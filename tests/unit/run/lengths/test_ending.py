"""The end of a finite run: the first dry row, and the statistics of the tail's rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloudload.rows.packing.tables import Size
from cloudload.rows.packing.tail import Tail
from cloudload.run.lengths.ending import TailCounts
from cloudload.run.lengths.mixture_search import first_dry_row
from cloudload.stats import COUNTS
from cloudload.system.arrays import Ints
from testkit.tiny_runs import tiny_recipe


def test_the_first_dry_row_of_the_docstring() -> None:
    assert first_dry_row(np.array([3, 1]), 5) == 7


def test_a_lane_without_a_row_is_dry_at_its_first_row() -> None:
    assert first_dry_row(np.array([2, 2, 0, 2]), 0) == 2
    assert first_dry_row(np.array([2, 2, 0, 2]), 3) == 6


@given(num_rows=st.lists(st.integers(0, 5), min_size=1, max_size=6), row=st.integers(0, 20))
def test_the_first_dry_row_is_where_a_run_row_by_row_stops(num_rows: list[int], row: int) -> None:
    left, reached = list(num_rows), row
    while left[reached % len(left)]:
        left[reached % len(left)] -= 1
        reached += 1
    assert first_dry_row(np.array(num_rows), row) == reached


# remnants of 3, 7, a filtered and a failed document, one counted before, and an empty one
REMNANTS = np.array(
    [
        [0, 4, 1, 4, 4],  # the first token was in an earlier row
        [1, 4, 0, 7, 7],
        [0, 5, 0, 0, Size.FILTERED],
        [1, 5, 0, 0, Size.FAILED],
        [0, 6, 0, 2, Size.ABSENT],
        [1, 6, 0, 0, 0],
    ]
)
# rows 20, 21 and 22 of 5 tokens: 3 + 2, then 5, then 2 and 3 of padding
TAIL = Tail(
    first_row=20,
    remnants=REMNANTS,
    pieces=np.array([[0, 0, 1, 4], [0, 1, 0, 2], [1, 1, 2, 7], [2, 4, 0, 2]]),
    passed=np.array([0, 1, 2, 6]),
)


def tail_counts(*, padding_stream: int = 0, packing: str = "concat") -> TailCounts:
    recipe = tiny_recipe([4], [4], packing=packing)
    return TailCounts(recipe, TAIL, np.array([0, 1, 0, 1, 0, 1]), padding_stream)


def named(counts: Ints) -> list[dict[str, int]]:
    """For each stream, the statistics that are not 0, by name."""
    return [
        {name: value for name, value in zip(COUNTS, row, strict=True) if value}
        for row in counts.tolist()
    ]


def test_before_its_first_row_a_tail_counts_nothing() -> None:
    assert named(tail_counts().before(20)) == [{}, {}]
    assert named(tail_counts().before(3)) == [{}, {}]


def test_a_row_counts_its_tokens_by_stream_and_the_documents_that_it_passes() -> None:
    assert named(tail_counts().before(21)) == [{"tokens": 3, "documents": 1}, {"tokens": 2}]
    assert named(tail_counts().before(22)) == [
        {"tokens": 3, "documents": 1},
        {"tokens": 7, "documents": 1},
    ]


def test_the_last_row_counts_its_padding_and_every_document_except_those_counted_before() -> None:
    assert named(tail_counts().before(23)) == [
        {"tokens": 5, "documents": 1, "filtered": 1, "padding": 3},
        {"tokens": 7, "documents": 1, "failed": 1, "empty": 1},
    ]


def test_rows_after_the_end_are_padding() -> None:
    more = tail_counts().before(25) - tail_counts().before(23)
    assert named(more) == [{"padding": 10}, {}]


def test_the_padding_counts_in_the_stream_that_is_named() -> None:
    of_first, of_second = named(tail_counts(padding_stream=1).before(23))
    assert "padding" not in of_first
    assert of_second["padding"] == 3


def test_only_rows_that_cut_documents_truncate() -> None:
    of_first, of_second = named(tail_counts(packing="one_per_row").before(22))
    assert "truncated" not in of_first
    assert of_second["truncated"] == 2


def test_a_rest_without_tokens_counts_its_documents_and_no_padding() -> None:
    assert named(tail_counts().of_rest()) == [
        {"documents": 1, "filtered": 1},
        {"documents": 1, "failed": 1, "empty": 1},
    ]
