"""Texts are read unchanged from CSV and TSV files, and errors name bad records."""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload.tools.convert.readers.csv import split_records
from testkit.conversions import (
    COMPRESSORS,
    convert,
    convert_and_read,
    convert_texts,
    read_dataset,
    refuse,
    texts,
)
from testkit.examples import EXAMPLES
from testkit.readers import check_blocks

HARD = ["a", 'say "hi"', "one\ntwo\r\n\r\nthree", ",", '"', '""', "\t", "007", "Füchse 狐", " x "]


def write_table(path: Path, **options: Any) -> list[str]:
    """Use pandas to write 200 rows whose texts contain quotes and newlines. Return the texts."""
    import pandas

    draw = random.Random(3)
    documents = [" ".join(draw.choices(HARD, k=draw.randint(1, 30))) for _ in range(200)]
    table = pandas.DataFrame({"n": range(200), "text": documents, "code": ["007"] * 200})
    table.to_csv(path, index=False, **options)
    return documents


@pytest.mark.parametrize("name", ["a.csv", "a.TSV", "a.csv.gz", "a.tsv.zst", "a.csv.bz2"])
def test_tables_that_pandas_wrote_are_read_as_it_wrote_them(tmp_path: Path, name: str) -> None:
    plain = tmp_path / "plain"
    documents = write_table(plain, sep="\t" if "tsv" in name.lower() else ",")
    extension = name[name.find(".", 2) :] if name.count(".") > 1 else ""
    path = tmp_path / name
    path.write_bytes(COMPRESSORS[extension](plain.read_bytes()))
    report = convert(path, tmp_path / "out", keep=["n:int32", "code"])
    samples = read_dataset(str(tmp_path / "out"), tmp_path)
    assert [sample["text"] for sample in samples] == documents
    assert [sample["n"] for sample in samples] == list(range(200))
    assert {sample["code"] for sample in samples} == {"007"}
    assert report.columns == {"text": "str", "id": "str", "n": "int32", "code": "json"}
    assert report.input_bytes == path.stat().st_size


@pytest.mark.parametrize("extension", ["", ".gz"])
def test_a_reader_restarts_at_every_block(tmp_path: Path, extension: str) -> None:
    write_table(tmp_path / "plain")
    path = tmp_path / f"a.csv{extension}"
    path.write_bytes(COMPRESSORS[extension]((tmp_path / "plain").read_bytes()))
    check_blocks(path)


@settings(max_examples=EXAMPLES)
@given(
    rows=st.lists(st.lists(st.text('a",\n\r\t é', max_size=6), min_size=2, max_size=2), max_size=8),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    end=st.sampled_from(["\n", "\r\n"]),
    size=st.integers(1, 9),
)
def test_records_are_split_where_the_csv_module_splits_them(
    *, rows: list[list[str]], quoting: int, end: str, size: int
) -> None:
    if quoting == csv.QUOTE_MINIMAL:  # some Python versions do not quote a lone \r
        rows = [[text.replace("\r", "") for text in row] for row in rows]
    file = io.StringIO()
    csv.writer(file, quoting=quoting, lineterminator=end).writerows(rows)  # type: ignore[arg-type]
    data = file.getvalue().encode()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    records = list(split_records(pieces, b","))
    assert b"".join(records) == data
    assert [next(csv.reader([record.decode()])) for record in records] == rows


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    import pandas

    pandas.DataFrame({"text": ["a"]}).to_csv(tmp_path / "a.csv", encoding="utf-8-sig", index=False)
    assert convert_and_read(tmp_path / "a.csv") == [{"id": "a.csv:2", "text": "a"}]


