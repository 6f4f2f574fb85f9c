"""Arrow and Feather files, and folders of `datasets.save_to_disk`, are read row by row."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from cloudload.errors import ConvertError
from cloudload.tools.convert.conversion_report import ConvertReport
from cloudload.tools.convert.convert import convert_to_mds
from testkit.conversions import (
    COMPRESSORS,
    QUIET,
    convert,
    convert_texts,
    documents,
    read_dataset,
    refuse,
    texts,
)
from testkit.readers import check_blocks

DOCUMENTS = documents(100)


@cache
def make_table() -> Any:
    return pyarrow.table({"text": DOCUMENTS, "meta": [{"n": n} for n in range(100)]})


def write_file(path: Path, **options: Any) -> None:
    with pyarrow.ipc.new_file(
        path, make_table().schema, options=pyarrow.ipc.IpcWriteOptions(**options)
    ) as writer:
        writer.write_table(make_table(), max_chunksize=30)


def write_stream(path: Path) -> None:
    with pyarrow.ipc.new_stream(path, make_table().schema) as writer:
        writer.write_table(make_table(), max_chunksize=30)


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
        zip(DOCUMENTS, range(100), strict=True)
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


# ---------------------------------------------------------------- values


STRUCT = pyarrow.struct([("days", pyarrow.list_(pyarrow.date32())), ("n", pyarrow.int64())])
TIMES: dict[str, tuple[Any, Any]] = {
    "a date": (pyarrow.array([1], pyarrow.date32()), "1970-01-02"),
    "a date that Python cannot express": (pyarrow.array([10**7], pyarrow.date32()), "29349-01-26"),
    "nanoseconds": (pyarrow.array([1], pyarrow.timestamp("ns")), "1970-01-01 00:00:00.000000001"),
    "a time zone": (
        pyarrow.array([0], pyarrow.timestamp("ms", tz="Europe/Berlin")),
        "1970-01-01 00:00:00.000Z",
    ),
    "a time zone that is not known": (
        pyarrow.array([0], pyarrow.timestamp("s", tz="Mars/Base")),
        "1970-01-01 00:00:00Z",
    ),
    "a time of day": (pyarrow.array([5], pyarrow.time64("ns")), "00:00:00.000000005"),
    "a duration": (pyarrow.array([1500], pyarrow.duration("ms")), "PT1.500S"),
    "a long duration": (pyarrow.array([10**18], pyarrow.duration("s")), f"PT{10**18}S"),
    "a dictionary": (pyarrow.array([10**7], pyarrow.date32()).dictionary_encode(), "29349-01-26"),
    "a date in a list in a struct": (
        pyarrow.array([{"days": [10**7, None], "n": 7}], STRUCT),
        {"days": ["29349-01-26", None], "n": 7},
    ),
    "a date in a map": (
        pyarrow.array([[("a", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.date32())),
        [["a", "1970-01-02"]],
    ),
    "null": (pyarrow.array([None], pyarrow.timestamp("ns")), None),
}


def convert_table(folder: Path, table: Any, **options: Any) -> ConvertReport:
    with pyarrow.ipc.new_file(folder / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    return convert_to_mds(folder / "a.arrow", folder / "out", **QUIET, **options)


@pytest.mark.parametrize("case", TIMES)
def test_dates_and_times_are_text(tmp_path: Path, case: str) -> None:
    column, expected = TIMES[case]
    convert_table(tmp_path, pyarrow.table({"text": ["a"], "x": column}), keep=["x:json"])
    assert read_dataset(str(tmp_path / "out"), tmp_path)[0]["x"] == expected


def test_a_time_without_text_makes_only_its_record_bad(tmp_path: Path) -> None:
    times = pyarrow.array([0, 10**17, None], pyarrow.timestamp("s"))
    nested = pyarrow.array([{"n": 1}, {"n": 2}, {"n": 3}])
    table = pyarrow.table({"text": ["a", "b", "c"], "x": times, "y": nested})
    with pytest.raises(
        ConvertError, match=r"a.arrow:2: the field 'x' cannot be read \(value out of"
    ):
        convert_table(tmp_path, table, keep=["x:json", "y:json"])
    report = convert_table(tmp_path, table, keep=["x:json", "y:json"], skip_bad=True)
    assert (report.documents, report.bad) == (2, 1)


def test_a_value_that_python_cannot_express_makes_only_its_record_bad(tmp_path: Path) -> None:
    twice = pyarrow.StructArray.from_arrays(
        [pyarrow.array([1, 2])] * 2, names=["a", "a"], mask=pyarrow.array([False, True])
    )
    table = pyarrow.table({"text": ["a", "b"], "x": twice})
    report = convert_table(tmp_path, table, keep=["x:json"], skip_bad=True)
    assert (report.documents, report.bad) == (1, 1)
    assert "a.arrow:1: the field 'x' cannot be read" in report.bad_records[0]


@pytest.mark.parametrize("name", ["text", "x"])
@pytest.mark.parametrize("extension", ["arrow", "parquet"])
def test_two_columns_of_one_name_are_refused(tmp_path: Path, name: str, extension: str) -> None:
    names = ["text", "x", "other"]
    table = pyarrow.table([["a"], ["b"], ["c"]], names=names)
    table = table.append_column(name, pyarrow.array(["twice"]))
    path = tmp_path / f"a.{extension}"
    if extension == "parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        with pyarrow.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    refuse(rf"{path} has two columns named '{name}'. Rename one", path, keep=["x"])
    if name == "x":
        assert convert_to_mds(path, tmp_path / "out", **QUIET).documents == 1


@pytest.mark.parametrize("value", [{"raw": b"\xff", "n": 1}, {"raw": b"text"}, {"raw": [b"a"]}])
def test_bytes_within_a_kept_object_are_refused_with_a_way_out(
    tmp_path: Path, value: dict[str, Any]
) -> None:
    table = pyarrow.table({"text": ["a"], "meta": [value]})
    with pytest.raises(
        ConvertError, match=r"cannot be written as JSON .*it contains bytes. To keep them"
    ):
        convert_table(tmp_path, table, keep=["meta"])
    if isinstance(value["raw"], bytes):
        convert_table(tmp_path, table, keep=["meta.raw:bytes"])
        (sample,) = read_dataset(str(tmp_path / "out"), tmp_path)
        assert sample["meta.raw"] == value["raw"]


ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
IDS: dict[str, tuple[Any, list[str]]] = {
    "floats": (pyarrow.array([7.0, 0.5, float("nan")]), ["7", "0.5", "a.arrow:3"]),
    "UUIDs": (pyarrow.array([ID.bytes, None], pyarrow.uuid()), [str(ID), "a.arrow:2"]),
    "fixed-size bytes": (pyarrow.array([b"\x00\xff"], pyarrow.binary(2)), ["00ff"]),
    "bytes": (pyarrow.array([b"id 1", b"\xe9", b""]), ["id 1", "e9", "a.arrow:3"]),
    "dates": (pyarrow.array([1], pyarrow.date32()), ["1970-01-02"]),
    "booleans": (pyarrow.array([True]), ["a.arrow:1"]),
}


@pytest.mark.parametrize("case", IDS)
@pytest.mark.parametrize("keep", [[], ["text2:json"]])
def test_ids_of_any_type_are_kept(tmp_path: Path, case: str, keep: list[str]) -> None:
    column, expected = IDS[case]
    convert_table(tmp_path, pyarrow.table({"text": ["a"] * len(column), "id": column}), keep=keep)
    samples = read_dataset(str(tmp_path / "out"), tmp_path)
    assert [sample["id"] for sample in samples] == expected


def test_arrays_of_numpy_are_kept_as_lists(tmp_path: Path) -> None:
    import numpy as np

    row = {"text": "a", "x": {"scores": np.arange(2000), "one": np.float32(0.5)}}
    convert_to_mds(iter([row]), tmp_path / "out", keep=["x"], **QUIET)
    (sample,) = read_dataset(str(tmp_path / "out"), tmp_path)
    assert sample["x"] == {"scores": list(range(2000)), "one": 0.5}
