"""Every format is read with every compression, and errors name bad records."""

from __future__ import annotations

import datetime
import gzip
import json
import random
import resource
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import _registry

from cloudload.data import file_content
from cloudload.errors import ConvertError
from cloudload.tools.convert.convert import convert_to_mds
from cloudload.tools.convert.input_files import InputFile, read_decompressed
from testkit.conversions import (
    COMPRESSORS,
    QUIET,
    convert,
    convert_and_read,
    convert_lines,
    read_dataset,
    refuse,
    refuse_lines,
    texts,
)
from testkit.readers import check_blocks, read_records


@pytest.mark.parametrize("extension", COMPRESSORS)
def test_json_lines_are_read_under_every_compression(tmp_path: Path, extension: str) -> None:
    halves = ['{"text": "a"}\n\n{"text": "b"}\r\n', '{"text": "c", "id": 7}']
    stored = b"".join(COMPRESSORS[extension](half.encode()) for half in halves)
    (tmp_path / f"x.json{extension}").write_bytes(stored)
    report = convert(str(tmp_path / "x.json*"), tmp_path / "out")
    assert read_dataset(str(tmp_path / "out"), tmp_path) == [
        {"id": f"x.json{extension}:1", "text": "a"},
        {"id": f"x.json{extension}:3", "text": "b"},
        {"id": "7", "text": "c"},
    ]
    assert report.input_bytes == len(stored)


def test_text_files_are_a_document_each_and_sorted(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "x.md").write_bytes(b"\xef\xbb\xbf# b\r\n")
    (folder / "a.py").write_text("print()\n")
    (folder / "c.txt.gz").write_bytes(gzip.compress(b"c"))
    (folder / ".hidden").write_text("no")
    assert [(sample["id"], sample["text"]) for sample in convert_and_read(folder)] == [
        ("a.py", "print()\n"),
        ("b/x.md", "# b\r\n"),
        ("c.txt.gz", "c"),
    ]


def test_lines_of_text_are_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\r\nthree")
    report = convert(tmp_path / "a.txt", format="lines")
    assert texts(str(tmp_path / "out"), tmp_path) == ["one", "two", "three"]
    assert report.empty == 1


def test_parquet_rows_keep_their_columns(tmp_path: Path) -> None:
    rows = [
        {
            "text": f"t{n}",
            "id": n,
            "day": datetime.date(2024, 1, n + 1),
            "score": n / 2,
            "image": b"\xff",
        }
        for n in range(9)
    ]
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=4
    )
    report = convert_to_mds(
        tmp_path / "a.parquet", tmp_path / "out", keep=["day", "score"], processes=2, progress=False
    )
    samples = read_dataset(str(tmp_path / "out"), tmp_path)
    assert samples[8] == {"text": "t8", "id": "8", "day": "2024-01-09", "score": 4.0}
    assert len(samples) == 9
    assert report.input_bytes == (tmp_path / "a.parquet").stat().st_size


