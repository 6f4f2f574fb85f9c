"""A value that is not a state is recognized, and messages say what to pass or what is damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudload.run.state_fields import (
    SHOWN_CHARACTERS,
    damaged,
    explain_not_a_state,
    find_nested,
    is_state,
    show,
)

STATE = {"version": 3, "cursors": "", "table_rows": 0}
STREAMING = {"sample_in_epoch": 0, "num_canonical_nodes": 1, "shuffle_seed": 2}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("checkpoint.pt", "'checkpoint.pt' is a path or a name, not a state. Load the file first"),
        (Path("checkpoint.pt"), "'checkpoint.pt' is a path or a name"),
        ("two\nlines", "'two\\nlines' is text, not a state"),
        (json.dumps(STATE), "this is a state as JSON text. Pass json.loads(text)"),
        (b"x", "this is bytes, not a state"),
        (bytearray(b"x"), "this is bytearray, not a state"),
        ({}, "the state is empty"),
        (STATE, "this is a state"),
        ({"model": 1, "loader": STATE}, "Pass only the loader's state, which is at ['loader']"),
        ({"a": {"b": [0, STATE]}}, "which is at ['a']['b'][1]"),
        ([STATE, STATE], "Pass only the loader's state, which is at [0]"),
        ([1, STATE], "which is at [1]"),
        ({"loader": json.dumps(STATE)}, "at ['loader'] as JSON text (json.loads)"),
        (STREAMING, "Use loader.load_streaming_state"),
        ({"state": {"dataset_state": {"train": STREAMING}}}, "Use loader.load_streaming_state"),
        ({"epoch": 1, "model": 2}, "Its keys are epoch, model. Pass what loader.state_dict()"),
        (7, "this int is not a cloudload state"),
        (None, "this NoneType is not a cloudload state"),
    ],
)
def test_what_was_passed_is_recognized(value: Any, words: str) -> None:
    assert words in explain_not_a_state(value)


def test_secrets_in_a_location_are_not_shown() -> None:
    text = explain_not_a_state("https://user:secret@host/checkpoint.pt")
    assert "secret" not in text


def test_a_state_has_all_of_its_key_names() -> None:
    assert is_state({**STATE, "more": 1})
    assert not is_state({"version": 3, "cursors": ""})
    assert not is_state([*STATE])


def test_a_nested_value_is_found_within_five_levels() -> None:
    value: Any = STATE
    for level in range(6):
        place = find_nested(value, is_state)
        assert place == ("['x']" * level if level <= 5 else None)
        value = {"x": value}
    assert find_nested(value, is_state) is None


def test_a_long_key_is_shortened_in_the_path() -> None:
    place = find_nested({"k" * 1_000: STATE}, is_state)
    assert place is not None
    assert len(place) == 102


def test_a_long_value_is_shortened_in_messages() -> None:
    assert show("x" * 10) == "'xxxxxxxxxx'"
    assert show(7) == "7"
    assert len(show("x" * 10_000)) <= SHOWN_CHARACTERS + 3
    assert show([1] * 1_000).endswith("…")


def test_an_error_names_the_field_and_what_to_do() -> None:
    assert str(damaged("rows", "they are 7")) == (
        "rows: they are 7. The state is damaged. Load an earlier one"
    )
