"""The command line is the library: the same bytes, results on stdout, errors on stderr."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cloudload import cli, convert_to_mds, export_rows
from tests.support.corpora import byte_tokenizer


def test_an_error_is_one_line_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["convert", str(tmp_path / "none"), str(tmp_path / "out")]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("cloudload: cannot list ")
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        ("convrt corpus out", "convert"),
        ("tarce state --steps 1", "trace"),
        ("convert --compresion gz corpus out", "--compression"),
        ("convert --format jsnl corpus out", "jsonl"),
        ("where state --untl=3 --until 3 --id a", "--until"),
    ],
)
def test_a_misspelled_word_is_answered_with_the_one_that_was_meant(
    arguments: str, suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments.split())
    assert capsys.readouterr().err.endswith(f". Did you mean {suggestion}?\n")


def test_quiet_prints_nothing_and_keeps_the_report_that_was_asked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"text": "a b"}\n')
    arguments = ["convert", str(corpus), str(tmp_path / "out"), "--quiet", "--processes", "1"]
    assert cli.main(arguments) == 0
    assert capfd.readouterr() == ("", "")
    assert cli.main([*arguments, "--json"]) == 0  # already complete
    assert json.loads(capfd.readouterr().out)["documents"] == 1
    assert cli.main([str(each) for each in arguments if each != "--quiet"]) == 0
    assert "documents  1" in capfd.readouterr().out


def test_one_of_a_thing_is_singular(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus, out, lengths = tmp_path / "corpus.jsonl", str(tmp_path / "out"), tmp_path / "lengths"
    corpus.write_text('{"text": "a b"}\n')
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    count = ["--tokenizer", str(tmp_path / "tokenizer.json"), "--out", str(lengths)]
    printed = ""
    for command in (
        ["convert", str(corpus), out, "--plan"],
        ["convert", str(corpus), out, "--processes", "1"],
        ["info", out],
        ["head", out],
        ["count", out, *count, "--processes", "1"],
    ):
        assert cli.main(command) == 0
        printed += capsys.readouterr().out
    assert "input      1 file, 16 bytes" in printed
    assert "output     1 shard, " in printed
    assert "1 segment, the largest of 16 bytes" in printed
    assert not re.search(r"(?<![\d.,])1 [a-z]+s\b(?! of)", printed)


@pytest.mark.parametrize("compression", ["zstd", "gz", "bz2", "br"])
def test_every_compression_that_can_be_written_is_named(
    compression: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command, function in (("convert", convert_to_mds), ("export", export_rows)):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        assert re.search(rf"\b{compression}\b", capsys.readouterr().out)
        assert f"`{compression}`" in str(function.__doc__)
