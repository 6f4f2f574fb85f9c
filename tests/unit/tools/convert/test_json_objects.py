"""`parse_object` returns the same values and error messages as the standard library."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cloudload.tools.convert.readers import lines
from cloudload.tools.convert.readers.lines import parse_object

pytest.importorskip("orjson")

NUMBERS = st.one_of(
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1]),
    st.floats(),
)
TEXTS = st.text(st.characters()) | st.text(st.sampled_from('a"\\\n\0\x7f\ud800\udc00é語😀'))
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.builds(
    lambda value, is_ascii: json.dumps(value, ensure_ascii=is_ascii).encode(errors="surrogatepass"),
    st.dictionaries(TEXTS, VALUES, max_size=4),
    st.booleans(),
)
MARKS = [bytes([mark]) for mark in b'{}[],:" \t\r\n\f\0\xff']
NAMED = b'"a": "a" 0 -0 01 1. 1e5 1e999 0.1 1E-400 - NaN -Infinity null true 18446744073709551616'
ESCAPES = b"\\u0000 \\ud83d\\ude00 \\ud800 \\x ' // \xef\xbb\xbf"
TOKENS = st.lists(st.sampled_from([*MARKS, *NAMED.split(), *ESCAPES.split()]), max_size=12).map(
    b"".join
)


def parse_by_the_standard_library(data: bytes) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "orjson", None)
        return parse_object(data)


def describe(parsed: Any) -> str:
    """Return text that also shows types, key order, and signs of zeros, which `==` ignores."""
    return repr(parsed)


@given(OBJECTS)
@example(b'{"a": 18446744073709551616}')
@example(b'{"a": [-9223372036854775809, {"b": 1e400}]}')
@example(b'{"a": 1, "b": 2, "a": 3}')
def test_objects_have_the_values_of_the_standard_library(data: bytes) -> None:
    assert describe(parse_object(data)) == describe(parse_by_the_standard_library(data))


@given(OBJECTS, st.data())
def test_damaged_objects_have_the_problems_of_the_standard_library(data: bytes, draw: Any) -> None:
    place = draw.draw(st.integers(0, len(data)))
    damaged = data[:place] + draw.draw(TOKENS) + data[place + draw.draw(st.integers(0, 3)) :]
    assert describe(parse_object(damaged)) == describe(parse_by_the_standard_library(damaged))


@given(TOKENS.map(lambda value: b'{"a": ' + value + b"}") | TOKENS)
def test_any_tokens_are_read_as_by_the_standard_library(data: bytes) -> None:
    assert describe(parse_object(data)) == describe(parse_by_the_standard_library(data))


@pytest.mark.parametrize("depth", [10, 31, 32, 33, 34, 200, 900, 1000, 1023, 1024, 100_000])
@pytest.mark.parametrize("ends", [(b"[", b"]"), (b'{"b":', b"}")])
def test_depth_is_limited_by_the_standard_library(depth: int, ends: tuple[bytes, bytes]) -> None:
    data = b'{"a": ' + ends[0] * depth + b"1" + ends[1] * depth + b"}"
    found, expected = parse_object(data), parse_by_the_standard_library(data)
    assert (found[0] is None) == (expected[0] is None)
    assert found[1] == expected[1]


def test_plain_objects_are_parsed_by_orjson(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", None)
    fields = {"text": "é\n", "id": 7, "score": 0.5, "meta": {"tags": ["a", None, True]}}
    assert parse_object(json.dumps(fields).encode()) == (fields, None)
