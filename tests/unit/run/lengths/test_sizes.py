"""The size of any document of a lane follows from its sample's length and from the options."""

from __future__ import annotations

import numpy as np
import pytest

from cloudload.rows.packing.packers import Packing
from cloudload.rows.packing.tables import Size
from cloudload.rows.packing.tail import counts_of_sizes
from cloudload.run.lengths.sizes import DocumentSizes, list_counts
from cloudload.stats import COUNTS, DOCUMENTS, EMPTY, FAILED, FILTERED
from testkit.tiny_runs import TinyRun

CONCAT = Packing("concat", 5, 16, "cut")
CUT = Packing("one_per_row", 5, 16, "cut")
ROWS = Packing("one_per_row", 5, 16, "rows")


def measure(run: TinyRun, lane: int, number: int, component: int = 0) -> DocumentSizes:
    return run.lengths.sizes[component].measure(np.full(number, lane), np.arange(number))


def test_a_lane_reads_every_second_sample_of_two_lanes_epoch_after_epoch() -> None:
    run = TinyRun([3, 4, 2, 5])
    found = measure(run, 1, 5)
    assert found.samples.tolist() == [1, 3, 1, 3, 1]
    assert found.sizes.tolist() == [4, 5, 4, 5, 4]


def test_an_epoch_that_the_lanes_do_not_divide_ends_with_a_hole() -> None:
    found = measure(TinyRun([3, 4, 2]), 1, 4)
    assert found.sizes.tolist() == [4, Size.ABSENT, 4, Size.ABSENT]
    assert found.tokens.tolist() == [4, 0, 4, 0]


def test_after_the_last_epoch_there_are_only_holes() -> None:
    found = measure(TinyRun([3, 4, 2, 5], epochs=1), 0, 4)
    assert found.sizes.tolist() == [3, 2, Size.ABSENT, Size.ABSENT]


def test_each_stream_adds_its_own_bos_and_eos() -> None:
    run = TinyRun([3, 0], [7, 0], num_lanes=1, frames=[(1, 2), (None, 2)])
    found = measure(run, 0, 4)
    assert found.streams.tolist() == [0, 0, 1, 1]
    assert found.sizes.tolist() == [5, 2, 8, 1]


def test_a_document_without_tokens_is_empty_and_one_that_was_left_out_is_not() -> None:
    found = measure(TinyRun([0, Size.FILTERED, Size.FAILED, 1], num_lanes=1), 0, 4)
    assert found.sizes.tolist() == [0, Size.FILTERED, Size.FAILED, 1]
    assert found.tokens.tolist() == [0, 0, 0, 1]
    assert counts_of_sizes(found.sizes).tolist() == [EMPTY, FILTERED, FAILED, DOCUMENTS]


def test_min_tokens_compares_the_size_with_bos_and_eos() -> None:
    run = TinyRun([1, 2, 3], num_lanes=1, frames=[(1, 2)], min_tokens=4)
    found = measure(run, 0, 3)
    assert found.sizes.tolist() == [Size.FILTERED, 4, 5]
    assert found.whole.tolist() == [3, 4, 5]


def test_max_tokens_compares_the_size_with_bos_and_eos() -> None:
    run = TinyRun([1, 2, 3, Size.FAILED], num_lanes=1, frames=[(1, 2)], max_tokens=4)
    found = measure(run, 0, 4)
    assert found.sizes.tolist() == [3, 4, Size.FILTERED, Size.FAILED]
    assert found.whole.tolist()[:3] == [3, 4, 5]


def test_a_failed_document_below_min_tokens_still_counts_as_failed() -> None:
    found = measure(TinyRun([Size.FAILED, 1], num_lanes=1, min_tokens=9), 0, 2)
    assert found.sizes.tolist() == [Size.FAILED, Size.FILTERED]


def test_a_component_of_a_mixture_reads_only_its_own_samples() -> None:
    run = TinyRun([3, 4], [7, 8], num_lanes=1, proportions=[1, 1])
    found = measure(run, 0, 2, component=1)
    assert found.samples.tolist() == [2, 3]
    assert found.streams.tolist() == [1, 1]
    assert found.sizes.tolist() == [7, 8]


def test_the_result_has_the_shape_of_the_arguments() -> None:
    sizes = TinyRun([3, 4, 2, 5]).lengths.sizes[0]
    lanes, ordinals = np.array([[0, 0, 0], [1, 1, 1]]), np.array([[0, 1, 2], [2, 1, 0]])
    assert sizes.measure(lanes, ordinals).sizes.tolist() == [[3, 2, 3], [4, 5, 4]]


@pytest.mark.parametrize(
    ("packing", "units"),
    [(CONCAT, [0, 1, 5, 6, 10, 11]), (CUT, [0, 1, 1, 1, 1, 1]), (ROWS, [0, 1, 1, 2, 2, 3])],
)
def test_a_unit_is_a_token_or_with_one_per_row_a_row(packing: Packing, units: list[int]) -> None:
    assert packing.units_of(np.array([0, 1, 5, 6, 10, 11])).tolist() == units


@pytest.mark.parametrize(
    ("packing", "expected"),
    [
        (CONCAT, {"tokens": [7, 0, 3], "truncated": [0, 0, 0], "padding": [0, 0, 0]}),
        (CUT, {"tokens": [5, 0, 3], "truncated": [2, 0, 0], "padding": [0, 0, 2]}),
        (ROWS, {"tokens": [7, 0, 3], "truncated": [0, 0, 0], "padding": [3, 0, 2]}),
    ],
)
def test_a_document_counts_its_tokens_and_what_its_rows_cut_off_and_pad(
    packing: Packing, expected: dict[str, list[int]]
) -> None:
    found = measure(TinyRun([7, 0, 3], num_lanes=1), 0, 3)
    counts = dict(zip(COUNTS, list_counts(packing, found), strict=True))
    assert {name: counts[name].tolist() for name in expected} == expected
    assert counts["documents"].tolist() == [1, 0, 1]
    assert counts["empty"].tolist() == [0, 1, 0]
    assert counts["filtered"].tolist() == counts["failed"].tolist() == [0, 0, 0]


def test_an_endless_lane_is_barren_after_two_epochs_of_documents_without_tokens() -> None:
    sizes = TinyRun([0, 0, 0]).lengths.sizes[0]
    assert not sizes.is_barren(np.array([6])).any()
    assert sizes.is_barren(np.array([0, 6, 7])).tolist() == [False, False, True]


def test_a_shuffled_lane_is_not_barren_until_it_missed_the_few_documents_with_tokens() -> None:
    """Another epoch may bring the one document with tokens to the lane, so 20 of them must not."""
    sizes = TinyRun([0, 0, 9], shuffle=True).lengths.sizes[0]
    assert sizes.is_barren(np.array([7, 120, 121])).tolist() == [False, False, True]


def test_a_shuffled_lane_is_barren_after_two_epochs_if_no_document_has_tokens() -> None:
    sizes = TinyRun([0, 0, 0], shuffle=True).lengths.sizes[0]
    assert sizes.is_barren(np.array([6, 7])).tolist() == [False, True]
