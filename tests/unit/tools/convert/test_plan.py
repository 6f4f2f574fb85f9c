"""A stored plan keeps the listed files, and joined shards make a complete index."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import pytest

from cloudload.data.mds.writer import encode_index
from cloudload.tools.convert.config import ConvertConfig
from cloudload.tools.convert.conversion_plan import ConversionPlan
from cloudload.tools.convert.dry_run import describe_inputs
from cloudload.tools.convert.found_files import FolderFiles
from cloudload.tools.convert.input_records import Fields
from cloudload.tools.convert.inputs import list_inputs, list_roots, list_units
from cloudload.tools.convert.joined_segments import JoinedShards
from cloudload.tools.convert.rerun_check import plan_input

CLAIM = {"recipe": {"segment_bytes": 25}, "inputs": {}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files of several formats, and with the same file name in two subfolders."""
    for number, name in enumerate(
        ["x/a.jsonl", "x/b/c.jsonl.gz", "y/a.jsonl", "y/d.csv.gz", "z.csv"]
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x" * (1 + 30 * number))
    return tmp_path


@pytest.mark.parametrize("inputs", [["x"], ["x", "y"], ["x", "z.csv"], ["x/**/*.jsonl*", "y"]])
def test_a_stored_plan_has_the_files_that_were_listed(folder: Path, inputs: list[str]) -> None:
    locations = [str(folder / each) for each in inputs]
    listed = [
        item for item in list_inputs(locations, "auto", None) if isinstance(item, FolderFiles)
    ]
    expected = [file for item in listed for file in item.files]
    plan = ConversionPlan(CLAIM, (), {}, tuple(map(plan_input, listed)))
    stored = ConversionPlan.parse(plan.encode())
    files = stored.files(list_roots(locations), "auto")
    assert list(files) == expected
    assert [files[place] for place in range(len(files))] == expected
    assert stored.num_files == len(expected)
    assert stored == plan
    assert stored.digest == plan.with_digest(plan.encode()).digest


def test_segments_can_be_made_in_any_order(folder: Path) -> None:
    listed = list_inputs([str(folder / "x"), str(folder / "y")], "auto", None)
    inputs = tuple(plan_input(item) for item in listed if isinstance(item, FolderFiles))
    base: dict[str, Any] = {"stored": {}}
    for first, prefix in ((0, ""), (7, "+7/")):
        plan = ConversionPlan(
            CLAIM, (), {}, inputs, first_segment=first, base=base if first else None
        )
        segments = plan.segments(plan.files([str(folder / "x"), str(folder / "y")], "auto"))
        expected = list(segments)
        assert [segments[place] for place in reversed(range(len(segments)))] == expected[::-1]
        assert [
            (part.file.name.removeprefix(prefix), part.range) for each in expected for part in each
        ] == [
            ("0/a.jsonl", None),
            ("0/b/c.jsonl.gz", None),
            *[("1/a.jsonl", (61 * place // 3, 61 * (place + 1) // 3)) for place in range(3)],
            ("1/d.csv.gz", None),
        ]
        assert all(part.file.name.startswith(prefix) for each in expected for part in each)


def entry(number: int) -> dict[str, Any]:
    """Return the index entry of a compressed shard, or of a raw one if `number` is odd."""
    raw = {"basename": f"shard.{number:05}.mds", "bytes": 70, "hashes": {}}
    stored = {"basename": f"shard.{number:05}.mds.zstd", "bytes": number, "hashes": {}}
    return {"samples": 3, "raw_data": raw, "zip_data": None if number % 2 else stored}


def test_joined_shards_are_the_index_and_know_what_a_listing_lacks() -> None:
    joined, expected, listed = JoinedShards(), [], []
    for folder in ("", "00007"):
        joined.add(folder, map(entry, range(1_300)))
        for each in map(entry, range(1_300)):
            for file in filter(None, (each["raw_data"], each["zip_data"])):
                file["basename"] = f"{folder}/{file['basename']}".lstrip("/")
            expected.append(each)
            file = each["zip_data"] or each["raw_data"]
            listed.append((file["basename"], file["bytes"]))
    assert b"".join(joined.index()) == encode_index(expected)
    assert (joined.shards, joined.documents, joined.raw_bytes) == (2_600, 7_800, 182_000)
    assert joined.stored_bytes == sum(size for _, size in listed)
    listed += [("other", 1), ("val/index.json", 2)]
    assert joined.survey(reversed(listed)) == ([], ["val/index.json"])
    name, size = listed[1_404]
    listed[1_404] = (name, size + 1)
    del listed[1]
    assert joined.survey(listed) == (["shard.00001.mds", name], ["val/index.json"])


# ---------------------------------------------------------------- the table of inputs


def describe(inputs: Any, format: str = "auto") -> list[str]:
    return describe_inputs(list_units(list_inputs(inputs, format, None), 1 << 20))


def test_files_are_counted_by_format_and_compression(tmp_path: Path) -> None:
    for name, data in {
        "a.jsonl": b"x" * 1000,
        "b.jsonl.gz": gzip.compress(b"x"),
        "sub/c.json": b"[]",
        "d.csv": b"text",
        "e.py": b"e",
        "f": b"f",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    records = [f"{tmp_path}/[ab].*", f"{tmp_path}/d.csv", tmp_path / "sub"]
    assert describe([*records, tmp_path / "e.py", tmp_path / "f"]) == [
        "format      files  bytes",
        "csv             1      4",
        "json            1      2",
        "jsonl           1  1,000",
        "jsonl (gz)      1     21",
        "text            2      2",
        "total           6  1,029",
    ]
    assert describe(tmp_path / "d.csv") == ["format  files  bytes", "csv         1      4"]


def test_what_has_no_size_is_said_to_have_none(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    assert describe([tmp_path / "a.txt", "-", iter([{"text": "a"}]), iter([])]) == [
        "format                  files    bytes",
        "jsonl                       1  unknown",
        "text                        1        1",
        "total                       2  unknown",
        "datasets and iterators      2  unknown",
    ]


# ---------------------------------------------------------------- fields


def test_fields_are_names_with_the_encodings_that_were_given() -> None:
    fields = ConvertConfig(text_key="body", keep=("n:int32", "source")).fields()
    assert tuple(fields) == ("body", "id", "n", "source")
    assert fields.encodings == {"n": "int32"}
    for copy in (pickle.loads(pickle.dumps(fields)), Fields(fields, fields.encodings)):
        assert tuple(copy) == tuple(fields)
        assert copy.encodings == {"n": "int32"}
