"""The documents of any rows after a position, before and in the tail, of one stream and of several.

A row's pieces are (row, flat lane, ordinal, start, stop).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloudload.run.lengths.row_finder import RowFinder
from cloudload.run.position import Position
from testkit.examples import PACKINGS
from testkit.tiny_runs import TinyRun, name_documents

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any)


def find(run: TinyRun, *rows: int, position: Position | None = None) -> list[list[int]]:
    position = run.start if position is None else position
    lengths = run.lengths.settle(position)
    finder = RowFinder(lengths, position)
    pieces: list[list[int]] = name_documents(finder.find(np.array(rows, np.int64))).tolist()
    return pieces


@given(
    lengths=LENGTHS, options=st.sampled_from(PACKINGS), epochs=st.integers(1, 3),
    at=st.floats(0, 1),
    asked=st.lists(st.integers(0, 12), max_size=8),
)  # fmt: skip
def test_rows_after_a_position_are_those_of_the_packer_and_of_its_tail(
    lengths: list[int], options: dict[str, Any], epochs: int, at: float, asked: list[int]
) -> None:
    run = TinyRun(lengths, epochs=epochs, **options)
    rows = run.naive.all_rows()
    position = run.lengths.advance(run.start, round(at * len(rows)))
    assert position is not None
    chosen = [position.rows + each for each in asked]
    assert find(run, *chosen, position=position) == [
        [index, *span] for index, row in enumerate(chosen) if row < len(rows) for span in rows[row]
    ]


def test_rows_past_the_end_of_a_finite_run_have_no_pieces() -> None:
    run = TinyRun([12, 5], epochs=1)
    assert find(run, 9, 3, 4, 1) == [[1, 0, 0, 10, 12], [3, 1, 0, 0, 5]]


def test_a_lane_of_the_second_stream_is_a_flat_lane() -> None:
    run = TinyRun([5] * 4, [7] * 4, proportions=[1, 1])
    streams = run.recipe.components_of(np.arange(8)).tolist()
    pieces = find(run, *range(8))
    owners = {row: lane // 2 for row, lane, *_ in pieces}
    assert [owners[row] for row in range(8)] == streams
    assert {row: lane % 2 for row, lane, *_ in pieces} == {row: row % 2 for row in range(8)}


def test_rows_of_a_mixture_are_counted_within_their_stream() -> None:
    """The k-th row that a stream has in a lane is row k of the stream's lane."""
    run = TinyRun([5] * 4, [5] * 4, proportions=[2, 1])
    streams = run.recipe.components_of(np.arange(30)).tolist()
    before: Counter[tuple[int, int]] = Counter()
    for (_, lane, ordinal, start, stop), row in zip(find(run, *range(30)), range(30), strict=True):
        assert lane == 2 * streams[row] + row % 2
        assert (ordinal, start, stop) == (before[streams[row], row % 2], 0, 5)
        before[streams[row], row % 2] += 1


@given(
    first=LENGTHS, second=LENGTHS, options=st.sampled_from(PACKINGS),
    weights=st.sampled_from([[1, 1], [3, 1]]),
)  # fmt: skip
def test_a_mixture_that_ends_has_every_token_once_and_one_short_row_per_stream_at_most(
    first: list[int], second: list[int], options: dict[str, Any], weights: list[float]
) -> None:
    run = TinyRun(first, second, proportions=weights, epochs=1, **options)
    end = run.lengths.find_tails(run.start).ending.end
    tokens: Counter[tuple[int, int, int]] = Counter()
    sizes: Counter[int] = Counter()
    for row, lane, ordinal, start, stop in find(run, *range(end + 2)):
        sizes[row] += stop - start
        tokens.update((lane, ordinal, token) for token in range(start, stop))
    expected: Counter[tuple[int, int, int]] = Counter()
    for stream, lengths in enumerate((first, second)):
        for index, length in enumerate(lengths):
            ordinal, lane = divmod(index, 2)
            size = min(length, 5) if options.get("overflow") is None else length
            size = size if options["packing"] == "one_per_row" else length
            expected.update((2 * stream + lane, ordinal, token) for token in range(size))
    assert tokens == expected
    assert sorted(sizes) == list(range(end))
    if options["packing"] == "concat":
        assert sum(size < 5 for size in sizes.values()) <= 2


def test_rows_in_the_tail_of_one_stream_and_in_lanes_of_the_other() -> None:
    """Stream b has 1 token per lane: its only row is its tail, which packs both lanes."""
    run = TinyRun([5] * 8, [1, 1], proportions=[1, 1], epochs=1)
    ending = run.lengths.find_tails(run.start).ending
    row = ending.lane_ends[1]
    assert find(run, row) == [[0, 2, 0, 0, 1], [0, 3, 0, 0, 1]]
    others = [each for each in range(ending.end) if each != row]
    assert [piece[1] for piece in find(run, *others)] == [each % 2 for each in others[:8]]
