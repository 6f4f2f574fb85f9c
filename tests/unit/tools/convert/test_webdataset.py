"""WebDataset archives are read sample by sample, and hostile members do no harm."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import webdataset

from cloudload.errors import ConvertError
from testkit.conversions import (
    COMPRESSORS,
    convert,
    convert_and_read,
    convert_texts,
    documents,
    read_dataset,
    refuse,
    texts,
)
from testkit.readers import check_blocks

DOCUMENTS = documents(120)


def write_webdataset(path: Path) -> None:
    """Write the first 30 documents, each with its index and an image."""
    with path.open("wb") as file, webdataset.TarWriter(file) as writer:
        for number, text in enumerate(DOCUMENTS[:30]):
            writer.write(
                {"__key__": f"{number:06}", "txt": text, "json": {"n": number}, "jpg": b"\xff" * 99}
            )


def write_tar(path: Path, members: Iterable[tuple[str, str | bytes]], **options: Any) -> Path:
    """Write (name, content) pairs to a tar archive with Python's `tarfile`, and return its path."""
    with tarfile.open(path, "w", **options) as tar:
        for name, data in members:
            stored = data.encode() if isinstance(data, str) else data
            member = tarfile.TarInfo(name)
            member.size = len(stored)
            tar.addfile(member, io.BytesIO(stored))
    return path


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz", "a.tar.zst", "a.txz", "a.tar.bz2"])
def test_archives_that_webdataset_wrote_are_read(tmp_path: Path, name: str) -> None:
    write_webdataset(tmp_path / "plain")
    extension = {"a.tgz": ".gz", "a.txz": ".xz"}.get(name, name.removeprefix("a.tar"))
    path = tmp_path / name
    path.write_bytes(COMPRESSORS[extension]((tmp_path / "plain").read_bytes()))
    report = convert(path, tmp_path / "out", keep=["n"], block_bytes=999)
    assert read_dataset(str(tmp_path / "out"), tmp_path) == [
        {"id": f"{number:06}", "text": text, "n": number}
        for number, text in enumerate(DOCUMENTS[:30])
    ]
    assert report.input_bytes == path.stat().st_size
    check_blocks(path, keep=["jpg"])


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_reader_restarts_at_names_of_any_length(tmp_path: Path, format: int) -> None:
    names = [f"{'long/' * 60}{number}.é.txt" for number in range(50)]
    path = write_tar(tmp_path / "a.tar", zip(names, DOCUMENTS[:50], strict=True), format=format)
    refuse(r"the record has no field 'text'. Its fields are: é.txt. Set text_key", path)
    assert convert_texts(path, text_key="é.txt") == DOCUMENTS[:50]
    check_blocks(path)


def test_the_text_may_be_in_the_json_or_in_a_file_of_another_extension(tmp_path: Path) -> None:
    members: list[tuple[str, str | bytes]] = [
        ("./a.json", json.dumps({"text": "one", "id": "mine", "n": 1})),
        ("b.json", json.dumps({"text": "not this", "n": 2})),
        ("b.txt", "two"),
        ("b.md", "# two"),
        ("._b.txt", "hidden"),
        ("sub/c.txt", b"\xef\xbb\xbfthree"),
        ("sub/c.n", "3"),
    ]
    path = write_tar(tmp_path / "a.tar", members)
    assert convert_and_read(path, keep=["n:int"]) == [
        {"id": "mine", "text": "one", "n": 1},
        {"id": "b", "text": "two", "n": 2},
        {"id": "sub/c", "text": "three", "n": 3},
    ]
    report = convert(path, tmp_path / "md", text_key="md", keep=["txt:bytes"], skip_bad=True)
    assert report.bad == 1
    assert [(s["text"], s["txt"]) for s in read_dataset(str(tmp_path / "md"), tmp_path)] == [
        ("# two", b"two"),
        ("three", b"\xef\xbb\xbfthree"),
    ]


@pytest.mark.parametrize("name", ["part-0.jsonl", "x/part.parquet", "part.0.csv.gz", "b.jsonl.zst"])
def test_an_archive_of_files_of_many_records_is_refused_with_a_way_out(
    tmp_path: Path, name: str
) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.txt", "a"), (name, '{"text": "a"}\n')])
    with pytest.raises(ConvertError) as raised:
        convert(path, skip_bad=True)
    assert f"{path} is not a WebDataset, because {name} is a file of many records" in str(
        raised.value
    )
    assert "Unpack the archive, and convert the folder" in str(raised.value)


