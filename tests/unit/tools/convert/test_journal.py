"""A second run of a conversion changes nothing, resumes the first run, or is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudload.errors import ConvertError, StoreError
from cloudload.tools.convert.convert import convert_to_mds
from testkit.conversions import (
    SETTINGS,
    convert,
    convert_lines,
    convert_until,
    documents,
    make_input,
    note_each_write,
    refuse,
    refuse_lines,
    stop_after,
    texts,
    write_corpus,
)


def test_the_index_appears_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    note_each_write(monkeypatch, lambda url: written.append(Path(url).name))
    convert(write_corpus(tmp_path / "corpus"), tmp_path / "out", shard_bytes=50_000)
    assert written[-1] == "index.json"
    assert written.count("index.json") == 1


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_conversion_that_has_begun_resumes_once_it_hides_no_splits(
    tmp_path: Path, overwrite: bool
) -> None:
    source, options = make_input(tmp_path / "in", "jsonl", documents(300))
    convert_until(3, source(), tmp_path / "out", **options, **SETTINGS)
    (tmp_path / "b.jsonl").write_text('{"text": "b"}')
    convert(tmp_path / "b.jsonl", split="val")
    options |= {**SETTINGS, "overwrite": overwrite}
    with pytest.raises(ConvertError, match="out has datasets in its subfolders: val"):
        convert_to_mds(source(), tmp_path / "out", **options)
    (tmp_path / "out" / "val").rename(tmp_path / "val")
    report = convert_to_mds(source(), tmp_path / "out", **options)
    assert (report.documents, report.resumed_shards) == (300, 0 if overwrite else 3)


def test_a_finished_conversion_is_left_alone(tmp_path: Path) -> None:
    first = convert_lines(tmp_path, ['{"text": "a"}', '{"text": ""}'])
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    again = convert_lines(tmp_path, ['{"text": "a"}', '{"text": ""}'], processes=2)
    assert again.already_complete
    assert (again.documents, again.empty, again.shards) == (1, 1, first.shards)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


def test_another_conversion_is_refused_until_told_to_overwrite(tmp_path: Path) -> None:
    convert_lines(tmp_path, ['{"text": "a"}'] * 400, shard_bytes=1500)
    refuse_lines(
        r"belongs to a conversion with different inputs or options: "
        r"text_key was 'text' and is now 'body'.*--overwrite",
        tmp_path,
        ['{"text": "a"}'] * 400,
        shard_bytes=1500,
        text_key="body",
    )
    refuse_lines(
        r"with different inputs or options: a\.jsonl had 5600 bytes and now has 14",
        tmp_path,
        ['{"text": "b"}'],
        shard_bytes=1500,
    )
    convert_lines(tmp_path, ['{"text": "b"}'], overwrite=True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "convert-report.json",
        "index.json",
        "shard.00000.mds.zstd",
    ]


def stopped_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int) -> list[str]:
    """Run a conversion of 400 lines that fails after `shards` shards, and return the lines."""
    lines = [json.dumps({"text": f"document {number}"}) for number in range(400)]
    stop_after(monkeypatch, shards)
    with pytest.raises(StoreError, match="no room"):
        convert_lines(tmp_path, lines, shard_bytes=2000)
    monkeypatch.undo()
    return lines


def test_changed_input_files_are_listed_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = stopped_conversion(tmp_path, monkeypatch, 2)
    refuse_lines(
        r"different inputs .*: .*jsonl had .* bytes and now h",
        tmp_path,
        [*lines, '{"text": "more"}'],
        shard_bytes=2000,
    )


@pytest.mark.parametrize("is_finished", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "b.jsonl").unlink(), r"b\.jsonl is gone\."),
        (lambda folder: (folder / "d.jsonl").write_text("{}"), r"d\.jsonl is new\."),
        (
            lambda folder: (folder / "b.jsonl").rename(folder / "e.jsonl"),
            r"b\.jsonl is gone, e\.jsonl is new\.",
        ),
        (
            lambda folder: [(folder / f"x{n}.jsonl").write_text("{}") for n in range(7)],
            r"x4\.jsonl is new, and 2 more\.",
        ),
    ],
)
def test_files_that_came_and_went_are_listed_by_name(
    tmp_path: Path, is_finished: bool, change: Any, message: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in "abc":
        text = json.dumps({"text": f"a document of {name}"}) + "\n"
        (folder / f"{name}.jsonl").write_text(200 * text)
    settings: dict[str, Any] = {"shard_bytes": 2000, "processes": 1, "progress": False}
    if is_finished:
        convert_to_mds(folder, tmp_path / "out", **settings)
    else:
        convert_until(2, folder, tmp_path / "out", **settings)
    change(folder)
    with pytest.raises(ConvertError, match=message):
        convert_to_mds(folder, tmp_path / "out", **settings)


def test_the_digests_of_very_many_files_are_compared_without_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = stopped_conversion(tmp_path, monkeypatch, 2)
    monkeypatch.setattr("cloudload.tools.convert.rerun_check.MOST_FILES", 0)
    refuse_lines("names and sizes was", tmp_path, [*lines, '{"text": "more"}'], shard_bytes=2000)


def test_a_dataset_of_another_tool_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "index.json").write_text("{}")
    refuse_lines("already contains a dataset", tmp_path, ['{"text": "a"}'])
    (tmp_path / "out" / "index.json").rename(tmp_path / "out" / "shard.00000.mds")
    refuse_lines("has shards, but no journal", tmp_path, ['{"text": "a"}'])


def test_a_shard_that_is_gone_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = stopped_conversion(tmp_path, monkeypatch, 5)
    (tmp_path / "out" / "shard.00002.mds.zstd").write_bytes(b"half")
    assert convert_lines(tmp_path, lines, shard_bytes=2000).resumed_shards == 2
    assert texts(str(tmp_path / "out"), tmp_path) == [json.loads(line)["text"] for line in lines]


def test_very_many_small_segments_are_refused(tmp_path: Path) -> None:
    refuse_lines(
        r"segment_bytes .* is 1, which would .* Use at least 1,0",
        tmp_path,
        ['{"text": "a"}'] * 1000,
        segment_bytes=1,
        error=ValueError,
    )
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- hidden datasets


LINES = [f'{{"text": "document {number}"}}' for number in range(40)]
SPLITS = "train=0.5,val=0.5"
ARRAY: dict[str, Any] = {"segment_bytes": 400}


@pytest.mark.parametrize("how", [{"split": "val"}, {"splits": SPLITS}], ids=str)
@pytest.mark.parametrize("run", [{}, {"overwrite": True}, {"worker": "0/2"}], ids=str)
def test_splits_beside_an_index_that_would_hide_them_are_refused(
    tmp_path: Path, how: dict[str, Any], run: dict[str, Any]
) -> None:
    convert_lines(tmp_path, LINES)
    before = sorted((tmp_path / "out").rglob("*"))
    said = refuse_lines("", tmp_path, LINES, **ARRAY, **how, **run)
    noun = "split val" if "split" in how else "splits train, val"
    assert said == (
        f"{tmp_path}/out has an index.json, so it is a dataset that would hide the {noun}. "
        "Choose another output, or move the dataset to a subfolder"
    )
    assert sorted((tmp_path / "out").rglob("*")) == before


@pytest.mark.parametrize("run", [{}, {"overwrite": True}, {"worker": "0/2"}], ids=str)
def test_an_index_above_splits_is_refused(tmp_path: Path, run: dict[str, Any]) -> None:
    convert_lines(tmp_path, LINES, splits=SPLITS)
    refuse_lines("out has datasets in its subfolders: train, val", tmp_path, LINES, **ARRAY, **run)
    refuse_lines(
        r"cannot append to .*, because it has no finished conversion", tmp_path, LINES, append=True
    )
    assert not (tmp_path / "out" / "index.json").exists()
    assert not (tmp_path / "out" / ".convert").exists()


def test_a_split_with_datasets_in_its_folders_is_refused(tmp_path: Path) -> None:
    convert_lines(tmp_path, LINES, split="val/en")
    refuse_lines("out/val has datasets in its subfolders: en", tmp_path, LINES, splits=SPLITS)


def test_splits_beside_splits_are_fine(tmp_path: Path) -> None:
    convert_lines(tmp_path, LINES, splits=SPLITS)
    convert_lines(tmp_path, LINES[:1], split="test")
    convert_lines(tmp_path, LINES[1:2], splits="dev=0.5,more=0.5")
    assert texts(str(tmp_path / "out/test"), tmp_path) == ["document 0"]
    assert convert_lines(tmp_path, LINES, splits=SPLITS, overwrite=True).documents == 40


def test_datasets_that_appear_while_segments_are_converted_are_not_hidden(tmp_path: Path) -> None:
    convert_lines(tmp_path, LINES, worker="0/2", **ARRAY)
    source, out = tmp_path / "in", tmp_path / "out"
    other = tmp_path / "out" / "val" / "index.json"
    other.parent.mkdir()
    other.write_text('{"shards": [], "version": 2}')
    ways: list[dict[str, Any]] = [{"worker": "1/2"}, {"finish": True}, {}]
    for run in ways:
        refuse("out has datasets in its subfolders: val", source, out, **ARRAY, **run)
        assert not (tmp_path / "out" / "index.json").exists()
    other.unlink()
    assert convert(source, out, finish=True, **ARRAY).documents == 40
