"""A saved run continues at the saved position, and unsafe changes and impossible states do not."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloudload.errors import StreamChangedError
from cloudload.rows.packing.residue import encode_residue, residue_spans
from cloudload.run.position import LaneLog, Origin, Position
from cloudload.run.recipe import Recipe
from cloudload.run.resumed import check_cursors, check_tails, resume_run
from cloudload.run.saved import Saved, read_state, read_tails
from cloudload.run.state import build_state
from testkit.tiny_runs import tiny_recipe

OPEN_ROW = encode_residue(()) + encode_residue([(2, 0, 3)])


def position(
    *lanes: tuple[int, int, int],
    recipe: Recipe | None = None,
    rows: int = 4,
    residues: list[bytes] | None = None,
    **fields: Any,
) -> Position:
    """A position at `rows` rows. Each component has these cursors."""
    recipe = recipe or tiny_recipe([9])
    blank = Position.start(recipe).lanes.arrays
    cursors = np.array([lanes or [(0, 0, 0)] * recipe.num_lanes] * len(recipe.components), np.int64)
    arrays = replace(blank, cursors=cursors)
    if residues is not None:
        arrays = replace(arrays, residues=np.array([residues], object))
    return replace(Position(rows, rows, LaneLog(arrays), batches=1, global_batch=4), **fields)


def save(recipe: Recipe, at: Position | None = None) -> Saved:
    return read_state(build_state(recipe, at or position(recipe=recipe), "tokenizers 1.0"))


def resume(saved: Saved, recipe: Recipe, **on_change: str) -> Position:
    return resume_run(saved, recipe, on_change, Path("no-cache"))[1]


def test_an_unchanged_run_continues_where_it_was_saved(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    recipe = tiny_recipe([9])
    before = position((2, 1, 3), (1, 0, 0), rows=7, skipped=((2, 3),), origin=Origin(0, 1))
    after = resume(save(recipe, before), recipe)
    assert after.cursors.tolist() == before.cursors.tolist()
    assert replace(after, lanes=before.lanes) == before
    assert caplog.records == []


# ------------------------------------------------------------------------- streams


def test_an_added_stream_starts_at_its_first_document() -> None:
    one = tiny_recipe([9], proportions=[1])
    two = tiny_recipe([9], [5], proportions=[1, 1])
    before = position((2, 1, 3), (1, 0, 0), recipe=one)
    before.counts[:] = 8
    after = resume(save(one, before), two)
    assert after.cursors.tolist() == [[[2, 1, 3], [1, 0, 0]], [[0, 0, 0], [0, 0, 0]]]
    assert after.counts.tolist() == [[8] * 8, [0] * 8]


def test_all_saved_streams_keep_their_cursors_beside_an_added_one() -> None:
    two = tiny_recipe([9], [5], proportions=[1, 1])
    three = tiny_recipe([9], [5], [4], proportions=[1, 1, 1])
    before = position((2, 1, 3), (1, 0, 0), recipe=two)
    after = resume(save(two, before), three)
    assert after.cursors.tolist() == [*before.cursors.tolist(), [[0, 0, 0], [0, 0, 0]]]


def test_an_added_stream_has_empty_residues_and_no_tail() -> None:
    options: dict[str, Any] = {"packing": "best_fit"}
    one = tiny_recipe([9], proportions=[1], **options)
    two = tiny_recipe([9], [5], proportions=[1, 1], **options)
    before = position((3, 0, 0), (0, 0, 0), recipe=one, residues=[OPEN_ROW, b""])
    after = resume(save(one, before), two)
    assert after.residues is not None
    assert after.residues.tolist() == [[OPEN_ROW, b""], [b"", b""]]
    assert after.lanes.arrays.tails == ()


def test_a_state_with_the_counts_of_more_streams_is_damaged() -> None:
    recipe = tiny_recipe([9])
    saved = save(recipe)
    saved = replace(saved, position=saved.position.with_lanes(counts=np.zeros((2, 8), np.int64)))
    with pytest.raises(StreamChangedError, match=r"counts: the state has 2 streams, .* has 1"):
        resume(saved, recipe)


# ------------------------------------------------------------------------- changed content


def test_accepted_changes_of_content_drop_the_rest_of_open_documents(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = position((2, 1, 3), (1, 0, 0))
    saved = save(tiny_recipe([9]), before)
    after = resume(saved, tiny_recipe([9], tokenizer="other"), tokenizer="accept")
    assert after.cursors.tolist() == [[[3, 0, 0], [1, 0, 0]]]
    assert saved.position.cursors.tolist() == [[[2, 1, 3], [1, 0, 0]]]
    assert "tokenizer changed, so each lane drops the rest" in caplog.text


def test_accepted_changes_of_content_drop_residues() -> None:
    options: dict[str, Any] = {"packing": "best_fit"}
    recipe = tiny_recipe([9], **options)
    before = position((3, 0, 0), (0, 0, 0), recipe=recipe, residues=[OPEN_ROW, b""])
    after = resume(
        save(recipe, before), tiny_recipe([9], tokenizer="other", **options), tokenizer="accept"
    )
    assert after.residues is not None
    assert after.residues.tolist() == [[b"", b""]]


def test_data_said_to_be_the_same_keeps_open_documents(caplog: pytest.LogCaptureFixture) -> None:
    before = position((2, 1, 3), (1, 0, 0))
    saved = save(tiny_recipe([9]), before)
    other = tiny_recipe([9], hashed=False)
    with pytest.raises(StreamChangedError, match="data"):
        resume(saved, other)
    assert resume(saved, other, data="same").cursors.tolist() == [[[2, 1, 3], [1, 0, 0]]]
    assert "without comparing their samples" in caplog.text


def test_harmless_changes_keep_open_documents() -> None:
    before = position((2, 1, 3), (1, 0, 0))
    after = resume(
        save(tiny_recipe([9]), before), tiny_recipe([9], min_tokens=2), min_tokens="accept"
    )
    assert after.cursors.tolist() == before.cursors.tolist()


# ------------------------------------------------------------------------- seq_len


def test_another_seq_len_needs_no_acceptance_and_keeps_cursors() -> None:
    before = position((2, 1, 3), (1, 0, 0))
    after = resume(save(tiny_recipe([9]), before), tiny_recipe([9], seq_len=7))
    assert after.cursors.tolist() == before.cursors.tolist()


def test_another_seq_len_turns_open_rows_into_waiting_spans() -> None:
    recipe = tiny_recipe([9], packing="best_fit")
    before = position((3, 0, 0), (0, 0, 0), recipe=recipe, residues=[OPEN_ROW, b""])
    same = resume(save(recipe, before), recipe)
    assert same.residues is not None
    assert same.residues.tolist() == [[OPEN_ROW, b""]]
    after = resume(save(recipe, before), tiny_recipe([9], packing="best_fit", seq_len=7))
    assert after.residues is not None
    assert after.residues.tolist() == [[encode_residue([(2, 0, 3)]), b""]]
    assert residue_spans(after.residues[0, 0], 3) == [(2, 0, 3)]


def test_another_seq_len_is_refused_while_rows_would_be_read_again() -> None:
    before = position((2, 1, 3), (1, 0, 0), table_rows=2)
    saved = save(tiny_recipe([9]), before)
    assert resume(saved, tiny_recipe([9])).table_rows == 2
    with pytest.raises(StreamChangedError, match=r"seq_len: saved 5, found 7.*from row 2"):
        resume(saved, tiny_recipe([9], seq_len=7))


def test_in_the_tail_another_seq_len_is_left_to_the_tail() -> None:
    recipe = tiny_recipe([9], epochs=1)
    before = position((5, 0, 0), (4, 0, 0), recipe=recipe).with_lanes(tails=(((5, 1),),))
    after = resume(save(recipe, before), tiny_recipe([9], epochs=1, seq_len=7))
    assert after.stages_of(0) == ((5, 1),)
    assert (after.rows, after.lanes_row) == (4, 3)


# ------------------------------------------------------------------------- impossible positions


@pytest.mark.parametrize(
    ("cursor", "is_possible"),
    [
        ((4, 2, 3), True),
        ((4, 3, 3), False),  # a cursor at the end is at the next document
        ((4, 4, 3), False),
        ((4, 4, 0), True),  # an older version saved no size
    ],
)
def test_a_cursor_is_before_the_end_of_its_document(
    cursor: tuple[int, int, int], is_possible: bool
) -> None:
    at, recipe = position(cursor, (0, 0, 0)), tiny_recipe([9])
    if is_possible:
        check_cursors(at, recipe.components)
        return
    with pytest.raises(StreamChangedError, match=r"document_sizes: lane 0 is at token . of docum"):
        check_cursors(at, recipe.components)


@pytest.mark.parametrize(
    ("cursor", "is_possible"),
    [((4, 2, 0), True), ((5, 0, 0), True), ((5, 1, 0), False), ((6, 0, 0), False)],
)
def test_a_cursor_is_at_most_at_the_end_of_a_finite_lane(
    cursor: tuple[int, int, int], is_possible: bool
) -> None:
    recipe = tiny_recipe([10], epochs=1)
    at = position((0, 0, 0), cursor, recipe=recipe)
    if is_possible:
        check_cursors(at, recipe.components)
        return
    with pytest.raises(StreamChangedError, match=r"cursors: lane 1 is at document ., but ends"):
        check_cursors(at, recipe.components)


def test_the_only_lane_of_a_run_has_a_possible_cursor() -> None:
    recipe = tiny_recipe([5], num_lanes=1, epochs=1)
    check_cursors(position((4, 2, 3), recipe=recipe), recipe.components)
    for impossible, field in [((4, 3, 3), "document_sizes"), ((5, 1, 0), "cursors")]:
        with pytest.raises(StreamChangedError, match=f"{field}: lane 0 is at"):
            check_cursors(position(impossible, recipe=recipe), recipe.components)


def test_a_cursor_is_not_within_a_hole() -> None:
    """9 documents on 2 lanes: lane 1 has a hole at ordinal 4."""
    recipe = tiny_recipe([9])
    check_cursors(position((4, 1, 0), (4, 0, 0)), recipe.components)
    with pytest.raises(StreamChangedError, match="lane 1 is within document 4, which does not ex"):
        check_cursors(position((4, 0, 0), (4, 1, 0)), recipe.components)


def test_a_residue_is_of_documents_before_the_cursor() -> None:
    recipe = tiny_recipe([9], packing="best_fit")
    check_cursors(
        position((0, 0, 0), (3, 0, 0), recipe=recipe, residues=[b"", OPEN_ROW]), recipe.components
    )
    with pytest.raises(StreamChangedError, match="residues: lane 1 has spans outside the docume"):
        check_cursors(
            position((0, 0, 0), (2, 0, 0), recipe=recipe, residues=[b"", OPEN_ROW]),
            recipe.components,
        )


@pytest.mark.parametrize(
    ("tail", "is_possible"),
    [
        ("5:1", True),
        ("5:0,7:1", True),
        ("5:2", False),
        ("5:0", False),
        ("5:2,5:1", False),
    ],
)
def test_the_stages_of_a_tail_cover_its_rows(tail: str, is_possible: bool) -> None:
    state = {"tail": tail, "table_rows": 3, "rows": 4}
    if is_possible:
        assert read_tails(state, 1)
        return
    with pytest.raises(StreamChangedError, match=r"tail: the stages .* do not cover rows 3 to 4"):
        read_tails(state, 1)


def test_the_stages_of_a_tail_have_rows_of_a_token_at_least() -> None:
    recipe = tiny_recipe([9], epochs=1)
    check_tails(tails(recipe, ((5, 1),)), recipe)
    with pytest.raises(StreamChangedError, match=r"tail: \(\(0, 1\),\) .* not a tail of a run"):
        check_tails(tails(recipe, ((0, 1),)), recipe)


def test_an_endless_run_has_no_tail() -> None:
    recipe = tiny_recipe([9])
    with pytest.raises(StreamChangedError, match=r"tail: .* not a tail of a run with epochs"):
        check_tails(tails(recipe, ((5, 0),)), recipe)


def tails(recipe: Recipe, *stages: tuple[tuple[int, int], ...], **fields: Any) -> Position:
    return position(recipe=recipe, **fields).with_lanes(tails=stages)


def test_only_a_stream_that_ends_has_a_tail() -> None:
    recipe = tiny_recipe([9], [9], proportions=[1, 1], max_epochs=[None, 1])
    check_tails(tails(recipe, (), ((5, 1),)), recipe)
    check_tails(tails(recipe, (), ()), recipe)
    with pytest.raises(StreamChangedError, match=r"stream_tails: \(\(5, 1\),\) .* epochs=None"):
        check_tails(tails(recipe, ((5, 1),), ()), recipe)
    with pytest.raises(StreamChangedError, match=r"stream_tails: \(\(0, 1\),\)"):
        check_tails(tails(recipe, (), ((0, 1),)), recipe)


def test_a_mixture_whose_streams_end_reads_no_rows_again() -> None:
    recipe = tiny_recipe([9], [9], proportions=[1, 1], epochs=1)
    check_tails(tails(recipe), recipe)
    with pytest.raises(StreamChangedError, match=r"table_rows: .* is at row 4, .* from row 3"):
        check_tails(tails(recipe, table_rows=3), recipe)
    endless = tiny_recipe([9], [9], proportions=[1, 1])
    check_tails(tails(endless, table_rows=3), endless)