def test_an_archive_of_text_files_has_a_document_in_each(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for number in range(3):
        (tmp_path / "docs" / f"{number}.txt").write_text(f"t{number}")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "docs", "./docs")
    samples = sorted((s["id"], s["text"]) for s in convert_and_read(tmp_path / "a.tar.gz"))
    assert samples == [(f"docs/{number}", f"t{number}") for number in range(3)]


BAD_MEMBERS: dict[str, tuple[list[tuple[str, str | bytes]], str]] = {
    "encoding": ([("b.txt", b"\xff")], "b: the .txt file is not UTF-8 (byte 0xff at offset 0)"),
    "json": ([("b.json", "{")], "b: the .json file is invalid JSON ("),
    "list": ([("b.json", "[1]")], "b: the .json file is a list, not an object"),
    "twice": ([("b.txt", "x"), ("b.txt", "y")], "b: the sample has two files with the extension"),
    "bare": ([("b/README", "x")], "b/README: the file name has no extension"),
    "images": ([("b.jpg", "x")], "b: the record has no field 'text'. Its fields are: jpg"),
}


@pytest.mark.parametrize("kind", BAD_MEMBERS)
def test_a_bad_sample_stops_the_run_and_is_named(tmp_path: Path, kind: str) -> None:
    members, message = BAD_MEMBERS[kind]
    path = write_tar(
        tmp_path / "a.tar",
        [("a.txt", "a"), *members, ("c.txt", "c")],
        encoding="utf-8",
        errors="surrogateescape",
        format=tarfile.GNU_FORMAT,
    )
    said = refuse("", path, tmp_path / "out")
    assert message in said
    report = convert(path, tmp_path / "out", skip_bad=True)
    assert (report.documents, report.bad) == (2, 1)


def test_hostile_names_links_and_sizes_touch_nothing(tmp_path: Path) -> None:
    path, victim = tmp_path / "in" / "a.tar", tmp_path / "victim.txt"
    path.parent.mkdir()
    victim.write_text("safe")
    names = ["../victim.txt", str(victim), "/etc/passwd.txt", "a/../../victim.txt"]
    with tarfile.open(path, "w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 3
            tar.addfile(member, io.BytesIO(b"bad"))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            member = tarfile.TarInfo(f"link{kind!r}.txt")
            member.type, member.linkname = kind, str(victim)
            tar.addfile(member)
    report = convert(path, tmp_path / "out", skip_bad=True)
    assert (report.documents, report.bad) == (4, 2)
    assert "is a link. Links are not read" in report.bad_records[0]
    assert victim.read_text() == "safe"
    assert [each.name for each in path.parent.iterdir()] == ["a.tar"]
    huge = tarfile.TarInfo("b.txt")
    huge.size = 1 << 50
    path.write_bytes(huge.tobuf())
    refuse("the tar archive is damaged or incomplete", path, tmp_path / "out2")


def flip_header(data: bytes) -> bytes:
    """Damage the tar header of `000060.txt`, halfway through the archive."""
    place = data.index(b"000060.txt")
    return data[:place] + b"X" + data[place + 1 :]


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], int, str]] = {
    "header": (flip_header, 60, "is damaged from this point on (invalid header)"),
    "truncated": (lambda data: data[: data.index(b"000060.txt") + 520], 60, "damaged or incompl"),
    "cut": (lambda data: data[: data.index(b"000060.txt")], 60, "has no end marker"),
    "joined": (lambda data: data + data, 120, "ends here, but more data follows"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_archive_never_ends_in_silence(tmp_path: Path, kind: str) -> None:
    damage, kept, message = DAMAGES[kind]
    path = tmp_path / "a.tar"
    write_tar(path, [(f"{number:06}.txt", text) for number, text in enumerate(DOCUMENTS)])
    path.write_bytes(damage(path.read_bytes()))
    said = refuse("", path)
    assert message in said
    report = convert(path, skip_bad=True, block_bytes=999)
    assert report.bad == 1
    found = texts(str(tmp_path / "out"), tmp_path)
    assert found == DOCUMENTS[: len(found)]
    assert kept - 1 <= len(found) <= kept


def test_a_file_that_is_no_archive_is_named(tmp_path: Path) -> None:
    for data in (b"", b"text" * 500):
        (tmp_path / "a.tar").write_bytes(data)
        refuse(rf"{tmp_path}/a.tar:sample 1: the tar archive is", tmp_path / "a.tar")
