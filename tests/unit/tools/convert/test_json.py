"""A `.json` file may be an array or JSON lines, and errors for other JSON say what to do.
Objects have the same values and problems as with the standard library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cloudload.data import json_records
from cloudload.data.mds.json_records import parse_object
from cloudload.tools.convert.readers.json import BrokenArrayError, split_array
from testkit.conversions import COMPRESSORS, convert, convert_texts, documents, read_dataset, refuse
from testkit.examples import EXAMPLES
from testkit.readers import check_blocks

DOCUMENTS = [f'{text} ["{{ é \\ 狐' for text in documents(150)]
ROWS = [{"text": text, "meta": {"n": [number]}} for number, text in enumerate(DOCUMENTS)]


def write_array(path: Path, style: str) -> None:
    import pandas

    if style == "pandas":
        pandas.DataFrame(ROWS).to_json(path, orient="records")
    else:
        path.write_text(
            json.dumps(ROWS, indent=2 if style == "indented" else None, ensure_ascii=False)
        )


@pytest.mark.parametrize("style", ["pandas", "indented", "compact"])
@pytest.mark.parametrize("extension", ["", ".gz", ".zst"])
def test_arrays_are_read_element_by_element(tmp_path: Path, style: str, extension: str) -> None:
    write_array(tmp_path / "plain", style)
    path = tmp_path / f"a.json{extension}"
    path.write_bytes(COMPRESSORS[extension]((tmp_path / "plain").read_bytes()))
    report = convert(path, keep=["meta"], block_bytes=999)
    samples = read_dataset(str(tmp_path / "out"), tmp_path)
    assert [(s["text"], s["meta"]["n"][0]) for s in samples] == [
        (text, number) for number, text in enumerate(DOCUMENTS)
    ]
    assert samples[8]["id"] == f"{path.name}:9"
    assert report.input_bytes == path.stat().st_size
    check_blocks(path)


def test_lines_in_a_json_file_are_read_as_before(tmp_path: Path) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    (tmp_path / "a.json").write_text(f"\ufeff\n{lines}")
    assert convert_texts(tmp_path / "a.json") == DOCUMENTS
    assert read_dataset(str(tmp_path / "out"), tmp_path)[0]["id"] == "a.json:2"
    check_blocks(tmp_path / "a.json")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=9,
)


@settings(max_examples=EXAMPLES)
@given(
    values=st.lists(VALUES, max_size=6),
    indent=st.sampled_from([None, 1]),
    ascii=st.booleans(),
    size=st.integers(1, 40),
)
def test_elements_end_where_the_json_module_ends_them(
    *, values: list[Any], indent: int | None, ascii: bool, size: int
) -> None:
    data = f" {json.dumps(values, indent=indent, ensure_ascii=ascii)} \n".encode(
        "utf-8", "surrogatepass"
    )
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    found = list(split_array(pieces, is_begun=False))
    assert repr([json.loads(element) for _, element in found]) == repr(values)
    for number, (after, _) in enumerate(found[:-1], 1):
        rest = [data[after + at : after + at + size] for at in range(0, len(data), size)]
        assert [e for _, e in split_array(rest, is_begun=True)] == [e for _, e in found[number:]]


@pytest.mark.parametrize("number", ["0.0", "-1.5e+300", "1E5", "12", "-0", "NaN", "-Infinity"])
def test_a_number_that_arrives_in_pieces_is_one_element(number: str) -> None:
    data = f"[{number},{number}]".encode()
    pieces = [data[at : at + 1] for at in range(len(data))]
    assert [each for _, each in split_array(pieces, is_begun=False)] == [number.encode()] * 2


BROKEN = {
    '[{"text": "a"}, {"text": "b"': (
        "a.json:2: the file has invalid JSON (Expecting ',' delimiter)",
        1,
    ),
    '[{"text": "a"}, {"text": "b': ("a.json:2: the file has invalid JSON (Unterminated string)", 1),
    '[{"text": "a"} {"text": "b"}]': ("a.json:2: the array has no comma after the previous", 1),
    '[{"text": "a"}, {"text": b}, {"text": "c"}]': (
        "a.json:2: the file has invalid JSON (Expecting val",
        1,
    ),
    '[{"text": "a"}': ("a.json:2: the file ends after the previous element", 1),
    '[{"text": "a"},': ("a.json:2: the file has invalid JSON (Expecting value)", 1),
    '[{"text": "a"},]': ("a.json:2: the file has invalid JSON (Expecting value)", 1),
    '[{"text": "a"}] {"text": "b"}': ("a.json:2: the file has more data after the array", 1),
    '[{"text": "a"}, 7, {"text": "c"}]': (
        "a.json:2: the record is not an object, but an integer",
        2,
    ),
    '[{"text": "a"}, {"body": "b"}]': (
        "a.json:2: the record has no field 'text'. Its fields are: body",
        1,
    ),
    "[" * 100_000: ("a.json:1: the file has invalid JSON (", 0),
}


@pytest.mark.parametrize("data", BROKEN, ids=lambda data: data[:40])
def test_a_broken_array_is_named_and_its_whole_elements_are_kept(tmp_path: Path, data: str) -> None:
    message, kept = BROKEN[data]
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_text(data)
    (folder / "b.json").write_text('{"text": "b"}')
    said = refuse("", folder)
    assert message in said
    report = convert(folder, skip_bad=True)
    assert (report.documents, report.bad) == (kept + 1, 1)


def test_an_element_that_is_broken_early_is_found_without_reading_the_file() -> None:
    read = 0

    def chunks() -> Any:
        nonlocal read
        yield b'[{"text": "a"}, {"text": x, '
        for _ in range(100):
            read += 1
            yield b'"n": 1, ' * 999

    with pytest.raises(BrokenArrayError, match=r"invalid JSON \(Expecting value\)"):
        list(split_array(chunks(), is_begun=False))
    assert read < 3


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
@pytest.mark.parametrize("count", [1, 2])
def test_an_object_of_several_lines_gets_a_hint(tmp_path: Path, name: str, count: int) -> None:
    path = tmp_path / name
    path.write_text(json.dumps({"text": "a", "n": 1}, indent=2) * count)
    refuse(
        r":1, .*: the record is invalid JSON .*one object per line if .*: jq -c",
        path,
        tmp_path / "out",
    )


def test_an_array_in_a_file_of_lines_gets_a_hint_that_works(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_array(path, "indented")
    refuse(r"a.jsonl:1, .*: the record is invalid JSON .*or set format \(--format\) to json", path)
    report = convert(path, format="json")
    assert report.documents == len(ROWS)


# ---------------------------------------------------------------- objects


pytest.importorskip("orjson")

NUMBERS = st.one_of(
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1]),
    st.floats(),
)
TEXTS = st.text(st.characters()) | st.text(st.sampled_from('a"\\\n\0\x7f\ud800\udc00é語😀'))
ANY_VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.builds(
    lambda value, is_ascii: json.dumps(value, ensure_ascii=is_ascii).encode(errors="surrogatepass"),
    st.dictionaries(TEXTS, ANY_VALUES, max_size=4),
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
        patch.setattr(json_records, "orjson", None)
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
