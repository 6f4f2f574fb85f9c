"""A conversion is refused if its index would hide another dataset or be hidden by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testkit.conversions import convert, convert_lines, refuse, refuse_lines, texts

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
