"""`cloudload head` prints readable documents on a terminal, and JSON Lines in a pipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudload.inspect import Sample, read_samples
from cloudload.tools.cli.head_command import describe_sample
from testkit.corpora import random_documents, write_mds

TEXTS = random_documents(5, 12)


def test_a_pipe_gets_one_json_object_per_line(tmp_path: Path, cli: Any) -> None:
    write_mds(tmp_path, TEXTS)
    lines = cli("head", tmp_path, "-n", "3").out.splitlines()
    documents = [*read_samples(tmp_path, limit=3)]
    assert [json.loads(line) for line in lines] == [each.as_dict() for each in documents]


def test_a_json_column_with_an_unpaired_surrogate_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], cli: Any
) -> None:
    write_mds(tmp_path, ["a"], extra={"meta": ("json", ["\ud800"])})
    cli("head", tmp_path)
    assert json.loads(capfd.readouterr().out)["values"]["meta"] == "\ud800"


@pytest.mark.parametrize(
    "options", [["--grep", "nothing like this"], ["--id", "none"], ["--grep", "nothing", "--json"]]
)
def test_no_match_is_said_on_stderr_and_by_the_exit_status(
    tmp_path: Path, cli: Any, options: list[str]
) -> None:
    write_mds(tmp_path, TEXTS, extra={"id": ("str", [str(n) for n in range(len(TEXTS))])})
    assert cli("head", tmp_path, *options, status=1) == ("", "cloudload: no document matches\n")


def test_a_long_document_is_shown_around_its_match() -> None:
    text = "before " * 200 + "needle" + " after" * 300
    document = Sample(3, "shard.00000.mds", {"text": text}, (1_400, 1_406))
    lines = [*describe_sample(document, "text", 80, is_full=False)]
    assert lines[1] == "  … 1,200 characters before"
    assert any("needle" in line for line in lines)
    assert lines[-1] == f"  … {len(text) - 2_000:,} more characters"


def test_a_long_id_is_shortened_too() -> None:
    sample = Sample(0, "shard.00000.mds", {"id": "x" * 1_000, "text": "a"})
    [line, _] = describe_sample(sample, "text", 80, is_full=False)
    assert line.endswith(f"  id {'x' * 200} … 800 more characters  1 character")


def test_other_columns_are_one_line_each() -> None:
    values = {"tokens": [*range(99)], "source": "a\nb", "score": 0.5, "text": "hello"}
    document = Sample(0, "shard.00000.mds", values)
    assert [*describe_sample(document, "text", 80, is_full=False)] == [
        "sample 0  shard.00000.mds  5 characters",
        "  tokens: 99 integers: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 …",
        r"  source: a\nb",
        "  score: 0.5",
        "    hello",
    ]
