"""A file that is not what its name says is refused, with the way out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from cloudload.errors import ConvertError
from testkit.conversions import COMPRESSORS, convert, convert_and_read, convert_texts

POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
NAMES = "jsonl jsonl.gz jsonl.zst json csv tsv.xz txt txt.gz parquet parquet.gz arrow tar tar.gz"
LINE = b'{"text": "a"}\n'


def refuse(path: Path, *parts: str, **options: Any) -> None:
    """Check that a conversion of the file is refused with a message that has these parts."""
    with pytest.raises(ConvertError) as raised:
        convert(path, path.parent / "out", **options)
    for part in (str(path), *parts):
        assert part in str(raised.value)


@pytest.mark.parametrize("name", NAMES.split())
def test_a_git_lfs_pointer_is_named_in_every_format(tmp_path: Path, name: str) -> None:
    (tmp_path / f"a.{name}").write_bytes(POINTER)
    refuse(tmp_path / f"a.{name}", "the file is a Git LFS pointer", "git lfs pull")


def test_a_git_lfs_pointer_in_the_place_of_an_index_is_named(tmp_path: Path, cli: Any) -> None:
    (tmp_path / "index.json").write_bytes(POINTER)
    assert (
        "is not an MDS index: the file is a Git LFS pointer" in cli("info", tmp_path, status=1).err
    )


def test_a_pointer_among_texts_is_counted_as_bad(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(POINTER)
    (tmp_path / "in" / "b.txt").write_text("version https is a phrase")
    report = convert(tmp_path / "in", skip_bad=True)
    assert (report.documents, report.bad) == (1, 1)
    assert "in/a.txt: the file is a Git LFS pointer" in report.bad_records[0]


@pytest.mark.parametrize("extension", [".gz", ".bz2", ".xz", ".zst"])
def test_a_plain_file_with_the_extension_of_a_compression_is_named(
    tmp_path: Path, extension: str
) -> None:
    path = tmp_path / f"a.jsonl{extension}"
    path.write_bytes("é".encode().join([LINE] * 99))
    refuse(path, "the file is not ", """It starts with the text '{"text": "a"}""", "Rename it")


def test_a_file_of_another_compression_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(COMPRESSORS[".zst"](LINE))
    refuse(path, "the file is not gz data. It starts like zstd. Rename the file to end in .zst")


@pytest.mark.parametrize(
    "name", ["a.jsonl.gz", "a.jsonl.gz.gz", "a.txt.gz", "a.csv.gz", "a.tar.gz"]
)
@pytest.mark.parametrize("inner", [".gz", ".zst"])
def test_a_file_that_was_compressed_twice_is_named(tmp_path: Path, name: str, inner: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(COMPRESSORS[inner](LINE * 99)))
    refuse(tmp_path / name, "it was compressed twice. Unpack the file once")


@pytest.mark.parametrize("codec", ["UTF-16LE", "UTF-16BE"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json", "a.csv", "a.txt.gz"])
def test_utf_16_without_a_byte_order_mark_is_named(tmp_path: Path, name: str, codec: str) -> None:
    data = COMPRESSORS[".gz" if name.endswith("gz") else ""]('{"text": "a"}'.encode(codec))
    (tmp_path / name).write_bytes(data)
    refuse(tmp_path / name, "UTF-16 without a byte order mark", f"iconv -f {codec}")


def test_a_text_that_has_nul_characters_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\0\0a\0bc")
    assert convert_texts(tmp_path / "a.txt") == ["\0\0a\0bc"]


JOINED = {
    "two objects on a line": (
        b'{"text": "a"}{"text": "b"}',
        "invalid JSON (Extra data at column 14). Write one object per line: jq -c . FILE",
    ),
    "a separator between objects": (b'{"text": "a"}\x1e{"text": "b"}', "one object per line: jq"),
    "a comma at the end": (b'{"text": "a"},', "Remove the comma after the object"),
}


@pytest.mark.parametrize("case", JOINED)
def test_a_line_of_several_values_is_explained(tmp_path: Path, case: str) -> None:
    line, message = JOINED[case]
    (tmp_path / "a.jsonl").write_bytes(LINE + line + b"\n")
    refuse(tmp_path / "a.jsonl", "a.jsonl:2: ", message)


@pytest.mark.parametrize("sign", [b"\xef\xbb\xbf", b"\x1e", b"\xef\xbb\xbf\x1e"])
def test_marks_before_an_object_are_not_part_of_it(tmp_path: Path, sign: bytes) -> None:
    lines = [sign + json.dumps({"text": text}).encode() + b"\r\n" for text in "abc"]
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines))
    assert convert_texts(tmp_path / "a.jsonl") == ["a", "b", "c"]


def test_a_byte_order_mark_within_joined_tables_is_not_part_of_a_value(tmp_path: Path) -> None:
    table = b"\xef\xbb\xbftext,id\na,1\n"
    (tmp_path / "a.csv").write_bytes(table + table)
    refuse(tmp_path / "a.csv", "a.csv:3: the record repeats the header. If files were joined")
    (tmp_path / "a.csv").write_bytes(table + b"\xef\xbb\xbfb,2\n")
    samples = convert_and_read(tmp_path / "a.csv")
    assert samples == [{"id": "1", "text": "a"}, {"id": "2", "text": "b"}]
