"""`set_world` changes the ranks between two batches, and the rows are those of one run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import CloudLoader
from cloudload.errors import CloudloadError
from cloudload.testing import Leg, check_worlds
from tests.promises.test_lengths import CASES, corpora, fail_on_some, streams_of  # noqa: F401
from tests.support.examples import EXAMPLES
from tests.support.loaders import make_loader

LEGS = st.builds(
    Leg,
    ranks=st.integers(1, 8),
    workers=st.integers(0, 2),
    batch_size=st.integers(1, 4),
    batches=st.integers(0, 2),
    ranks_per_node=st.sampled_from([None, 1, 3]),
)


@given(
    case=CASES,
    shares=st.sampled_from([(None,), (1.0, 3.0)]),
    legs=st.lists(LEGS, min_size=2, max_size=4),
    ways=st.tuples(st.integers(1, 3), st.booleans()),
)
@settings(max_examples=EXAMPLES)
def test_ranks_that_leave_and_join_between_batches_read_one_stream(
    corpora: list[Path],  # noqa: F811
    case: dict[str, Any],
    shares: tuple[float | None, ...],
    legs: list[Leg],
    ways: tuple[int, bool],
) -> None:
    """With best_fit, and so without known lanes, on worlds that divide the lanes."""
    exchange_every, is_to_end = ways
    is_even = case["packing"] == "best_fit"
    options = {
        **case,
        "epochs": None if shares[-1] is not None else case["epochs"],
        "on_error": "skip" if case["transform"] is fail_on_some else "raise",
    }
    if options["packing"] != "one_per_row":
        del options["overflow"]
    num_lanes = case["num_lanes"]
    divisors = [ranks for ranks in range(1, num_lanes + 1) if num_lanes % ranks == 0]
    legs = [
        replace(
            leg,
            ranks=divisors[leg.ranks % len(divisors)] if is_even else leg.ranks,
            exchange_every=exchange_every,
        )
        for leg in legs
    ]
    is_to_end = is_to_end and options["epochs"] is not None
    legs[-1] = replace(legs[-1], batches=None if is_to_end else 1 + (legs[-1].batches or 0))

    def make(**rank: Any) -> CloudLoader:
        return make_loader(streams_of(corpora, shares), **{**options, **rank})

    try:
        check_worlds(make, legs, restarts=False)
    except CloudloadError as error:
        if "no tokens" not in str(error):
            raise


@pytest.fixture
def folder(corpora: list[Path]) -> str:  # noqa: F811
    return str(corpora[2])
