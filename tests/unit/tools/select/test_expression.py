"""Conditions on columns mean what they mean in SQL, also for nulls."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.tools.select.expression import WrongTypeError, parse_expression

NUMBERS = st.sampled_from(["a", "b", "`c d`", "3", "-1", "0.5", "2e1"])
TEXTS = st.sampled_from(["s", "t", "'x'", "'it''s'", "''"])
SIGNS = st.sampled_from(["=", "==", "<>", "!=", "<", "<=", ">", ">="])


def conditions_on(terms: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    literals = terms.filter(lambda term: term[0] in "'-0123456789")
    items = st.one_of(literals, st.just("null"))
    lists = st.lists(items, min_size=1, max_size=3).map(", ".join)
    return st.one_of(
        st.tuples(terms, SIGNS, terms).map(" ".join),
        st.tuples(terms, st.sampled_from(["in", "not in", "NOT  IN"]), lists).map(
            lambda parts: f"{parts[0]} {parts[1]} ({parts[2]})"
        ),
        st.tuples(terms, st.sampled_from(["is null", "IS NOT NULL"])).map(" ".join),
    )


CONDITIONS = st.recursive(
    st.one_of(conditions_on(NUMBERS), conditions_on(TEXTS)),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" and ", " OR "]), inner).map("".join),
        inner.map(lambda each: f"not {each}"),
        inner.map(lambda each: f"({each})"),
    ),
    max_leaves=6,
)
ROWS = st.fixed_dictionaries(
    {
        **dict.fromkeys(["a", "b", "c d"], st.sampled_from([None, 0, 3, -1, 0.5, 20])),
        **dict.fromkeys(["s", "t"], st.sampled_from([None, "", "x", "it's", "y"])),
    }
)


@given(condition=CONDITIONS, row=ROWS)
def test_a_condition_is_true_exactly_if_sql_says_so(condition: str, row: dict[str, Any]) -> None:
    condition = f"({condition}) and (a is null or a is not null)"  # names a column
    database = sqlite3.connect(":memory:")
    database.execute('create table d (a, b, "c d", s, t)')
    values = [row[name] for name in ("a", "b", "c d", "s", "t")]
    database.execute("insert into d values (?, ?, ?, ?, ?)", values)
    # SQLite binds `not` more loosely than a comparison, as the conditions do
    rows = database.execute(f"select 1 from d where {condition}").fetchall()
    assert parse_expression(condition).is_true(row) == bool(rows)


@pytest.mark.parametrize(
    ("condition", "values", "expected"),
    [
        ("meta.quality > 0.5", {"meta": {"quality": 0.7}}, True),
        ("meta.quality > 0.5", {"meta": None}, False),
        ("meta.a.b = 'x'", {"meta": {"a": {"b": "x"}}}, True),
        ("meta.quality is null", {"meta": "text"}, True),
        ("`meta.quality` = 1", {"meta.quality": 1, "meta": {"quality": 2}}, True),
        ("good", {"good": True}, True),
        ("not good", {"good": 0}, True),
        ("good and not bad", {"good": 1, "bad": None}, False),
        ("flag = true", {"flag": True}, True),
        ('lang = "en"', {"lang": "en"}, True),
    ],
)
def test_a_condition_reads_fields_and_flags(
    condition: str, values: dict[str, Any], expected: bool
) -> None:
    assert parse_expression(condition).is_true(values) is expected


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("score >", r"at character 8: 'the end' is where a value should be"),
        ("score >= 3 and", "at character 15"),
        ("score ~ 3", "at character 6: ' ~ 3' is not part of a condition"),
        ("(score > 1", "is where '\\)' should be"),
        ("score > 1)", "'\\)' comes after the end"),
        ("score in ()", "is where a value should be"),
        ("score not 3", "is where 'in' should be"),
        ("score is 3", "is where 'null' should be"),
        ("score > (1)", "'\\(1\\)' is where a value should be"),
        ("3 > 2", "names no column"),
        ("", "is where a value should be"),
        ("__import__('os')", "comes after the end"),
        ("not " * 60 + "a", "names no column|parentheses|wrong"),
        ("(" * 60 + "a" + ")" * 60, "more than 50 parentheses"),
    ],
)
def test_a_wrong_condition_says_where(condition: str, message: str) -> None:
    if condition.startswith("not not"):
        assert parse_expression(condition).is_true({"a": 1}) is True
        return
    with pytest.raises(ValueError, match=message):
        parse_expression(condition)


@pytest.mark.parametrize(
    ("condition", "values"),
    [
        ("a > 3", {"a": "x"}),
        ("a = 'x'", {"a": 3}),
        ("a > 1", {"a": [1]}),
        ("a", {"a": "yes"}),
        ("a in (1, null)", {"a": "1"}),
        ("a not in ('1', '2')", {"a": 1}),
    ],
)
def test_values_of_another_type_are_refused(condition: str, values: dict[str, Any]) -> None:
    with pytest.raises(WrongTypeError):
        parse_expression(condition).is_true(values)
