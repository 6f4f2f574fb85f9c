"""A kept field never costs a document unless the user chose a narrow encoding, which is counted."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from cloudload.errors import ConvertError
from cloudload.tools.convert.conversion_report import ConvertReport, cause_of, merge_causes
from cloudload.tools.convert.convert import convert_to_mds
from testkit.conversions import QUIET, convert, convert_and_read, read_dataset, refuse

VALUES: dict[str, list[Any]] = {
    "text": ["a", None, "b"],
    "numbers": [0.5, None, 7],
    "mixed": [1, "one", None, {"n": [1]}, True],
    "absent": [None, None, "late"],
}


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("case", VALUES)
def test_a_null_or_another_type_costs_no_document(tmp_path: Path, case: str) -> None:
    path = write(tmp_path, [{"text": "t", "x": value} for value in VALUES[case]] + [{"text": "t"}])
    report = convert(path, tmp_path / "out", keep=["x"], block_bytes=1)
    samples = read_dataset(str(tmp_path / "out"), tmp_path)
    assert [sample["x"] for sample in samples] == [*VALUES[case], None]
    assert (report.bad, report.columns["x"]) == (0, "json")


def test_a_null_in_a_typed_table_costs_no_document(tmp_path: Path) -> None:
    table = pyarrow.table({"text": ["a", "b"], "n": [1, None], "s": [None, "s"], "f": [None, 0.5]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    samples = convert_and_read(tmp_path / "a.parquet", keep=["n", "s", "f"])
    assert [(one["n"], one["s"], one["f"]) for one in samples] == [
        (1, None, None),
        (None, "s", 0.5),
    ]


ROWS: list[dict[str, Any]] = [
    {"text": "a", "q": 0.5, "n": 1},
    {"text": "a", "q": None, "n": 1},
    {"text": None, "q": 0.5, "n": 1},
    {"text": "a", "n": 1},
    {"text": "a", "q": 0.5, "n": 300},
    {"text": "a", "q": 0.5, "n": -1},
]
CAUSES = {
    "the field 'n' does not fit its encoding uint8": 2,
    "the field 'q' is missing or null, not float64": 2,
    "the field 'text' is null, not text": 1,
}


def convert_typed(folder: Path, **options: Any) -> ConvertReport:
    keep = ["q:float64", "n:uint8"]
    path = folder / "a.jsonl"
    if not path.exists():  # writing it again would change its time
        write(folder, ROWS)
    return convert(path, folder / "out", keep=keep, **options)


@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_bad_records_are_counted_by_cause(tmp_path: Path, block_bytes: int) -> None:
    report = convert_typed(tmp_path, skip_bad=True, block_bytes=block_bytes)
    assert (report.documents, report.bad) == (1, 5)
    assert list(report.causes.items()) == list(CAUSES.items())
    again = convert_typed(tmp_path, skip_bad=True, block_bytes=block_bytes)
    assert again.already_complete
    assert again.causes == CAUSES


def test_an_error_lists_all_causes_of_its_block(tmp_path: Path) -> None:
    with pytest.raises(ConvertError) as raised:
        convert_typed(tmp_path)
    causes = "; ".join(f"{cause} ({number})" for cause, number in CAUSES.items())
    assert f"keep q:json. Causes: {causes}. Repair the input" in str(raised.value)


def test_the_summary_lists_the_causes(tmp_path: Path, cli: Any) -> None:
    command = ["convert", str(write(tmp_path, ROWS)), str(tmp_path / "out"), "--skip-bad"]
    said = cli(*command, "--keep", "q:float64", "--keep", "n:uint8").out
    for cause, number in CAUSES.items():
        assert f"  because    {cause} ({number})\n" in said


def test_a_cause_has_no_values_of_the_record() -> None:
    assert cause_of(
        "the field 'q' is missing or null, not int. To allow any value, keep q:json"
    ) == ("the field 'q' is missing or null, not int")
    assert cause_of("the record is invalid JSON (Expecting value at column 7)") == (
        "the record is invalid JSON"
    )


def test_rare_causes_are_counted_together() -> None:
    many = {f"cause {number}": 1 for number in range(103)}
    merged = merge_causes([many, {"cause 0": 4, "cause 102": 1}])
    assert len(merged) == 101
    assert (merged["cause 0"], merged["other causes"]) == (5, 4)


CHAT = [
    {
        "messages": [
            {"role": "user", "content": "2 + 2 = 狐?"},
            {"role": "assistant", "content": "4"},
        ]
    },
    {"messages": [{"role": "user", "content": "<|endoftext|>"}]},
]


def test_the_json_of_a_chat_becomes_its_text(tmp_path: Path) -> None:
    path = write(tmp_path, CHAT)
    refuse(r"Its fields are: messages. Set text_key", path, tmp_path / "out")
    refuse(
        r"'messages' is a list, not text. .* to messages:json",
        path,
        tmp_path / "out",
        text_key="messages",
    )
    samples = convert_and_read(path, tmp_path / "out", text_key="messages:json")
    assert [json.loads(sample["text"]) for sample in samples] == [row["messages"] for row in CHAT]
    assert "狐" in samples[0]["text"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [({"x": {"y": "s"}}, '"s"'), ({"x": {"y": 7}}, "7"), ({"x": {"y": None}}, None), ({}, None)],
)
def test_the_json_of_any_value_but_null_becomes_text(
    tmp_path: Path, row: dict[str, Any], expected: str | None
) -> None:
    path = write(tmp_path, [row, {"x": {"y": [1]}}])
    report = convert(path, tmp_path / "out", text_key="x.y:json", skip_bad=True)
    samples = read_dataset(str(tmp_path / "out"), tmp_path)
    assert [sample["text"] for sample in samples] == [expected, "[1]"][expected is None :]
    assert report.bad == (expected is None)


# ---------------------------------------------------------------- replaced text


BAD = "caf\xe9 \xe2\x82".encode("latin-1")  # Latin-1, and the first two bytes of €
GOOD = BAD.decode("utf-8", "replace")


def write_lines(path: Path) -> None:
    path.write_bytes(b'{"text": "good"}\n{"text": "' + BAD + b'"}\n')


def write_array(path: Path) -> None:
    path.write_bytes(b'[{"text": "good"}, {"text": "' + BAD + b'"}]')


def write_table(path: Path) -> None:
    path.write_bytes(b"text,n\ngood,1\n" + BAD + b",2\n")


def write_arrow(path: Path, kind: Any) -> None:
    column = pyarrow.array([b"good", BAD], pyarrow.large_binary())
    column = column.view(pyarrow.large_string()) if kind is None else column.cast(kind)
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), path)


def write_tar(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in {"a.txt": b"good", "b.txt": BAD}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def write_shard(path: Path) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(path), columns={"text": "bytes"}) as writer:
        for text in (b"good", BAD):
            writer.write({"text": text})


def write_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(b"good\n" + BAD))


FORMS: dict[str, Any] = {
    "a.jsonl": write_lines,
    "a.json": write_array,
    "a.csv": write_table,
    "a.parquet": lambda path: write_arrow(path, None),
    "b.parquet": lambda path: write_arrow(path, pyarrow.binary()),
    "a.tar": write_tar,
    "dataset": write_shard,
    "lines.gz": write_gzip,
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("keep", [[], ["other:json"]])
def test_bytes_that_are_not_utf_8_are_replaced_and_counted(
    tmp_path: Path, name: str, keep: list[str]
) -> None:
    FORMS[name](tmp_path / name)
    options: dict[str, Any] = {**QUIET, "keep": keep}
    options |= {"format": "lines"} if name.startswith("lines") else {}
    options |= {"keep": []} if name == "dataset" else {}
    with pytest.raises(ConvertError, match="not UTF-8"):
        convert_to_mds(tmp_path / name, tmp_path / "out", **options)
    report = convert_to_mds(tmp_path / name, tmp_path / "out", errors="replace", **options)
    assert (report.documents, report.bad, report.replaced) == (2, 0, 1)
    found = [sample["text"] for sample in read_dataset(str(tmp_path / "out"), tmp_path)]
    assert found == ["good", GOOD]


SURROGATES = {
    r"emoji \ud83d half": "emoji \ufffd half",
    r"\ude00\ud83d": "\ufffd\ufffd",
    r"whole \ud83d\ude00": "whole \U0001f600",
}


def test_unpaired_surrogates_are_replaced_and_counted(tmp_path: Path) -> None:
    rows = [f'{{"id": "{text}", "text": "{text}", "n": "{text}"}}\n' for text in SURROGATES]
    (tmp_path / "a.jsonl").write_text("".join(rows))
    for number, keep in enumerate(([], ["n:str"])):
        out = tmp_path / f"out-{number}"
        report = convert(tmp_path / "a.jsonl", out, keep=keep, errors="replace")
        samples = read_dataset(str(out), tmp_path)
        for name in ("id", "text", *(["n"] if keep else [])):
            assert [sample[name] for sample in samples] == [*SURROGATES.values()]
        assert (report.bad, report.replaced) == (0, 2)


def test_rows_of_an_iterator_are_replaced_too(tmp_path: Path) -> None:
    rows = [{"text": "a\udc80"}, {"text": "\ud83d\ude00"}, {"text": b"\xff"}]
    report = convert(iter(rows), tmp_path / "out", errors="replace")
    samples = read_dataset(str(tmp_path / "out"), tmp_path)
    assert [sample["text"] for sample in samples] == ["a\ufffd", "\U0001f600", "\ufffd"]
    assert report.replaced == 3


@pytest.mark.parametrize(
    "content", [gzip.compress(b"text", mtime=0), b"\x89PNG\r\n", "é".encode("utf-16")]
)
def test_a_file_that_is_not_text_stays_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "notes").write_bytes(content)
    refuse("The data starts like", tmp_path / "notes", errors="replace")


def test_the_command_says_in_how_many_documents(tmp_path: Path, cli: Any) -> None:
    write_lines(tmp_path / "a.jsonl")
    command = ["convert", str(tmp_path / "a.jsonl"), str(tmp_path / "out")]
    assert (
        "  replaced   characters that are not Unicode, in 1 document\n"
        in cli(*command, "--errors", "replace").out
    )
    assert json.loads(cli(*command, "--errors", "replace", "--json").out)["replaced"] == 1
    refuse("errors was 'replace' and is now None", tmp_path / "a.jsonl")


def test_an_unknown_choice_is_a_value_error(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl")
    refuse("errors is 'ignore'", tmp_path / "a.jsonl", errors="ignore", error=ValueError)