def nested_rows(tmp_path: Path, kind: str) -> Any:
    """Return two rows with their text in `page.body`, as a file or iterator of this kind."""
    rows = [{"n": n, "page": {"body": f"t{n}", "url": f"u{n}", "at": {"x": n}}} for n in range(2)]
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    return iter(rows) if kind == "rows" else path


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "rows"])
def test_fields_may_be_nested_and_are_listed_if_the_text_is_not_found(
    tmp_path: Path, kind: str
) -> None:
    names: dict[str, Any] = {
        "text_key": "page.body",
        "id_key": "page.url",
        "keep": ["page.at.x", "n"],
    }
    assert convert_and_read(nested_rows(tmp_path, kind), tmp_path / "out", **names) == [
        {"text": f"t{n}", "id": f"u{n}", "page.at.x": n, "n": n} for n in range(2)
    ]
    for text_key in ("text", "page.text", "n.body"):
        with pytest.raises(ConvertError) as raised:
            convert(nested_rows(tmp_path, kind), tmp_path / "none", text_key=text_key)
        assert f"no field '{text_key}'" in str(raised.value)
        assert "Its fields are: n, page.at.x, page.body, page.url. Set text_key" in str(
            raised.value
        )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a.xlsx", "is a table. Convert it"),
        ("a.DBF.gz", "is a table. Convert it"),
        ("shard.00000.mds.zstd", "Pass the folder that contains its index.json"),
        ("a.zip", "is an archive. Unpack it"),
        ("a.pdf", "Extract its text"),
        ("a.jsonl.lz4", "is compressed in an unsupported way"),
        ("photos/a.png", "is not text"),
    ],
)
@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_file_that_is_not_text_by_its_name_is_refused(
    tmp_path: Path, name: str, reason: str, skip_bad: bool
) -> None:
    for each in ("a.txt", "b.unknown", name, f"z/{name}"):
        (tmp_path / "in" / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / each).write_text("a,b")
    options = {**QUIET, "skip_bad": skip_bad}
    with pytest.raises(ConvertError) as raised:
        convert_to_mds(tmp_path / "in", tmp_path / "out", **options)
    assert name in str(raised.value)
    assert reason in str(raised.value)
    assert "(refused files in total: 2)" in str(raised.value)
    assert convert_to_mds(tmp_path / "in" / "[ab].[tu][xn]*", tmp_path / "out", **options).documents
    if "." not in name.removeprefix("a."):  # a compressed file is decompressed even as text
        told = convert_to_mds(tmp_path / "in" / name, tmp_path / "o2", format="text", **options)
        assert told.documents == 1


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("hello".encode("utf-16"), "UTF-16. Convert it with iconv"),
        (gzip.compress(b"hello", mtime=0), "gz. Rename the file to end in .gz"),
        (b"\x89PNG\r\n\x1a\n\0", "a PNG image"),
        (b"PAR1\x15\x04\x87", "Parquet. Rename the file to end in .parquet"),
    ],
)
def test_a_file_that_is_not_text_by_its_content_is_recognized(
    tmp_path: Path, content: bytes, kind: str
) -> None:
    (tmp_path / "notes").write_bytes(content)
    refuse(f"notes:1: the file is not UTF-8 .+ The data starts like {kind}", tmp_path / "notes")


@pytest.mark.parametrize(
    ("value", "encoding", "message"),
    [
        (10**5000, "int", "the field 'x' does not fit its encoding int (it is of type int: "),
        (-1, "uint8", "the field 'x' does not fit its encoding uint8 (it is -1: "),
        (1e300, "float32", "the field 'x' does not fit its encoding float32 (it is 1e+300: "),
        ("a\ud800", "str", "the field 'x' has an unpaired surrogate"),
        (
            {(1, 2): "a" * 999},
            "json",
            "the field 'x' cannot be written as JSON (it is {(1, 2): 'aaaaaaaaaaaa...aaaaaaaaaaa",
        ),
        (
            bytes(1 << 32),
            "bytes",
            "the sample is larger than the limit of an MDS shard (4,294,967,302 bytes, and",
        ),
    ],
    ids=["digits", "sign", "float", "surrogate", "keys", "4 GiB"],
)
def test_a_value_that_cannot_be_stored_is_named(
    tmp_path: Path, value: Any, encoding: str, message: str
) -> None:
    rows = iter([{"text": "a", "x": value}])
    said = refuse("", rows, tmp_path / "out", keep=[f"x:{encoding}"])
    assert f"row:1: {message}" in said


