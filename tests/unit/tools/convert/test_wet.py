"""The text of each page in a WET file of Common Crawl is a document."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from testkit.conversions import convert, read_dataset, refuse
from testkit.readers import check_blocks, read_records

INFO = (
    b"WARC/1.0\r\nWARC-Type: warcinfo\r\nContent-Length: 21\r\n\r\nisPartOf: CC-MAIN-1\r\n\r\n\r\n"
)


def page(number: int, text: bytes, kind: str = "conversion") -> bytes:
    head = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: http://a.org/{number}\r\n"
        f"WARC-Record-ID: <urn:uuid:{number}>\r\nContent-Length: {len(text)}\r\n\r\n"
    )
    return head.encode() + text + b"\r\n\r\n"


def texts_of(count: int) -> list[str]:
    return [f"page {number} é\n\nWARC/1.0\r\n" * (number % 9 + 1) for number in range(count)]


def members(count: int) -> list[bytes]:
    return [INFO, *(page(number, text.encode()) for number, text in enumerate(texts_of(count)))]


@pytest.mark.parametrize("name", ["CC-1.warc.wet", "CC-1.warc.wet.gz", "a.wet.gz"])
def test_each_page_is_a_document_with_its_headers_as_fields(tmp_path: Path, name: str) -> None:
    parts = members(50)
    joined = b"".join(map(gzip.compress, parts)) if name.endswith("gz") else b"".join(parts)
    (tmp_path / name).write_bytes(joined)
    for number, block_bytes in enumerate((1, 3000, 1 << 20)):
        out = tmp_path / f"out-{number}"
        report = convert(tmp_path / name, out, keep=["WARC-Target-URI"], block_bytes=block_bytes)
        samples = read_dataset(str(out), tmp_path)
        assert [sample["text"] for sample in samples] == texts_of(50)
        assert samples[7]["id"] == "urn:uuid:7"
        assert samples[7]["WARC-Target-URI"] == "http://a.org/7"
        assert (report.bad, report.input_bytes) == (0, (tmp_path / name).stat().st_size)
    check_blocks(tmp_path / name)


@pytest.mark.parametrize("cut", [-5, -40, -400])
def test_a_file_that_was_cut_off_is_named_and_its_whole_pages_are_kept(
    tmp_path: Path, cut: int
) -> None:
    path = tmp_path / "a.wet"
    path.write_bytes(b"".join([*members(9), page(9, b"x" * 300)])[:cut])
    refuse(rf"{path}:11.*(ends within a record|no valid Content)", path)
    report = convert(path, skip_bad=True)
    assert (report.documents, report.bad) == (9, 1)


def test_what_is_no_text_is_a_bad_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudload.data.file_content.MOST_RECORD_BYTES", 1000)
    path = tmp_path / "a.wet"
    pages = [page(0, b"<html>", "response"), page(1, b"\xff"), page(2, b"x" * 1001), page(3, b"a")]
    path.write_bytes(b"".join(pages) + b"<html>")
    problems = [
        "the type of the record is response, and only conversion has text",
        "the record is not UTF-8 (byte 0xff at offset 0)",
        "the record is larger than 1 GiB, the limit of a record",
        None,
        "the file has no record of WARC from this point on",
    ]
    found = read_records(path)
    assert [record.problem for record in found] == problems
    assert [record.place for record in found] == ["1", "2", "3", "4", "5"]
    report = convert(path, skip_bad=True, errors="replace")
    assert (report.documents, report.bad, report.replaced) == (2, 3, 1)


@pytest.mark.parametrize("length", ["-5", "x", "", "9" * 5000])
def test_a_wrong_length_ends_the_file(tmp_path: Path, length: str) -> None:
    head = f"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: {length}\r\n\r\n"
    (tmp_path / "a.wet").write_bytes(page(1, b"good") + head.encode() + b"abcde")
    good, bad = read_records(tmp_path / "a.wet")
    assert (good.problem, bad.fields) == (None, None)


@pytest.mark.parametrize("name", ["a.warc.gz", "a.warc", "a.warc.wat.gz"])
def test_raw_pages_are_refused_with_a_way_out(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"WARC/1.0\r\n")
    refuse(r"without their text\. Use the WET files of the crawl", tmp_path / name)
