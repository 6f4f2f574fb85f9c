"""Arrow and Feather files, and folders of `datasets.save_to_disk`, are read row by row."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from cloudload.errors import ConvertError
from testkit.conversions import (
    COMPRESSORS,
    convert,
    convert_texts,
    documents,
    read_dataset,
    refuse,
    texts,
)
from testkit.readers import check_blocks

DOCUMENTS = documents(300)


@cache
def make_table() -> Any:
    return pyarrow.table({"text": DOCUMENTS, "meta": [{"n": n} for n in range(300)]})


def write_file(path: Path, **options: Any) -> None:
    with pyarrow.ipc.new_file(
        path, make_table().schema, options=pyarrow.ipc.IpcWriteOptions(**options)
    ) as writer:
        writer.write_table(make_table(), max_chunksize=70)


def write_stream(path: Path) -> None:
    with pyarrow.ipc.new_stream(path, make_table().schema) as writer:
        writer.write_table(make_table(), max_chunksize=70)


WRITERS: dict[str, Callable[[Path], Any]] = {
    "pandas.feather": lambda path: make_table().to_pandas().to_feather(path, compression="zstd"),
    "lz4.ipc": lambda path: write_file(path, compression="lz4"),
    "file.arrow": write_file,
    "stream.arrow": write_stream,
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("extension", ["", ".gz"])
def test_files_of_pandas_and_pyarrow_are_read(tmp_path: Path, name: str, extension: str) -> None:
    WRITERS[name](tmp_path / "plain")
    path = tmp_path / f"{name}{extension}"
    path.write_bytes(COMPRESSORS[extension]((tmp_path / "plain").read_bytes()))
    report = convert(path, keep=["meta.n"], block_bytes=999)
    samples = read_dataset(str(tmp_path / "out"), tmp_path)
    assert [(sample["text"], sample["meta.n"]) for sample in samples] == list(
        zip(DOCUMENTS, range(300), strict=True)
    )
    assert samples[9]["id"] == f"{path.name}:10"
    assert report.input_bytes == path.stat().st_size
    check_blocks(path)
    refuse(
        r"the record has no field 'body'. Its fields are: meta.n, text. Set text_key",
        path,
        tmp_path / "none",
        text_key="body",
    )


def write_unframed(path: Path) -> None:
    """Write a file whose schema lacks its length, as polars 2 does."""
    write_file(path)
    data = bytearray(path.read_bytes())
    end = 16 + int.from_bytes(data[12:16], "little")
    data[8:end] = data[16:end] + bytes(8)
    path.write_bytes(data)


@pytest.mark.parametrize("extension", ["", ".gz"])
def test_a_file_that_only_its_footer_can_open_is_read(tmp_path: Path, extension: str) -> None:
    write_unframed(tmp_path / "plain")
    path = tmp_path / f"a.arrow{extension}"
    path.write_bytes(COMPRESSORS[extension]((tmp_path / "plain").read_bytes()))
    report = convert(path, block_bytes=999)
    assert texts(str(tmp_path / "out"), tmp_path) == DOCUMENTS
    assert report.input_bytes == path.stat().st_size
    check_blocks(path)


JOINED: dict[str, list[Callable[[Path], None]]] = {
    "streams": [write_stream, write_stream],
    "files": [write_file, write_file],
    "a stream and a file": [write_stream, write_file],
    "a file and a stream": [write_file, write_stream],
}


@pytest.mark.parametrize("case", JOINED)
@pytest.mark.parametrize("extension", ["", ".gz"])
def test_joined_files_are_refused(tmp_path: Path, case: str, extension: str) -> None:
    joined, path = b"", tmp_path / f"a.arrow{extension}"
    for write in JOINED[case]:
        write(tmp_path / "part")
        joined += COMPRESSORS[extension]((tmp_path / "part").read_bytes())
    path.write_bytes(joined)
    refuse(rf"{path} cannot be read as Arrow: (more data|it is da)", path)


def test_a_dictionary_of_texts_is_read_as_its_texts(tmp_path: Path) -> None:
    import pandas

    table = pandas.DataFrame({"text": DOCUMENTS}).astype("category")
    table.to_feather(tmp_path / "a.feather")
    assert convert_texts(tmp_path / "a.feather") == DOCUMENTS


def test_a_saved_dataset_is_read_in_the_order_of_its_files(tmp_path: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_list([{"text": text} for text in DOCUMENTS]).shuffle(seed=1)
    rows.save_to_disk(tmp_path / "in", num_shards=12)
    assert convert_texts(tmp_path / "in") == rows["text"][:]
    check_blocks(tmp_path / "in")
    state = tmp_path / "in" / "state.json"
    listed = state.read_text()
    state.write_text(listed.replace("data-00003-of", "../data-00003-of"))
    refuse(r"lacks '../data-00003-of-00012.arrow', which", tmp_path / "in", tmp_path / "none")
    state.write_text("[]")
    refuse(
        r"in/state.json does not have the format that save_to_disk writes",
        tmp_path / "in",
        tmp_path / "none",
    )


def test_a_split_of_a_saved_dict_is_chosen_by_its_name(tmp_path: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_list([{"text": text} for text in DOCUMENTS])
    splits = {"train": rows, "test": rows.select(range(3))}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "in")
    convert(tmp_path / "in", split="test")
    samples = read_dataset(str(tmp_path / "out" / "test"), tmp_path)
    assert [sample["text"] for sample in samples] == DOCUMENTS[:3]
    for split in (None, "validation"):
        refuse(
            rf"split is {split!r}, but the splits of .* are \['t",
            tmp_path / "in",
            tmp_path / "none",
            split=split,
            error=ValueError,
        )
    (tmp_path / "in" / "dataset_dict.json").unlink()
    refuse(
        r"contains .*/in/test/, a dataset that save_to_disk wrote",
        tmp_path / "in",
        tmp_path / "none",
    )


@pytest.mark.parametrize("cut", [4, 40, 5000, -4, -400])
def test_an_incomplete_file_is_named(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.arrow"
    write_file(path)
    path.write_bytes(path.read_bytes()[:cut])
    refuse(rf"{path} cannot be read as Arrow: .* Repair the file", path)


def test_a_damaged_file_is_an_error_and_never_a_crash(tmp_path: Path) -> None:
    path, draw = tmp_path / "a.arrow", random.Random(5)
    write_file(path)
    whole = path.read_bytes()
    outcomes = set()
    for _ in range(40):
        damaged = bytearray(whole)
        for _ in range(9):
            damaged[draw.randrange(8, len(whole) - 8)] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            convert(path, skip_bad=True, overwrite=True)
            outcomes.add("read")
        except ConvertError as error:
            outcomes.add(str(error)[: len(str(path)) + 24].removeprefix(f"{path} "))
    assert outcomes == {"read", "cannot be read as Arrow"}


def test_text_that_is_not_utf_8_makes_only_its_record_bad(tmp_path: Path) -> None:
    binary = pyarrow.array([b"a", b"\xff", b"c"])
    table = pyarrow.table({"text": binary.view(pyarrow.string())})
    with pyarrow.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    report = convert(tmp_path / "a.arrow", skip_bad=True)
    assert (report.documents, report.bad) == (2, 1)
    assert "a.arrow:2: the record is not UTF-8 (byte 0xff at offset 0)" in report.bad_records[0]


def test_version_1_of_feather_is_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "a.feather").write_bytes(b"FEA1" + bytes(100) + b"FEA1")
    refuse(r"is a Feather version 1 file, .*. Convert it to Par", tmp_path / "a.feather")
