"""Finite mixtures packed with `best_fit` match an oracle for any streams and weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cloudload.testing import Leg, run_leg
from testkit.best_fit_oracle import BestFitOracle
from testkit.corpora import random_documents
from testkit.examples import EXAMPLES
from testkit.loaders import make_loader
from testkit.mixtures import Mixtures

SIZES, FULL = (7, 40, 70, 25, 12), (1, 2, 3, 5)
SEQ_LEN, MOST_ROWS = 32, 600


@pytest.fixture(scope="module")
def data(module_folder: Path) -> Mixtures:
    """Write streams of different sizes, then streams whose documents each fill a row."""
    texts = [random_documents(seed, size, max_words=10) for seed, size in enumerate(SIZES)]
    for of_stream in texts:
        of_stream[len(of_stream) // 2] = ""
    full = [["x" * (SEQ_LEN - 1)] * size for size in FULL]
    return Mixtures.write(module_folder, texts + full)


STREAMS = st.lists(
    st.tuples(
        st.integers(0, len(SIZES) + len(FULL) - 1),
        st.one_of(st.sampled_from([1.0, 2.0, 3.0, 0.5, 0.2, 1.5]), st.floats(0.05, 1.05)),
        st.sampled_from([1, 1, 2]),
    ),
    min_size=2,
    max_size=5,
    unique_by=lambda stream: stream[0],
)


@example(  # a tail begins at the row that would have been next for an ended stream
    streams=[(2, 1.5, 2), (4, 0.2, 2), (1, 0.828044739443471, 1), (0, 1.0, 1)],
    num_lanes=6,
    seq_len=32,
    open_rows=16,
    first=False,
    resumed=(30, 1),
)
@example(  # a stream without a tail
    streams=[(2, 1.5, 1), (0, 3.0, 1), (5, 0.5, 1), (1, 0.2, 2)],
    num_lanes=1,
    seq_len=SEQ_LEN,
    open_rows=16,
    first=False,
    resumed=(10, 3),
)
@given(
    streams=STREAMS,
    num_lanes=st.sampled_from([1, 2, 3, 6, 12]),
    seq_len=st.sampled_from([16, SEQ_LEN, 50, 100]),
    open_rows=st.sampled_from([1, 3, 16]),
    first=st.booleans(),
    resumed=st.tuples(st.integers(0, 200), st.sampled_from([1, 2, 3, 5, 7])),
)
@settings(max_examples=EXAMPLES)
def test_streams_end_where_the_oracle_ends_them_and_a_resume_reads_the_same_rows(
    data: Mixtures,
    *,
    streams: list[tuple[int, float, int]],
    num_lanes: int,
    seq_len: int,
    open_rows: int,
    first: bool,
    resumed: tuple[int, int],
) -> None:
    numbers, weights, repeats = zip(*streams, strict=True)
    make: Any = partial(
        make_loader,
        data.streams(weights, repeats, numbers),
        local=data.cache,
        num_lanes=num_lanes,
        seq_len=seq_len,
        packing="best_fit",
        open_rows=open_rows,
        stopping="first" if first else "all",
    )
    with make() as loader:
        components = loader.recipe.components
    sizes = data.sizes()
    oracle = BestFitOracle(components, repeats, [sizes[number] for number in numbers], open_rows)
    oracle.take(MOST_ROWS, weights, first, seq_len)
    rows, states = run_leg(make, Leg(1, 0, 1, MOST_ROWS))
    found = [list(row.spans) for row in rows]
    assert [spans for spans in found if spans] == [spans for spans in oracle.rows if spans]

    step, ranks = resumed
    state = states[min(step, len(states) - 1)]
    rest, _ = run_leg(make, Leg(ranks, 0, 1, MOST_ROWS // ranks), state)
    spans = [list(row.spans) for row in rest if row.spans]
    expected = [each for each in found[state["rows"] :] if each]
    assert spans == expected[: len(spans)]
    assert len(spans) == len(expected) or len(rest) >= MOST_ROWS // ranks * ranks