@pytest.mark.parametrize("extension", [".gz", ".bz2", ".xz", ".zst"])
def test_a_damaged_compressed_parquet_file_is_named(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"a.parquet{extension}"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b"]}), tmp_path / "whole")
    stored = COMPRESSORS[extension]((tmp_path / "whole").read_bytes())
    path.write_bytes(stored[:-9])
    refuse(f"{path}: the .* data ends too early, so the file is inco.* Repair the", path)
    path.write_bytes(b"\xff" + stored)
    refuse(f"{path}: the .* data is damaged from this point on", path)


@pytest.mark.parametrize("extension", ["", ".gz"])
@pytest.mark.parametrize("second", [["c", "d"], []])
def test_joined_parquet_files_are_refused(
    tmp_path: Path, extension: str, second: list[str]
) -> None:
    joined, path = b"", tmp_path / f"a.parquet{extension}"
    for several in (["a", "b"], second):
        rows = pyarrow.table({"text": several}, schema=pyarrow.schema([("text", "string")]))
        pyarrow.parquet.write_table(rows, tmp_path / "part", write_page_index=True)
        joined += COMPRESSORS[extension]((tmp_path / "part").read_bytes())
    path.write_bytes(joined)
    refuse(f"{path} cannot be read as Parquet: it consists of several Parquet files", path)


def test_a_disk_too_small_for_a_copy_of_a_parquet_file_is_named(tmp_path: Path) -> None:
    table = pyarrow.table({"text": ["a" * 4_000_000]})
    pyarrow.parquet.write_table(table, tmp_path / "whole", compression="none", use_dictionary=False)
    path = tmp_path / "a.parquet.gz"
    path.write_bytes(gzip.compress((tmp_path / "whole").read_bytes()))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, limits[1]))
        refuse(f"cannot copy {path} to .*Free disk space there", path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_datasets_objects_are_read(tmp_path: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_list([{"text": f"t{n}", "n": n} for n in range(30)])
    convert(
        datasets.DatasetDict(test=rows, train=rows.select(range(3))),
        tmp_path / "out",
        split="train",
        keep=["n"],
    )
    assert read_dataset(str(tmp_path / "out" / "train"), tmp_path)[2] == {
        "text": "t2",
        "id": "train:3",
        "n": 2,
    }
    convert_to_mds(rows.to_iterable_dataset(), tmp_path / "stream", processes=2, progress=False)
    assert len(texts(str(tmp_path / "stream"), tmp_path)) == 30


def test_a_dataset_is_loaded_by_name(tmp_path: Path) -> None:
    (tmp_path / "name").mkdir()
    (tmp_path / "name" / "train.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    assert [
        sample["id"]
        for sample in convert_and_read(f"hf://{tmp_path}/name?split=train", tmp_path / "out")
    ] == ["name:1", "name:2"]
    refuse(r"cannot load .*\(split 'test'\)", f"hf://{tmp_path}/name?split=test", tmp_path / "out2")


@pytest.mark.parametrize("kind", ["datasets", "buckets"])
def test_paths_on_the_hugging_face_hub_are_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    class Folder(DirFileSystem):  # type: ignore[misc]
        """A file system that reads `hf://` paths from `tmp_path` instead of the Hub."""

        protocol = "hf"

        def __init__(self) -> None:
            super().__init__(str(tmp_path), LocalFileSystem())

    monkeypatch.setitem(_registry, "hf", Folder)
    data = tmp_path / kind / "owner" / "name" / "data"
    data.mkdir(parents=True)
    (data / "a.jsonl").write_text('{"text": "a"}')
    pyarrow.parquet.write_table(pyarrow.table({"text": ["b"]}), data / "b.parquet")
    (data / "README.md").write_text("c")
    for number, (path, found) in enumerate(
        {
            "data": [("a.jsonl:1", "a"), ("b.parquet:1", "b")],
            "data/*.parquet": [("b.parquet:1", "b")],
            "data/a.jsonl": [("a.jsonl:1", "a")],
        }.items()
    ):
        out = tmp_path / f"out{number}"
        convert(f"hf://{kind}/owner/name/{path}", out)
        assert [(s["id"], s["text"]) for s in read_dataset(str(out), tmp_path)] == found
    refuse(rf"no files in hf://{kind}/owner/none", f"hf://{kind}/owner/none", tmp_path / "none")


BAD_LINES = {
    '{"text": "a"': "the record is invalid JSON",
    '{"text": "a': "the record is invalid JSON (Unterminated string at column 10)",
    '{"text": "\x01"}': "the record is invalid JSON (Invalid control character at column 11)",
    '{"text": "\\x"}': "the record is invalid JSON (Invalid \\escape at column 11)",
    "[1]": "the record is not an object, but a list",
    '{"body": "a"}': "the record has no field 'text'. Its fields are: body",
    '{"text": 7}': "the field 'text' is an integer, not text",
    '{"text": null}': "the field 'text' is null, not text",
    b'{"text": "\xff"}': "the record is not UTF-8",
    '{"text": "\\ud800", "n": 1}': "the field 'text' has an unpaired surrogate",
    "[" * 100_000: "the record is invalid JSON",
    '{"text": "a", "n": "one"}': "the field 'n' is text, not int",
    '{"text": "a", "n": 99999999999999999999}': "the field 'n' does not fit its encoding int (it "
    "is 99999999999999999999: ",
    '{"text": "a"}': "the field 'n' is missing or null, not int",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=str)
def test_a_bad_record_stops_the_run_and_is_named(tmp_path: Path, line: str | bytes) -> None:
    good = '{"text": "good", "n": 1}'
    said = refuse_lines("", tmp_path, [good, good, line, good], keep=["n:int"])
    assert f"in/a.jsonl:3: {BAD_LINES[line]}" in said
    assert not (tmp_path / "out" / "index.json").exists()
    report = convert_lines(tmp_path, [good, good, line, good], keep=["n:int"], skip_bad=True)
    assert (report.documents, report.bad) == (3, 1)
    assert f"in/a.jsonl:3: {BAD_LINES[line]}" in report.bad_records[0]


WRONG_KEYS = {
    "all": (
        '{"body": "a"}',
        400,
        "in/a.jsonl:1, the first of 400 bad records in a block of 400: the record has no field "
        "'text'. Its fields are: body. Set text_key (--text-key) to the name of the field that has "
        "the text",
    ),
    "one": (
        '{"body": "a"}',
        1,
        "in/a.jsonl:1: the record has no field 'text'. Its fields are: body. Set text_key "
        "(--text-key) to the name of the field that has the text",
    ),
    "type": (
        '{"text": ["a"]}',
        2,
        "in/a.jsonl:1, the first of 2 bad records in a block of 2: the field 'text' is a list, "
        "not text. To use its JSON as text, set text_key (--text-key) to text:json. Check format "
        "(--format), text_key (--text-key) and keep (--keep)",
    ),
}


@pytest.mark.parametrize("kind", WRONG_KEYS)
def test_nobody_is_told_to_skip_records_when_all_of_them_are_bad(tmp_path: Path, kind: str) -> None:
    line, count, message = WRONG_KEYS[kind]
    said = refuse_lines("", tmp_path, [line] * count)
    assert said.endswith(message)


def test_the_number_of_bad_records_follows_the_location_of_the_first(tmp_path: Path) -> None:
    said = refuse_lines("", tmp_path, ['{"text": "a"}', '{"body": "b"}', '{"body": "c"}'])
    assert said.endswith(
        "in/a.jsonl:2, the first of 2 bad records in a block of 3: the record has no field "
        "'text'. Its fields are: body. Repair the input, or run again with skip_bad (--skip-bad) "
        "to leave bad records out"
    )


@pytest.mark.parametrize("good", [[], ['{"text": ""}']], ids=["bad", "empty"])
def test_an_input_without_documents_is_refused_with_its_first_bad_record(
    tmp_path: Path, good: list[str]
) -> None:
    lines = [*good, '{"body": "a"}', '{"body": "b"}']
    with pytest.raises(ConvertError, match="no documents in") as raised:
        convert_lines(tmp_path, lines, skip_bad=True)
    first = f"in/a.jsonl:{len(good) + 1}: the record has no field 'text'. Its fields are: body. No "
    assert f"(empty documents: {len(good)}, bad records: 2). The first bad record is " in str(
        raised.value
    )
    assert first in str(raised.value)


def test_a_binary_file_among_texts_is_named(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "image.raw").write_bytes(b"\x89PNG\r\n")
    (tmp_path / "in" / "a.txt").write_text("a")
    refuse(r"in/image.raw:1: the file is not UTF-8 \(byte 0x89 at offset 0\)", tmp_path / "in")


@pytest.mark.parametrize(
    ("extension", "count"),
    [(".gz", 30), (".zst", 30), (".bz2", 150), (".xz", 30)],  # bz2 loses a block of up to 900 kB
)
def test_a_truncated_file_is_named_and_its_whole_lines_are_kept(
    tmp_path: Path, extension: str, count: int
) -> None:
    draw = random.Random(0)
    lines = [json.dumps({"text": draw.randbytes(4_000).hex()}) + "\n" for _ in range(count)]
    stored = COMPRESSORS[extension]("".join(lines).encode())
    (tmp_path / f"a.jsonl{extension}").write_bytes(stored[: len(stored) - 20])
    refuse(
        rf"a.jsonl{extension}:\d+: the \w+ data ends too early", tmp_path / f"a.jsonl{extension}"
    )
    report = convert(tmp_path / f"a.jsonl{extension}", skip_bad=True)
    assert report.bad == 1
    kept = texts(str(tmp_path / "out"), tmp_path)
    assert kept == [json.loads(line)["text"] for line in lines[: len(kept)]]


def test_kept_fields_may_be_missing_only_as_json(tmp_path: Path) -> None:
    lines = ['{"text": "a"}', '{"text": "b", "meta": {"k": [1]}}']
    convert_lines(tmp_path, lines, keep=["meta"])
    assert [sample["meta"] for sample in read_dataset(str(tmp_path / "out"), tmp_path)] == [
        None,
        {"k": [1]},
    ]
    refuse_lines(
        r"'meta' is missing or null, not str. To allow any value, keep meta:json",
        tmp_path,
        lines,
        keep=["meta:str"],
        overwrite=True,
    )


# ---------------------------------------------------------------- large inputs


LIMIT = 1 << 18  # more than a piece of decompressed data that hardly shrinks
LONG = [
    b'{"text": "' + random.Random(n).randbytes(3 * LIMIT // 2).hex().encode() + b'"}'
    for n in range(3)
]
TOO_LONG = "the line is larger than 1 GiB, the limit of a record"


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit of a record to 256 KiB."""
    monkeypatch.setattr("cloudload.data.file_content.MOST_RECORD_BYTES", LIMIT)


@pytest.mark.parametrize(
    ("extension", "size", "most_bytes"),
    [
        (".gz", 10 << 20, 1 << 20),
        (".bz2", 10 << 20, 1 << 20),
        (".xz", 10 << 20, 1 << 20),
        (".zst", 140 << 20, 129 << 20),
    ],
)
def test_a_small_file_is_never_decompressed_all_at_once(
    tmp_path: Path, extension: str, size: int, most_bytes: int
) -> None:
    path = tmp_path / f"a.txt{extension}"
    path.write_bytes(COMPRESSORS[extension](bytes([97]) * size) * 2)
    assert path.stat().st_size < 1 << 18
    compression = {".zst": "zstd"}.get(extension, extension[1:])
    file = InputFile(str(path), path.name, None, "text", compression)
    sizes = [len(chunk) for chunk in read_decompressed(file)]
    assert sum(sizes) == 2 * size
    assert max(sizes) <= most_bytes


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("extension", ["", ".gz", ".zst"])
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
@pytest.mark.parametrize("end", [b"", b"\n", b'\n{"text": "last"}'])
def test_a_line_above_the_limit_is_bad_and_the_lines_around_it_are_read(
    tmp_path: Path, extension: str, block_bytes: int, end: bytes
) -> None:
    path = tmp_path / f"a.jsonl{extension}"
    good = b'{"text": "good"}'
    data = b"\n".join([good, good, LONG[0], good, *LONG[1:]]) + end
    path.write_bytes(COMPRESSORS[extension](data))
    refuse(f"{path}:3[:,].*{TOO_LONG}", path)
    report = convert(path, skip_bad=True, block_bytes=block_bytes)
    assert [record.split(": ")[0] for record in report.bad_records] == [
        f"{path}:{line}" for line in (3, 5, 6)
    ]
    ids = [sample["id"] for sample in read_dataset(str(tmp_path / "out"), tmp_path)]
    last = [f"{path.name}:7"] if len(end) > 1 else []
    assert ids == [f"{path.name}:{line}" for line in (1, 2, 4)] + last
    assert report.input_bytes == path.stat().st_size
    check_blocks(path)


@pytest.mark.usefixtures("small_limit")
def test_the_limit_of_a_line_does_not_depend_on_how_its_bytes_arrive() -> None:
    line = b"x" * (LIMIT - 1) + b"\n"
    for data, is_long in ((line, False), (b"x" + line, True)):
        cuts = []
        for size in (1 << 16, 1000, 77_777):
            chunks = (data[at : at + size] for at in range(0, len(data), size))
            cuts.append(list(file_content.cut_at_line_ends(chunks, 1)))
        assert cuts[0] == cuts[1] == cuts[2]
        assert cuts[0] == [(b"", TOO_LONG, len(data)) if is_long else (data, None, len(data))]


@pytest.mark.usefixtures("small_limit")
def test_a_line_above_the_limit_in_a_cut_file_is_named_by_its_offset(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + LONG[0] + b'\n{"text": "b"}\n')
    out = tmp_path / "out"
    report = convert(path, out, skip_bad=True, segment_bytes=400_000)
    assert report.bad_records == (f"{path}:@14: {TOO_LONG}",)
    assert texts(str(out), tmp_path) == ["a", "b"]


@pytest.mark.usefixtures("small_limit")
def test_a_text_file_above_the_limit_is_bad(tmp_path: Path) -> None:
    (tmp_path / "a.txt.zst").write_bytes(COMPRESSORS[".zst"](b"x" * (2 * LIMIT)))
    (tmp_path / "b.txt").write_bytes(b"x" * LIMIT)
    records = read_records(tmp_path)
    assert records[0].problem == "the file is larger than 1 GiB, the limit of a document"
    assert records[1].problem is None
