"""A `.json` file may be an array or JSON lines. Errors for other JSON say what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
