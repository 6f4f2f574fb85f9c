"""An append adds each file once: it leaves out files of the dataset, and refuses changed ones."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from cloudload.cli import main
from cloudload.convert import convert_to_mds
from cloudload.errors import ConvertError, StoreError
from cloudload.tools.count import count_tokens
from testkit.conversions import QUIET, note_each_write, texts
from testkit.corpora import byte_tokenizer


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.jsonl"
    path.write_text(json.dumps({"text": text}) + "\n")
    return path


def test_a_folder_that_grows_every_night_is_appended_without_a_duplicate(tmp_path: Path) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    for night, name in enumerate("abcd"):
        write(corpus, name, f"of {name}")
        report = convert_to_mds(corpus, out, append=night > 0, **QUIET)
        assert (report.documents, report.files, report.skipped_files) == (
            night + 1,
            night + 1,
            night,
        )
        assert texts(str(out), tmp_path) == [f"of {each}" for each in "abcd"[: night + 1]]
    again = convert_to_mds(corpus, out, append=True, **QUIET)
    assert (again.already_complete, again.documents, again.skipped_files) == (True, 4, 4)


def test_files_that_were_moved_or_named_otherwise_are_recognized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    write(corpus, "a", "of a")
    convert_to_mds(corpus, out, **QUIET)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(corpus)
    for same in ("corpus", "corpus/a.jsonl", "link/*.jsonl", ["corpus/a.jsonl"]):
        assert convert_to_mds(same, out, append=True, **QUIET).skipped_files == 1
    corpus.rename(tmp_path / "moved")
    assert convert_to_mds("moved", out, append=True, **QUIET).already_complete
    write(tmp_path / "day2", "a", "of a on another day")
    assert convert_to_mds("day2", out, append=True, **QUIET).documents == 2
    assert convert_to_mds(["moved", "day2"], out, append=True, **QUIET).skipped_files == 2


def test_a_file_that_changed_since_it_was_converted_is_not_appended(tmp_path: Path) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    write(corpus, "a", "of a")
    convert_to_mds(corpus, out, **QUIET)
    write(corpus, "b", "of b")
    write(corpus, "a", "of a, longer")
    with pytest.raises(ConvertError, match=r"changed since it was converted .* a new file"):
        convert_to_mds(corpus, out, append=True, **QUIET)
    assert texts(str(out), tmp_path) == ["of a"]


@pytest.mark.parametrize("last", ["convert-report.json", "index.json"])
def test_an_append_that_was_killed_at_its_end_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    write(corpus, "a", "of a")
    convert_to_mds(corpus, out, **QUIET)
    write(corpus, "b", "of b")

    def stop(url: str) -> None:
        if url.endswith(last):
            raise StoreError("killed")

    note_each_write(monkeypatch, stop)
    with pytest.raises(StoreError, match="killed"):
        convert_to_mds(corpus, out, append=True, **QUIET)
    monkeypatch.undo()
    assert convert_to_mds(corpus, out, append=True, **QUIET).documents == 2
    assert texts(str(out), tmp_path) == ["of a", "of b"]
    assert convert_to_mds(corpus, out, append=True, **QUIET).skipped_files == 2
    assert not (out / ".convert").exists()


def test_a_report_without_digests_refuses_files_of_the_same_name_and_size(tmp_path: Path) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    write(corpus, "a", "of a")
    convert_to_mds(corpus, out, **QUIET)
    path = out / "convert-report.json"
    stored = json.loads(path.read_text())
    del stored["converted"]
    path.write_text(json.dumps(stored))
    write(corpus, "b", "of b!")
    with pytest.raises(ConvertError, match="cannot tell whether it is the same"):
        convert_to_mds(corpus, out, append=True, **QUIET)
    assert convert_to_mds(corpus / "b.jsonl", out, append=True, **QUIET).documents == 2


def test_the_summary_of_an_append_says_what_was_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    write(corpus, "a", "of a")
    convert_to_mds(corpus, out, **QUIET)
    write(corpus, "b", "of b")
    assert main(["convert", str(corpus), str(out), "--append", "--processes", "1"]) == 0
    printed = capsys.readouterr().out
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
    assert (
        "do not cover the documents that were appended. Count them: cloudload count"
        in record.message
    )
    count = count_tokens(out, tokenizer=byte_tokenizer(), processes=1, progress=False)
    assert count is not None
    assert count.documents == 2
