"""Bad records are counted per file, and written to a file of rejects with their contents."""

from __future__ import annotations

import base64
import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from cloudload.convert import convert_to_mds
from cloudload.tools.convert.sample_encoding import MOST_CHARACTERS
from testkit.conversions import QUIET, convert_lines, documents, make_input, refuse_lines


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Parse a file of rejects, which has one JSON object per line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def convert(source: Any, tmp_path: Path, **options: Any) -> list[dict[str, Any]]:
    """Convert `source`, skipping bad records, and return its rejects."""
    rejects = tmp_path / "bad" / "rejects.jsonl"
    options = {**QUIET, "skip_bad": True, "rejects": rejects, **options}
    convert_to_mds(source, tmp_path / "out", **options)
    return read_lines(rejects)


def test_lines_are_kept_as_they_were(tmp_path: Path) -> None:
    lines: list[bytes] = [b'{"text": "a"}', b'{"body": "x"}', b'{"text"', b'{"text": "\xff"}']
    lines += [b'{"text": "' + b"x" * MOST_CHARACTERS]
    report = convert_lines(tmp_path, lines, skip_bad=True, rejects=tmp_path / "rejects.jsonl")
    field, broken, not_text, long = read_lines(tmp_path / "rejects.jsonl")
    assert field == {
        "file": "a.jsonl",
        "place": "2",
        "error": "the record has no field 'text'. Its fields are: body",
        "record": '{"body": "x"}',
    }
    assert (broken["place"], broken["record"]) == ("3", '{"text"')
    assert base64.b64decode(not_text["record_base64"]) == lines[3]
    assert "record" not in not_text
    assert long["record"] == lines[4].decode()[:MOST_CHARACTERS]
    assert long["characters"] == len(lines[4])
    assert report.bad_files == {"a.jsonl": 4}


def test_a_conversion_without_bad_records_has_an_empty_file(tmp_path: Path) -> None:
    convert_lines(tmp_path, ['{"text": "a"}'], skip_bad=True, rejects=tmp_path / "rejects.jsonl")
    assert (tmp_path / "rejects.jsonl").read_bytes() == b""


@pytest.mark.parametrize(
    ("name", "data", "place", "record"),
    [
        ("a.csv", b"id,text\n1,a\n2,b,c\n", "3", "2,b,c\n"),
        ("a.json", b'[{"text": "a"}, {"text": 5}]', "2", '{"text": 5}'),
        ("b.txt", b"ab\n\xff", "2", None),
    ],
)
def test_each_format_gives_the_bytes_of_its_record(
    tmp_path: Path, name: str, data: bytes, place: str, record: str | None
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(data)
    (tmp_path / "z.txt").write_text("good")
    (reject,) = convert([tmp_path / "in", tmp_path / "z.txt"], tmp_path)
    assert (reject["file"], reject["place"], reject.get("record")) == (name, place, record)
    if record is None:
        assert base64.b64decode(reject["record_base64"]) == data


def test_formats_without_bytes_of_a_record_give_its_fields(tmp_path: Path) -> None:
    rows = [{"text": "a", "n": 1}, {"text": None, "n": 2}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    (reject,) = convert(tmp_path / "a.parquet", tmp_path, keep=["n"])
    assert json.loads(reject["record"]) == rows[1]
    assert (reject["file"], reject["place"]) == ("a.parquet", "2")


def test_samples_of_an_archive_give_their_json(tmp_path: Path) -> None:
    for name, data in {"1.json": '{"text": "a"}', "2.json": "[3"}.items():
        (tmp_path / name).write_text(data)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("1.json", "2.json"):
            archive.add(tmp_path / name, name)
    (reject,) = convert(tmp_path / "a.tar", tmp_path)
    assert (reject["place"], reject["record"]) == ("2", "[3")


def test_files_with_the_most_bad_records_come_first_in_report_and_summary(
    tmp_path: Path, cli: Any
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(1, 8):
        lines = ["{", *[""], '{"text": "a"}\n'] * number
        (tmp_path / "in" / f"{number}.jsonl").write_text("\n".join(lines))
    arguments = ["convert", str(tmp_path / "in"), str(tmp_path / "out"), "--processes", "1"]
    arguments += ["--skip-bad", "--rejects", str(tmp_path / "rejects.jsonl")]
    printed = cli(*arguments).out
    worst = "7 in 7.jsonl, 6 in 6.jsonl, 5 in 5.jsonl, 4 in 4.jsonl, 3 in 3.jsonl"
    assert f"  bad        {worst}, fewer in 2 other files\n" in printed
    report = json.loads((tmp_path / "out" / "convert-report.json").read_text())["report"]
    assert report["bad_files"] == {f"{number}.jsonl": number for number in range(7, 0, -1)}
    assert len(read_lines(tmp_path / "rejects.jsonl")) == 28


def test_rejects_of_a_finished_conversion_cannot_be_had_later(tmp_path: Path) -> None:
    lines, rejects = ['{"text": "a"}', "{"], tmp_path / "rejects.jsonl"
    convert_lines(tmp_path, lines, skip_bad=True)
    refuse_lines(
        "its bad records were not written to", tmp_path, lines, skip_bad=True, rejects=rejects
    )
    convert_lines(tmp_path, lines, skip_bad=True, rejects=rejects, overwrite=True)
    before = rejects.read_bytes()
    assert convert_lines(tmp_path, lines, skip_bad=True, rejects=rejects).already_complete
    assert rejects.read_bytes() == before


def test_rejects_without_skip_bad_or_among_the_inputs_are_refused(tmp_path: Path) -> None:
    refuse_lines(
        r"rejects \(--rejects\) requires skip_bad",
        tmp_path,
        ['{"text": "a"}'],
        rejects=tmp_path / "rejects.jsonl",
        error=ValueError,
    )
    source, options = make_input(tmp_path / "texts", "text", documents(3))
    with pytest.raises(ValueError, match="is inside the input"):
        convert(source(), tmp_path, rejects=tmp_path / "texts" / "rejects.jsonl", **options)
