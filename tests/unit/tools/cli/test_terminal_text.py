"""No text can control a terminal, and no text is lost."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.tools.cli.output import escape, escape_lines, wrap

ANY_TEXT = st.text(st.characters())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, Grüße, 狐 🦊\u3000", "plain, Grüße, 狐 🦊\u3000"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x9b2J\x85\x00\x7f\r\n\t", r"\x9b2J\x85\x00\x7f\r\n\t"),
        ("a\u202eb\u2066c\u200fd", r"a\u202eb\u2066c\u200fd"),
        ("\ud800", r"\ud800"),
        ("\u2028\ufeff\u00ad", r"\u2028\ufeff\xad"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_what_a_terminal_would_not_show_is_escaped(text: str, shown: str) -> None:
    assert escape(text) == shown


@given(ANY_TEXT)
def test_no_control_or_format_character_is_left(text: str) -> None:
    for line in escape_lines(text):
        assert all(unicodedata.category(each)[0] != "C" for each in line)
        line.encode("utf-8")


@given(st.text(st.characters(codec="utf-8")), st.integers(2, 20))
def test_wrapped_lines_are_the_text_and_fit(text: str, columns: int) -> None:
    line = escape(text)
    parts = [*wrap(line, columns)]
    assert "".join(parts) == line
    for part in parts:
        cells = [
            0
            if unicodedata.combining(each)
            else 1 + (unicodedata.east_asian_width(each) in ("W", "F"))
            for each in part
        ]
        assert sum(cells) <= columns


def test_lines_are_cut_after_a_space() -> None:
    assert [*wrap("the quick brown fox", 10)] == ["the quick ", "brown fox"]
    assert [*wrap("狐狐狐", 4)] == ["狐狐", "狐"]
