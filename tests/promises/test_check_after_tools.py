"""`check_dataset` after every tool that writes into a dataset's folder: it never advises to remove
an object that one of our tools wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudload import check_dataset, export_rows
from cloudload.convert import convert_to_mds
from cloudload.data.mds.own_objects import LENGTHS
from cloudload.run.lengths import lengths_index
from cloudload.tools.check.findings import CheckReport
from testkit.conversions import QUIET, convert_until, write_lines
from testkit.corpora import byte_tokenizer
from testkit.counted import count
from testkit.loaders import make_loader

SEGMENTS: dict[str, Any] = {**QUIET, "shard_bytes": 2000, "segment_bytes": 4000}


def corpus(folder: Path, *names: str) -> Path:
    """Write a file of 100 documents for each name."""
    for name in names:
        write_lines(folder / name, (f"document {number} of {name}" for number in range(100)))
    return folder


def convert(data: Path, out: Path) -> None:
    convert_to_mds(data, out, **QUIET)
    count(out)


def convert_segments(data: Path, out: Path) -> None:
    convert_to_mds(data, out, tokenizer=byte_tokenizer(), **SEGMENTS)


def append(data: Path, out: Path) -> None:
    convert_segments(data, out)
    more = corpus(data.parent / "more", "c.jsonl")
    convert_to_mds(more, out, append=True, tokenizer=byte_tokenizer(), **SEGMENTS)


def skip_bad(data: Path, out: Path) -> None:
    (data / "bad.jsonl").write_text("{broken\n")
    rejects = data.parent / "rejects.jsonl"
    convert_to_mds(data, out, skip_bad=True, rejects=rejects, **SEGMENTS)
    count(out)


def export(data: Path, out: Path) -> None:
    convert_to_mds(data, data.parent / "mds", **QUIET)
    with make_loader(data.parent / "mds") as loader:
        export_rows(loader, out, num_batches=4)
    count(out, tokens_key="tokens")


def overwrite(data: Path, out: Path) -> None:
    append(data, out)
    convert_to_mds(data, out, overwrite=True, **QUIET)
    count(out)


TOOLS: dict[str, Callable[[Path, Path], None]] = {
    "convert and count": convert,
    "convert in segments": convert_segments,
    "append": append,
    "skip bad records": skip_bad,
    "export": export,
    "overwrite": overwrite,
}


def check(out: Path, **options: Any) -> CheckReport:
    return check_dataset(out, rules="none", **QUIET, **options)


@pytest.mark.parametrize("tool", TOOLS)
def test_what_a_tool_writes_is_known_to_the_check(tmp_path: Path, tool: str) -> None:
    out = tmp_path / "out"
    TOOLS[tool](corpus(tmp_path / "in", "a.jsonl", "b.jsonl"), out)
    options = {"tokens_key": "tokens"} if tool == "export" else {}
    report = check(out, **options)
    # the lengths of the data before an append stay, for runs that began with them
    assert set(report.counts) - {"few-samples"} == ({"lengths-old"} if tool == "append" else set())
    assert report.lengths == 1


def test_each_split_knows_its_lengths(tmp_path: Path) -> None:
    data, out = corpus(tmp_path / "in", "a.jsonl", "b.jsonl"), tmp_path / "out"
    splits = {"train": 0.7, "val": 0.3}
    convert_to_mds(data, out, splits=splits, **QUIET)
    for name in splits:
        count(out / name)
    reports = [check(out, split=name) for name in splits]
    assert [(set(each.counts) - {"few-samples"}, each.lengths) for each in reports] == [
        (set(), 1)
    ] * 2


def test_the_command_states_that_token_lengths_are_complete(tmp_path: Path, cli: Any) -> None:
    convert_segments(corpus(tmp_path / "in", "a.jsonl"), tmp_path / "out")
    shown = cli("check", tmp_path / "out", "--quiet").out
    assert "token lengths of 1 tokenizer, complete" in shown
    assert "Remove" not in shown


def test_lengths_of_two_tokenizers_count_as_two(tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert_segments(corpus(tmp_path / "in", "a.jsonl"), out)
    count(out, tokenizer="examples/tokenizer")
    assert check(out).lengths == 2


def test_an_unfinished_append_is_never_called_a_leftover(tmp_path: Path) -> None:
    data, out = corpus(tmp_path / "in", "a.jsonl", "b.jsonl"), tmp_path / "out"
    convert_segments(data, out)
    more = corpus(tmp_path / "more", "c.jsonl", "d.jsonl")
    convert_until(3, more, out, append=True, **SEGMENTS)
    report = check(out)
    assert set(report.counts) == {"unfinished"}
    assert "run the same cloudload convert again" in report.findings[0].advice


def test_an_interrupted_count_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr(lengths_index, "GROUP_SAMPLES", 50)
    convert_to_mds(corpus(tmp_path / "in", "a.jsonl", "b.jsonl"), out, **SEGMENTS)
    count(out)
    next((out / "lengths").rglob("index-*.json")).unlink()
    report = check(out)
    assert (set(report.counts), report.lengths) == ({"lengths-old"}, 0)
    assert "unfinished count" in report.findings[0].what


@pytest.mark.parametrize("damage", ["missing", "cut", "altered", "not an index"])
def test_damaged_lengths_are_an_error(tmp_path: Path, damage: str) -> None:
    out = tmp_path / "out"
    convert_segments(corpus(tmp_path / "in", "a.jsonl"), out)
    group = next((out / "lengths").rglob("*.lengths"))
    data = group.read_bytes()
    if damage == "missing":
        group.unlink()
    elif damage == "not an index":
        next((out / "lengths").rglob("index-*.json")).write_text("[]")
    else:
        group.write_bytes(data[:-1] if damage == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    report = check(out)
    assert (report.counts, report.is_sound, report.lengths) == ({"lengths-damaged": 1}, False, 0)
    # hashes are compared only where shards are read
    assert check(out, sample=0).is_sound == (damage == "altered")


def test_names_of_lengths_are_those_that_a_count_writes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert_segments(corpus(tmp_path / "in", "a.jsonl"), out)
    written = [path for path in (out / "lengths").rglob("*") if path.is_file()]
    assert written
    assert all(LENGTHS.fullmatch(path.relative_to(out).as_posix()) for path in written)
