"""An append adds each file once: it leaves out files of the dataset, and refuses changed ones."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from cloudload.convert import convert_to_mds
from cloudload.errors import ConvertError
from testkit.conversions import QUIET, convert_until_write, texts, write_lines
from testkit.corpora import byte_tokenizer
from testkit.counted import count


def write(folder: Path, name: str, text: str) -> Path:
    return write_lines(folder / f"{name}.jsonl", [text])


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A corpus of one file, `a.jsonl`, and its conversion."""
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    write(corpus, "a", "of a")
    convert_to_mds(corpus, out, **QUIET)
    return corpus, out


def test_a_folder_that_grows_every_night_is_appended_without_a_duplicate(tmp_path: Path) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    for night, name in enumerate("abcd"):
        write(corpus, name, f"of {name}")
        report = convert_to_mds(corpus, out, append=night > 0, **QUIET)
        assert (report.documents, report.files) == (night + 1, night + 1)
        assert report.skipped_files == night
        assert texts(str(out), tmp_path) == [f"of {each}" for each in "abcd"[: night + 1]]
    again = convert_to_mds(corpus, out, append=True, **QUIET)
    assert (again.already_complete, again.documents, again.skipped_files) == (True, 4, 4)


def test_files_that_were_moved_or_named_otherwise_are_recognized(
    places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, out = places
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(corpus)
    for same in ("corpus", "corpus/a.jsonl", "link/*.jsonl", ["corpus/a.jsonl"]):
        assert convert_to_mds(same, out, append=True, **QUIET).skipped_files == 1
    corpus.rename(tmp_path / "moved")
    assert convert_to_mds("moved", out, append=True, **QUIET).already_complete
    write(tmp_path / "day2", "a", "of a on another day")
    assert convert_to_mds("day2", out, append=True, **QUIET).documents == 2
    assert convert_to_mds(["moved", "day2"], out, append=True, **QUIET).skipped_files == 2


def test_a_file_that_changed_since_it_was_converted_is_not_appended(
    places: tuple[Path, Path], tmp_path: Path
) -> None:
    corpus, out = places
    write(corpus, "b", "of b")
    write(corpus, "a", "of a, longer")
    with pytest.raises(ConvertError, match=r"changed since it was converted .* a new file"):
        convert_to_mds(corpus, out, append=True, **QUIET)
    assert texts(str(out), tmp_path) == ["of a"]


@pytest.mark.parametrize("last", ["convert-report.json", "index.json"])
def test_an_append_that_was_killed_at_its_end_is_finished_by_the_next(
    places: tuple[Path, Path], tmp_path: Path, last: str
) -> None:
    corpus, out = places
    write(corpus, "b", "of b")
    convert_until_write(last, corpus, out, append=True, **QUIET)
    assert convert_to_mds(corpus, out, append=True, **QUIET).documents == 2
    assert texts(str(out), tmp_path) == ["of a", "of b"]
    assert convert_to_mds(corpus, out, append=True, **QUIET).skipped_files == 2
    assert not (out / ".convert").exists()


def test_a_report_without_digests_refuses_files_of_the_same_name_and_size(
    places: tuple[Path, Path],
) -> None:
    corpus, out = places
    path = out / "convert-report.json"
    stored = json.loads(path.read_text())
    del stored["converted"]
    path.write_text(json.dumps(stored))
    write(corpus, "b", "of b!")
    with pytest.raises(ConvertError, match="cannot tell whether it is the same"):
        convert_to_mds(corpus, out, append=True, **QUIET)
    assert convert_to_mds(corpus / "b.jsonl", out, append=True, **QUIET).documents == 2


def test_the_summary_of_an_append_says_what_was_new(places: tuple[Path, Path], cli: Any) -> None:
    corpus, out = places
    write(corpus, "b", "of b")
    printed = cli("convert", corpus, out, "--append", "--processes", "1").out
    assert "documents  2 (8 bytes of text), 1 appended" in printed
    assert "skipped    1 file, in the dataset already" in printed


def test_an_append_without_a_tokenizer_says_that_the_lengths_no_longer_cover_the_dataset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    write(corpus, "a", "of a")
    options = {**QUIET, "tokenizer": byte_tokenizer()}
    convert_to_mds(corpus, out, **options)
    shutil.copytree(out, tmp_path / "other")
    write(corpus, "b", "of b")
    convert_to_mds(corpus, tmp_path / "other", append=True, **options)
    assert "lengths" not in caplog.text
    convert_to_mds(corpus, out, append=True, **QUIET)
    [record] = [each for each in caplog.records if each.levelno == logging.WARNING]
    advice = "do not cover the documents that were appended. Count them: cloudload count"
    assert advice in record.message
    assert count(out).documents == 2
