"""A resume finds each field that differs, ignores what changes no row, and lists the rest."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cloudload.errors import StreamChangedError
from cloudload.run.changes import (
    ACCEPTABLE_FIELDS,
    check_moment,
    check_on_change,
    explain_data,
    find_changes,
    has_same_samples,
    refuse_changes,
)
from cloudload.run.position import Position
from cloudload.run.recipe import Recipe
from cloudload.run.saved import Saved, read_state
from cloudload.run.state import build_state
from cloudload.stats import FAILED
from testkit.tiny_runs import tiny_recipe


def save(recipe: Recipe, **fields: Any) -> Saved:
    after = {"rows": 4, "table_rows": 4, "batches": 1, "global_batch": 4, **fields}
    position = replace(Position.start(recipe), **after)
    return read_state(build_state(recipe, position, "tokenizers 0.1"))


def changes(before: Recipe, now: Recipe) -> list[str]:
    """The names of the fields that differ."""
    return list(find_changes(save(before), now))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, []),
        ({"seq_len": 9}, []),
        ({"min_tokens": 1}, ["min_tokens"]),
        ({"max_tokens": 9}, ["max_tokens"]),
        ({"open_rows": 3}, ["open_rows"]),
        ({"seed": 3}, ["seed"]),
        ({"epochs": 3}, ["epochs"]),
        ({"tokenizer": "other"}, ["tokenizer"]),
        ({"frames": [(1, None)]}, ["bos_eos"]),
        ({"num_lanes": 4}, ["num_lanes"]),
        ({"shuffle": True, "packing": "best_fit"}, ["packing", "shuffle"]),
        ({"text_key": "body"}, ["text_key"]),
        ({"tokens_key": "ids", "strip_tokens": [2]}, ["tokens_key", "strip_tokens"]),
    ],
)
def test_each_field_that_differs_is_found(options: dict[str, Any], names: list[str]) -> None:
    assert changes(tiny_recipe([9]), tiny_recipe([9], **options)) == names


def test_a_change_has_the_saved_and_the_found_value() -> None:
    found = find_changes(save(tiny_recipe([9])), tiny_recipe([9], min_tokens=3))
    assert found == {"min_tokens": (0, 3)}


def test_added_streams_are_not_a_change(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    before = tiny_recipe([9], proportions=[1])
    assert changes(before, tiny_recipe([9], [5], proportions=[1, 1])) == []
    assert caplog.text == ""
    # a changed first stream is, also beside an added one
    other = tiny_recipe([8], [5], proportions=[1, 1], num_lanes=2)
    assert {"data", "shards", "choose"} <= {*changes(before, other)}


def test_shards_written_again_with_equal_samples_are_not_a_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    recipe = tiny_recipe([9])
    saved = save(recipe)
    saved = replace(saved, fields={**saved.fields, "data": "0123"})
    assert find_changes(saved, recipe) == {}
    assert "the shards differ from those of the saved run, but contain the same" in caplog.text
    unknown = replace(saved, fields={**saved.fields, "samples": ""})
    assert list(find_changes(unknown, recipe)) == ["data"]


def test_the_ids_of_fixed_texts_matter_only_for_text_and_one_tokenizer() -> None:
    recipe = tiny_recipe([9])
    saved = save(recipe)
    other = replace(saved, fields={**saved.fields, "token_ids": "other"})
    assert list(find_changes(other, recipe)) == ["token_ids"]
    assert list(find_changes(other, tiny_recipe([9], tokenizer="new"))) == ["tokenizer"]
    tokens = tiny_recipe([9], tokens_key="ids")
    saved = save(tokens)
    other = replace(saved, fields={**saved.fields, "token_ids": "other"})
    assert find_changes(other, tokens) == {}


@pytest.mark.parametrize(
    ("before", "now", "num_failed", "names"),
    [
        ("raise", "skip", 0, []),
        ("raise", "skip", 2, []),
        ("skip", "raise", 0, []),
        ("skip", "raise", 2, ["on_error"]),
    ],
)
def test_skipping_bad_documents_is_a_change_once_a_run_that_skips_them_must_raise(
    before: str, now: str, num_failed: int, names: list[str]
) -> None:
    saved = save(tiny_recipe([9], on_error=before))
    counts = np.zeros((1, 7), np.int64)
    counts[0, FAILED] = num_failed
    saved = replace(saved, position=saved.position.with_lanes(counts=counts))
    assert list(find_changes(saved, tiny_recipe([9], on_error=now))) == names


# ------------------------------------------------------------------------- refusals


def refusal(before: Recipe, now: Recipe, **on_change: str) -> str:
    saved = save(before)
    with pytest.raises(StreamChangedError) as error:
        refuse_changes(find_changes(saved, now), on_change, saved, now)
    return str(error.value)


def test_all_refused_changes_are_listed_with_both_values_and_how_to_accept_them() -> None:
    message = refusal(tiny_recipe([9]), tiny_recipe([9], min_tokens=3, frames=[(1, 2)]))
    assert message.splitlines() == [
        "the state does not match this loader:",
        "  min_tokens: saved 0, found 3",
        "  bos_eos (IDs before and after a document, by stream): saved 'None/None', found '1/2'",
        "Restore the saved values, or start a new run without this state, or accept the change "
        "with on_change={'min_tokens': 'accept', 'bos_eos': 'accept'}",
    ]


def test_a_run_that_left_out_documents_says_so_where_it_must_raise() -> None:
    saved = save(tiny_recipe([9], on_error="skip"))
    counts = np.zeros((1, 7), np.int64)
    counts[0, FAILED] = 2
    saved = replace(saved, position=saved.position.with_lanes(counts=counts))
    now = tiny_recipe([9], on_error="raise")
    refused = r"on_error \(documents were left out before the state\): saved 'skip', found 'raise'"
    with pytest.raises(StreamChangedError, match=refused):
        refuse_changes(find_changes(saved, now), {}, saved, now)


def test_changes_that_cannot_be_accepted_are_not_offered() -> None:
    message = refusal(tiny_recipe([9]), tiny_recipe([9], min_tokens=3, seed=2))
    assert "on_change" not in message
    assert "seed: saved 17, found 2" in message


def test_accepted_changes_are_left_out_of_the_list() -> None:
    before, now = tiny_recipe([9]), tiny_recipe([9], min_tokens=3, open_rows=2)
    message = refusal(before, now, min_tokens="accept")
    assert "min_tokens" not in message
    assert "open_rows: saved 16, found 2" in message
    saved = save(before)
    accepted = {"min_tokens": "accept", "open_rows": "accept"}
    refuse_changes(find_changes(saved, now), accepted, saved, now)


def test_changed_data_and_tokenizers_are_named_with_their_locations() -> None:
    message = refusal(tiny_recipe([9]), tiny_recipe([8], names="b", tokenizer="other"))
    assert "of s3://tiny/a, found" in message
    assert "of s3://tiny/b" in message
    assert "saved 'tiny' of 'tiny', found 'other' of 'other'" in message


def test_damaged_locations_are_left_out_of_the_list() -> None:
    saved = replace(save(tiny_recipe([9])), sources="{")
    now = tiny_recipe([9], tokenizer="other")
    with pytest.raises(StreamChangedError, match="saved 'tiny', found 'other'\n"):
        refuse_changes(find_changes(saved, now), {}, saved, now)


@pytest.mark.parametrize(
    ("on_change", "message"),
    [
        ({"data": "yes"}, "on_change.'data'. is 'yes'. Use 'accept' or 'same'"),
        ({"min_tokens": "same"}, "on_change.'min_tokens'. is 'same'. Use 'accept'$"),
        ({"seed": "accept"}, "a change of 'seed' cannot be accepted.*You can accept changes of b"),
    ],
)
def test_an_invalid_on_change_is_refused(on_change: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_on_change(on_change)


def test_a_valid_on_change_names_acceptable_fields() -> None:
    check_on_change({})
    check_on_change({"data": "same"})
    check_on_change(dict.fromkeys(ACCEPTABLE_FIELDS, "accept"))


# ------------------------------------------------------------------------- the moment


CHANGE = {"min_tokens": (0, 3)}


def test_changes_are_possible_at_a_row_whose_cursors_are_saved() -> None:
    check_moment(save(tiny_recipe([9]), rows=8, table_rows=8), tiny_recipe([9]), CHANGE)


def test_changes_are_not_possible_between_exchanges() -> None:
    saved = save(tiny_recipe([9], epochs=1), rows=8, table_rows=6)
    check_moment(saved, tiny_recipe([9]), {})
    with pytest.raises(StreamChangedError, match="cannot change on a resume from this state"):
        check_moment(saved, tiny_recipe([9]), CHANGE)


def test_changes_are_not_possible_in_the_tail() -> None:
    saved = save(tiny_recipe([9], epochs=1), rows=8, table_rows=8)
    position = saved.position.with_lanes(tails=(((5, 2),),))
    with pytest.raises(StreamChangedError, match=r"cannot change in the tail.*From row 6"):
        check_moment(replace(saved, position=position), tiny_recipe([9]), CHANGE)


def test_changes_are_not_possible_once_a_stream_of_the_mixture_ended() -> None:
    saved = save(tiny_recipe([9], [9], proportions=[1, 1], epochs=1))
    position = saved.position.with_lanes(tails=((), ((5, 0),)))
    check_moment(replace(saved, position=position), tiny_recipe([9]), {})
    with pytest.raises(StreamChangedError, match=r"in its tail or has ended \(b\)"):
        check_moment(replace(saved, position=position), tiny_recipe([9]), CHANGE)


def test_a_gap_between_rows_and_cursors_is_explained_with_both_rows() -> None:
    saved = save(tiny_recipe([9]), rows=8_000, table_rows=6_000)
    gap = "The state is at row 8,000, but its cursors are from row 6,000"
    with pytest.raises(StreamChangedError, match=f"^min_tokens: cannot change .*{gap}"):
        check_moment(saved, tiny_recipe([9]), CHANGE)
    with pytest.raises(StreamChangedError, match=f"^seq_len: saved 5, found 7, but .*{gap}"):
        check_moment(saved, tiny_recipe([9], seq_len=7), {})


# ------------------------------------------------------------------------- shards written again


def fields(data: str, samples: str, shards: str = "s", choose: str = "9") -> dict[str, str]:
    return {"data": data, "samples": samples, "shards": shards, "choose": choose}


@pytest.mark.parametrize(
    ("saved", "found", "is_same"),
    [
        (("d", "x"), ("d", "x"), True),
        (("d", ""), ("d", ""), True),  # equal data needs no hashes of samples
        (("d", "x"), ("e", "x"), True),
        (("d", "x"), ("e", "y"), False),
        (("d", ""), ("e", ""), False),
        (("d", "x"), ("e", ""), False),
        (("d,e", "x,y"), ("d,f", "x,y"), True),
        (("d,e", "x,y"), ("d,f", "x,z"), False),
        (("d", "x"), ("e,f", "x,y"), True),  # the second stream was added
        (("d", "x"), ("e,f", "y,x"), False),
        (("d,e", "x,y"), ("e,d", "y,x"), False),
    ],
)
def test_streams_are_compared_in_pairs(
    saved: tuple[str, str], found: tuple[str, str], is_same: bool
) -> None:
    assert has_same_samples(fields(*saved), fields(*found)) == is_same


def test_a_state_without_hashes_of_samples_has_other_samples() -> None:
    assert not has_same_samples({"data": "d"}, fields("e", "x"))


@pytest.mark.parametrize(
    ("names", "saved", "found", "start"),
    [
        ({"seed"}, ("d", "x"), ("d", "x"), None),
        ({"data"}, ("d", "x"), ("e", "y"), "Each shard has as many samples as before, but the"),
        ({"data"}, ("d", "x"), ("e", ""), "Each shard has as many samples .* because the index"),
        ({"data"}, ("d,e", "x,"), ("f,g", "y,"), "Each shard has as many samples as before, but"),
        ({"data"}, ("d,e", "x,"), ("f,g", "x,"), "Each shard has as many .* because the state"),
        ({"data"}, ("d", ""), ("e", "y"), "Each shard has as many samples .* because the state"),
        ({"data", "shards"}, ("d", "x"), ("e", "y"), "The samples are split into different"),
    ],
)
def test_the_difference_is_explained_in_one_sentence(
    names: set[str], saved: tuple[str, str], found: tuple[str, str], start: str | None
) -> None:
    explained = explain_data(names, fields(*saved), fields(*found))
    if start is None:
        assert explained == []
    else:
        [text] = explained
        assert all(part in text for part in start.split(" .* "))


@pytest.mark.parametrize(
    ("saved", "found", "difference"),
    [
        (("s", "9"), ("t", "1200"), ", with 1,200 samples instead of 9."),
        (("s,t", "9,1"), ("u,v", "5,7"), ", with 12 samples instead of 10."),
        (("s", "9"), ("t,u", "8,100"), ", with 8 samples instead of 9."),  # one was added
        (("s", "9"), ("t,u", "9,100"), "This is a different dataset."),
        (("s", "60"), ("t", "45,10"), ", with 55 samples instead of 60."),  # drawn from streams
        (("s", "x"), ("t", "9"), "This is a different dataset."),
    ],
)
def test_another_dataset_is_named_as_such_with_its_number_of_samples(
    saved: tuple[str, str], found: tuple[str, str], difference: str
) -> None:
    [text] = explain_data(
        {"shards", "choose", "data"}, fields("d", "x", *saved), fields("e", "y", *found)
    )
    assert difference in text
    assert text.startswith("This is a different dataset")
