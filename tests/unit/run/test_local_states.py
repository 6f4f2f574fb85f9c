"""Local states of ranks merge to the whole state, in any order, or say which one is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cloudload.errors import StreamChangedError
from cloudload.run.local_states import mask_lanes, merge_state_dicts
from cloudload.run.position import Position
from cloudload.run.state import State, build_state
from testkit.tiny_runs import tiny_recipe

RECIPE = tiny_recipe([20], num_lanes=4, packing="best_fit")


def whole() -> Position:
    """Lane `l` is at token `l` of document `10 + l`, with 4 · `l` bytes waiting."""
    arrays = Position.start(RECIPE).lanes.arrays.copy()
    assert arrays.residues is not None
    for lane in range(4):
        arrays.cursors[0, lane] = (10 + lane, lane, 9 * (lane > 0))
        arrays.residues[0, lane] = np.arange(lane, dtype="<i4").tobytes()
    arrays.counts[:] = 5
    start = replace(Position.start(RECIPE), rows=8, table_rows=8, batches=2, global_batch=4)
    return start.with_lanes(cursors=arrays.cursors, residues=arrays.residues, counts=arrays.counts)


def parts(*ranks: range, **fields: Any) -> list[State]:
    """The local states of ranks with these lanes. Each rank counted 5 of everything."""
    states = []
    for index, own in enumerate(ranks):
        name = f"{index}/{len(ranks)}"
        states.append(build_state(RECIPE, mask_lanes(whole(), own), "backend", name) | fields)
    return states


def test_masked_lanes_are_unknown_and_counts_stay() -> None:
    masked = mask_lanes(whole(), range(1, 4, 2))
    assert masked.cursors[0].tolist() == [[-1] * 3, [11, 1, 9], [-1] * 3, [13, 3, 9]]
    assert masked.residues is not None
    assert list(map(len, masked.residues[0])) == [0, 4, 0, 12]
    assert masked.counts.tolist() == whole().counts.tolist()
    assert masked.rows == 8


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_merged_in_any_order_they_are_the_whole_state_with_the_sum_of_counts(
    order: tuple[int, int],
) -> None:
    states = parts(range(0, 4, 2), range(1, 4, 2))
    merged = merge_state_dicts([states[index] for index in order])
    expected = build_state(RECIPE, whole(), "backend")
    assert merged == {**expected, "counts": "[[10,10,10,10,10,10,10]]"}


def test_one_rank_with_all_lanes_merges_to_itself() -> None:
    [state] = parts(range(4))
    assert merge_state_dicts([state]) == {**state, "part": ""}


def test_a_missing_rank_is_refused() -> None:
    first, second, _ = parts(range(1), range(1, 2), range(2, 4))
    with pytest.raises(StreamChangedError, match="'0/3', '1/3' do not cover all lanes"):
        merge_state_dicts([first, second])


def test_a_rank_that_is_passed_twice_is_refused() -> None:
    first, second = parts(range(2), range(2, 4))
    with pytest.raises(StreamChangedError, match="part: the local state '0/2' has lanes that ano"):
        merge_state_dicts([first, second, first])


def test_states_of_other_steps_and_runs_are_refused_with_different_advice() -> None:
    first, second = parts(range(2), range(2, 4))
    with pytest.raises(StreamChangedError, match=r"rows differs .*: 8, 12. Save the states of all"):
        merge_state_dicts([first, {**second, "rows": 12}])
    with pytest.raises(
        StreamChangedError, match=r"skipped differs .* Save the states of all ranks"
    ):
        merge_state_dicts([first, {**second, "skipped": "0:4"}])
    with pytest.raises(StreamChangedError, match=r"seed differs .*: 17, 3. Pass the states of one"):
        merge_state_dicts([first, {**second, "seed": 3}])
    with pytest.raises(StreamChangedError, match=r"fair_start differs .*: 'sqrt', None"):
        merge_state_dicts([first, {k: v for k, v in second.items() if k != "fair_start"}])


def test_what_may_differ_between_ranks_comes_from_the_first() -> None:
    first, second = parts(range(2), range(2, 4))
    merged = merge_state_dicts([first, {**second, "tokenizer_backend": "other"}])
    assert merged["tokenizer_backend"] == "backend"


def test_no_states_are_refused() -> None:
    with pytest.raises(StreamChangedError, match="there are no local states to merge"):
        merge_state_dicts([])
