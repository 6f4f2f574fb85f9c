"""With errors="replace", what is not Unicode becomes U+FFFD, and the documents are counted."""

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
from streaming import MDSWriter

from cloudload.errors import ConvertError
from cloudload.tools.convert.convert import convert_to_mds
from testkit.conversions import QUIET, convert, read_dataset, refuse

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
