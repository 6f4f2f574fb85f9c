"""The table of inputs counts every file once, by format and compression."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from cloudload.tools.convert.dry_run import describe_inputs, describe_mixture
from cloudload.tools.convert.inputs import list_inputs, list_units


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
    assert describe(tmp_path) == [
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


def test_files_of_text_among_files_of_records_are_named(tmp_path: Path) -> None:
    for name in ("README.md", "a.jsonl.gz", "b.jsonl.gz", "notes.txt"):
        (tmp_path / name).write_bytes(gzip.compress(b"x"))

    def said_of(*names: str) -> str | None:
        inputs = [str(tmp_path / name) for name in names] or tmp_path
        return describe_mixture(list_units(list_inputs(inputs, "auto", None), 1 << 20))

    said = said_of()
    assert said is not None
    assert said.startswith("README.md and 1 more become plain-text documents")
    assert "the other 2 files are jsonl (gz)" in said
    assert said_of("a.jsonl.gz", "b.jsonl.gz") is None
    assert said_of("README.md", "notes.txt") is None
