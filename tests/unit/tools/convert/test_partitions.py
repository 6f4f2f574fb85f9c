"""Folders named `name=value` give the fields that records do not have."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from testkit.conversions import convert, convert_and_read, read_dataset, refuse

NULL = "__HIVE_DEFAULT_PARTITION__"


def write(root: Path, files: Mapping[str, Any]) -> Path:
    """Write a file of JSON Lines with one record for each name."""
    for name, record in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"text": "x", **record}) + "\n")
    return root


def values(inputs: Any, tmp_path: Path, *keep: str) -> list[Any]:
    """Convert, and return the values of the first kept field, in order."""
    convert(inputs, tmp_path / "out", keep=keep)
    name = keep[0].partition(":")[0]
    return [sample[name] for sample in read_dataset(str(tmp_path / "out"), tmp_path)]


def test_a_field_is_taken_from_the_path(tmp_path: Path) -> None:
    root = write(tmp_path / "in", {"lang=de/a.jsonl": {}, "lang=en/y=1/b.jsonl": {}})
    assert values(root, tmp_path, "lang") == ["de", "en"]
    # also if the folder itself is the input
    (sample,) = convert_and_read(root / "lang=de", tmp_path / "one", keep=["lang"])
    assert sample["lang"] == "de"


def test_a_field_of_the_record_wins_also_if_it_is_null(tmp_path: Path) -> None:
    files = {"lang=de/a.jsonl": {"lang": "own"}, "lang=en/b.jsonl": {"lang": None}}
    root = write(tmp_path / "in", {**files, "lang=fr/c.jsonl": {}})
    assert values(root, tmp_path, "lang:json") == ["own", None, "fr"]


def test_values_are_decoded_and_the_default_partition_is_null(tmp_path: Path) -> None:
    names = ["k=a%2Fb=c%20", "k=%E9", "k=ü", "x/k=outer/k=inner", f"z/k={NULL}"]
    root = write(tmp_path / "in", {f"{name}/a.jsonl": {} for name in names})
    assert values(root, tmp_path, "k:json") == ["%E9", "a/b=c ", "ü", "inner", None]


def test_an_encoding_makes_numbers(tmp_path: Path) -> None:
    root = write(tmp_path / "in", {"year=2023/a.jsonl": {}, "year=2024/a.jsonl": {}})
    assert values(root, tmp_path, "year:int") == [2023, 2024]
    write(root, {"year=unknown/a.jsonl": {}})
    refuse(
        r"the folder year=unknown of its path is not int",
        root,
        tmp_path / "out2",
        keep=["year:int"],
    )


def test_every_format_has_the_fields_of_its_path(tmp_path: Path) -> None:
    root = write(tmp_path / "in", {"lang=a/a.jsonl": {}})
    for name, data in {
        "b/b.txt": "x",
        "c/c.csv": "text\nx\n",
        "d/d.json": '[{"text": "x"}]',
    }.items():
        (root / f"lang={name}").parent.mkdir()
        (root / f"lang={name}").write_text(data)
    for letter, write_file in (("e", pyarrow.parquet.write_table), ("f", _write_arrow)):
        (root / f"lang={letter}").mkdir()
        extension = "parquet" if letter == "e" else "arrow"
        write_file(pyarrow.table({"text": ["x"]}), root / f"lang={letter}/x.{extension}")
    (root / "lang=g").mkdir()
    with tarfile.open(root / "lang=g/g.tar", "w") as archive:
        archive.add(root / "lang=b/b.txt", "b.txt")
    (tmp_path / "texts").mkdir()
    (root / "lang=b").rename(tmp_path / "texts/lang=b")
    assert values([root, tmp_path / "texts"], tmp_path, "lang") == list("acdefgb")


def _write_arrow(table: Any, path: Path) -> None:
    with pyarrow.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


def test_a_name_in_an_archive_that_is_not_utf8_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x")
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        archive.add(tmp_path / "x.txt", b"caf\xe9.txt".decode("utf-8", "surrogateescape"))
    report = convert(tmp_path / "a.tar")
    assert (report.documents, report.bad) == (1, 0)
    (sample,) = read_dataset(str(tmp_path / "out"), tmp_path)
    assert sample["id"] == "caf%E9"