def test_a_record_is_named_by_the_line_where_it_begins(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text,id\n"1\n2\n3",\n\nb,\nc,7\n')
    samples = convert_and_read(tmp_path / "a.csv")
    assert [sample["id"] for sample in samples] == ["a.csv:2", "a.csv:6", "7"]


def test_a_field_may_be_larger_than_the_limit_of_the_csv_module(tmp_path: Path) -> None:
    import pandas

    before = csv.field_size_limit()
    long = "long, " * before
    pandas.DataFrame({"text": ["a", long]}).to_csv(tmp_path / "a.csv", index=False)
    assert convert_texts(tmp_path / "a.csv") == ["a", long]
    assert csv.field_size_limit() == before


BAD_RECORDS = {
    b"a,1,2\n": "the number of fields is not that of the header (3, and the header has 2)",
    b"a\n": "the number of fields is not that of the header (1, and the header has 2)",
    "é,1\n".encode(
        "latin-1"
    ): "the record is not UTF-8 (byte 0xe9 at offset 0). Convert the file to UTF-8",
    b"a,x\n": "the field 'n' is not int (it is 'x')",
    b"a,\n": "the field 'n' is missing or null, not int",
    b'"Heroes" by Bowie,1\n': "the record has text after a closing quote. If quotes in this",
    b'"a\nb"c",1\n': "the record has text after a closing quote. If quotes in this file are plain",
    b"text,n\n": "the record repeats the header. If files were joined, convert each one separately",
    b"a\rb,1\n": "the record has a carriage return without a newline, outside quotes",
}


@pytest.mark.parametrize("record", BAD_RECORDS, ids=str)
def test_a_bad_record_stops_the_run_and_is_named(tmp_path: Path, record: bytes) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,n\ngood,1\n"go\nod",2\n' + record + b"good,3\n")
    said = refuse("", path, keep=["n:int"])
    assert f"{path}:5: {BAD_RECORDS[record]}" in said
    report = convert(path, keep=["n:int"], skip_bad=True)
    assert (report.documents, report.bad) == (3, 1)


@pytest.mark.parametrize("block_bytes", [1, 1000])
def test_a_quote_that_nothing_closes_is_named_where_its_record_begins(
    tmp_path: Path, block_bytes: int
) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('n\ttext\n1\tgood\n2\t"Hello\n3\tlost\n')
    refuse(rf"{path}:3: a quoted field .* has no closing quote", path)
    report = convert(path, skip_bad=True, block_bytes=block_bytes)
    assert (report.documents, report.bad) == (1, 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("text,n\na,1\n".encode("utf-16"), "a.csv:1: the file is UTF-16, not UTF-8"),
        ("né,text\n1,a\n".encode("latin-1"), "a.csv:1: the header is not UTF-8"),
        (b"text,n,text\na,1,b\n", "a.csv:1: the header has the field 'text' twice"),
        (b'"text\na\n', "a.csv:1: a quoted field"),
        (b"body\na\n", "the record has no field 'text'. Its fields are: body. Set text_key"),
        (b"text\n", "no documents in a.csv (empty documents: 0, bad records: 0)"),
        (b"", "no documents in a.csv (empty documents: 0, bad records: 0)"),
        (b"\r\n\n", "no documents in a.csv (empty documents: 0, bad records: 0)"),
        (b"\nbody\na\n", "a.csv:3: the record has no field 'text'. Its fields are: body"),
        (b'\n"text" x,n\na\n', "a.csv:2: the header has text after a closing quote"),
        (b"id;text\n1;a\n", "a.csv:1: the header has only the field 'id;text'. If semicolons"),
        (b"id\ttext\n1\ta\n", "If tabs separate the fields, set format (--format) to tsv"),
    ],
    ids=str,
)
def test_a_header_that_cannot_be_used_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.csv").write_bytes(data)
    said = refuse("", tmp_path / "a.csv")
    assert message in said


def test_a_truncated_table_is_named_and_its_whole_records_are_kept(tmp_path: Path) -> None:
    documents = write_table(tmp_path / "plain")
    path = tmp_path / "a.csv.gz"
    path.write_bytes(COMPRESSORS[".gz"]((tmp_path / "plain").read_bytes())[:-400])
    refuse(rf"{path}:\d+: the gz data ends too early", path)
    report = convert(path, skip_bad=True)
    kept = texts(str(tmp_path / "out"), tmp_path)
    assert (report.bad, kept) == (1, documents[: len(kept)])
    assert len(kept) > 10


HEADS = {
    "a newline": b"\n",
    "several line endings": b"\r\n\n\r\n",
    "a byte order mark": b"\xef\xbb\xbf\n",
    "a byte order mark after a newline": b"\n\xef\xbb\xbf",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("extension", ["", ".gz"])
def test_blank_lines_before_a_header_are_skipped(
    tmp_path: Path, head: bytes, extension: str
) -> None:
    path = tmp_path / f"a.csv{extension}"
    head = head.removesuffix(b"\xef\xbb\xbf") if head.startswith(b"\n") else head
    path.write_bytes(
        COMPRESSORS[extension](head + b"text,id\nhello,1\n\nworld,\n" + 99 * b"last,3\n")
    )
    samples = convert_and_read(path)
    line = head.count(b"\n") + 4
    assert [sample["text"] for sample in samples[:3]] == ["hello", "world", "last"]
    assert [sample["id"] for sample in samples[:3]] == ["1", f"a.csv{extension}:{line}", "3"]
    check_blocks(path)


DUMP = b'\nid\ttext\n1\t"Heroes" by Bowie\n2\t"foo\r\n3\t"bar\n4\tplain\n5\t"in quotes"'


def test_quotes_are_plain_text_on_request(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(DUMP)
    refuse(r"a.tsv:3, the first .* after a closing quote.*quoting", path)
    for block_bytes in (1, 1000):
        out = tmp_path / f"out-{block_bytes}"
        convert(path, out, quoting="none", block_bytes=block_bytes)
        samples = {sample["id"]: sample["text"] for sample in read_dataset(str(out), tmp_path)}
        assert samples == {
            **{"1": '"Heroes" by Bowie', "2": '"foo', "3": '"bar'},
            **{"4": "plain", "5": '"in quotes"'},
        }


def test_a_resumed_conversion_may_not_change_its_quoting(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\nplain\n")
    convert(tmp_path / "a.tsv")
    refuse("quoting was None and is now 'none'", tmp_path / "a.tsv", quoting="none")
    refuse(
        r"quoting is 'off'\. Use one of csv, none",
        tmp_path / "a.tsv",
        tmp_path / "out2",
        quoting="off",
        error=ValueError,
    )


@pytest.mark.parametrize("quoting", ["csv", "none"])
def test_a_record_above_the_limit_ends_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quoting: str
) -> None:
    monkeypatch.setattr("cloudload.data.file_content.MOST_RECORD_BYTES", 1 << 17)
    path = tmp_path / "a.csv"
    path.write_bytes(b"text\ngood\n" + b"x" * (1 << 18) + b"\nlost\n")
    refuse(r"a\.csv:3: the record is larger than the limit", path, quoting=quoting)
    report = convert(path, quoting=quoting, skip_bad=True)
    assert (report.documents, report.bad) == (1, 1)
