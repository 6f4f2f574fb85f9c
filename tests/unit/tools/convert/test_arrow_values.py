"""Each value of a Parquet or Arrow table is read, or makes only its own record bad."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from cloudload.errors import ConvertError
from cloudload.tools.convert.conversion_report import ConvertReport
from cloudload.tools.convert.convert import convert_to_mds
from testkit.conversions import QUIET, read_dataset, refuse

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


def convert(folder: Path, table: Any, **options: Any) -> ConvertReport:
    with pyarrow.ipc.new_file(folder / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    return convert_to_mds(folder / "a.arrow", folder / "out", **QUIET, **options)


@pytest.mark.parametrize("case", TIMES)
def test_dates_and_times_are_text(tmp_path: Path, case: str) -> None:
    column, expected = TIMES[case]
    convert(tmp_path, pyarrow.table({"text": ["a"], "x": column}), keep=["x:json"])
    assert read_dataset(str(tmp_path / "out"), tmp_path)[0]["x"] == expected


def test_a_time_without_text_makes_only_its_record_bad(tmp_path: Path) -> None:
    times = pyarrow.array([0, 10**17, None], pyarrow.timestamp("s"))
    nested = pyarrow.array([{"n": 1}, {"n": 2}, {"n": 3}])
    table = pyarrow.table({"text": ["a", "b", "c"], "x": times, "y": nested})
    with pytest.raises(
        ConvertError, match=r"a.arrow:2: the field 'x' cannot be read \(value out of"
    ):
        convert(tmp_path, table, keep=["x:json", "y:json"])
    report = convert(tmp_path, table, keep=["x:json", "y:json"], skip_bad=True)
    assert (report.documents, report.bad) == (2, 1)


def test_a_value_that_python_cannot_express_makes_only_its_record_bad(tmp_path: Path) -> None:
    twice = pyarrow.StructArray.from_arrays(
        [pyarrow.array([1, 2])] * 2, names=["a", "a"], mask=pyarrow.array([False, True])
    )
    table = pyarrow.table({"text": ["a", "b"], "x": twice})
    report = convert(tmp_path, table, keep=["x:json"], skip_bad=True)
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
        convert(tmp_path, table, keep=["meta"])
    if isinstance(value["raw"], bytes):
        convert(tmp_path, table, keep=["meta.raw:bytes"])
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
    convert(tmp_path, pyarrow.table({"text": ["a"] * len(column), "id": column}), keep=keep)
    samples = read_dataset(str(tmp_path / "out"), tmp_path)
    assert [sample["id"] for sample in samples] == expected


def test_arrays_of_numpy_are_kept_as_lists(tmp_path: Path) -> None:
    import numpy as np

    row = {"text": "a", "x": {"scores": np.arange(2000), "one": np.float32(0.5)}}
    convert_to_mds(iter([row]), tmp_path / "out", keep=["x"], **QUIET)
    (sample,) = read_dataset(str(tmp_path / "out"), tmp_path)
    assert sample["x"] == {"scores": list(range(2000)), "one": 0.5}
