"""The commands write the same bytes as the library, with results on stdout and errors on stderr."""

from __future__ import annotations

import argparse
import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from cloudload import cli, convert_to_mds, export_rows
from cloudload.tools.cli.command import in_words_of_options
from cloudload.tools.cli.convert_command import add_convert
from testkit.corpora import byte_tokenizer


def test_an_error_is_one_line_on_stderr(tmp_path: Path, cli: Any) -> None:
    printed = cli("convert", tmp_path / "none", tmp_path / "out", status=1)
    assert printed.out == ""
    assert printed.err.startswith("cloudload: cannot read the input ")
    assert printed.err.count("\n") == 1


def test_without_a_command_the_commands_are_listed(cli: Any) -> None:
    printed = cli(status=2)
    assert printed.out == ""
    assert re.search(r"\n    convert +convert raw corpora", printed.err)


def test_an_interrupt_while_a_command_is_loaded_is_one_line(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cloudload.tools.cli._COMMANDS", (functools.wraps(add_convert)(load),))
    printed = cli("convert", "corpus", "out", status=130)
    assert (printed.out, printed.err) == ("", "cloudload: interrupted. Nothing was changed\n")


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


@pytest.mark.parametrize(
    ("arguments", "command", "option"),
    [
        ("info mds --sampel 3", "info", "--sample"),
        ("convert a b --textkey body", "convert", "--text-key"),
        ("convert a b --num-proc 3", "convert", "--processes"),
        ("trace state.pt --stesp 3", "trace", "--steps"),
        ("rows --steps 1 --rwo 0:2", "rows", "--row"),
        ("count mds --tokenizr gpt2", "count", "--tokenizer"),
        ("head mds --text body", "head", "--text-key"),
        ("count mds --tok=gpt2", "count", "--tokenizer"),
        ("head mds -x", "head", None),
    ],
)
def test_a_wrong_option_shows_the_usage_of_its_command(
    arguments: str, command: str, option: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments.split())
    said = capsys.readouterr().err
    assert said.startswith(f"usage: cloudload {command} [-h]")
    assert f"cloudload {command}: error: unrecognized arguments: " in said
    assert option is None or said.endswith(f". Did you mean {option}?\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--compression zst", r"^cloudload: --compression is 'zst'. Use zstd .*, or none$"),
        ("--shard-bytes 5", r"^cloudload: --shard-bytes is 5. Use an integer from 1,024"),
        ("--worker 3", r"^cloudload: --worker is '3'. Use I/N"),
    ],
)
def test_errors_of_the_command_line_use_its_words(
    arguments: str, expected: str, tmp_path: Path, cli: Any
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"text": "one"}\n')
    convert = ["convert", str(corpus), str(tmp_path / "out"), "--quiet"]
    assert re.search(expected, cli(*convert, *arguments.split(), status=1).err.strip())


def test_a_tokenizer_that_count_needs_is_missed_before_anything_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["count", "no/such/folder"])
    assert (
        ": error: --tokenizer is missing. Pass --tokenizer, or --tokens-key if"
        in capsys.readouterr().err
    )


def test_a_check_of_what_is_not_a_dataset_reports_no_counts(tmp_path: Path, cli: Any) -> None:
    table = tmp_path / "table.csv"
    table.write_text("text\none\n")
    _, kind, what, _ = cli("check", table, status=1).out.splitlines()
    assert kind.startswith("  error: index-missing")
    assert what.startswith(f"    {table} is a file, not the folder")


def test_a_changed_recipe_is_told_in_the_words_of_the_options(tmp_path: Path, cli: Any) -> None:
    corpus = tmp_path / "text_key.jsonl"
    corpus.write_text('{"text": "one"}\n')
    convert = ["convert", str(corpus), str(tmp_path / "out"), "--quiet"]
    cli(*convert)
    said = cli(*convert, "--text-key", "body", status=1).err
    assert "options: --text-key was 'text' and is now 'body'. Run" in said
    said = cli("convert", corpus, tmp_path / "new", "--text-key", "body", status=1).err
    assert "text_key.jsonl" in said, "a file name must not be rewritten as an option"
    assert "Set --text-key to the name of the field that has the text\n" in said


def test_a_value_that_is_none_is_missing_on_the_command_line() -> None:
    command = argparse.ArgumentParser()
    command.add_argument("--tokenizer")
    said = in_words_of_options("tokenizer is None, but the documents are text", command)
    assert said == "--tokenizer is missing, but the documents are text"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("a bad one. Pass tokenizer=…, or omit it", "a bad one. Pass --tokenizer …, or omit it"),
        ("pass on_error='skip'", "pass --on-error skip"),
        (
            "Use tokenizer_backend='hf', or num_workers=0 with python",
            "Use --tokenizer-backend hf, or --num-workers 0 with python",
        ),
        ("pass eos=None.", "pass --eos none."),
        ("Use shuffle=False.", "Use --no-shuffle."),
        ("Pass Stream('a', split='b')", "Pass Stream('a', split='b')"),
        ("Pass Chat(max_tokens=N) or Chat(a='b')", "Pass --chat max_tokens=N or --chat a=b"),
        ("pass chat=Chat(), or chat=Chat(a='b')", "pass --chat tokenizer, or --chat a=b"),
        ("on_error of Chat or Chat(on_error=1)", "on_error of --chat or --chat on_error=1"),
        ("Set skip_bad (--skip-bad), or omit by (--by)", "Set --skip-bad, or omit --by"),
    ],
)
def test_values_of_arguments_are_told_as_options(message: str, said: str) -> None:
    command = argparse.ArgumentParser()
    for option in ("tokenizer", "on-error", "split", "skip-bad", "by", "eos", "chat"):
        command.add_argument(f"--{option}")
    command.add_argument("--tokenizer-backend")
    command.add_argument("--num-workers", "--workers")
    command.add_argument("--shuffle", action=argparse.BooleanOptionalAction)
    assert in_words_of_options(message, command) == said


@pytest.mark.parametrize("out", ["/dev/null/x", "/proc/x"])
def test_a_place_that_cannot_be_written_is_not_said_to_be_missing(
    tmp_path: Path, cli: Any, out: str
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"text": "one"}\n')
    said = cli("convert", corpus, out, "--quiet", status=1).err
    assert said.startswith(f"cloudload: cannot write {out}")
    assert said.endswith(". Nothing can be stored there. Check the location\n")


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
    assert cli.main([each for each in arguments if each != "--quiet"]) == 0
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


@pytest.mark.parametrize(
    "arguments",
    [
        "count {data} --tokenizer {tokenizer} --png {tokenizer}",
        "check {data} --tokenizer {tokenizer} --write-golden {link}/index.json",
        "rows --data {data} --steps 1 --out {data}/./shard.00000.mds",
        "rows --data {data} --steps 1 --out {link}/index.json",
    ],
)
def test_no_command_writes_over_a_file_that_it_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: str
) -> None:
    (tmp_path / "a.txt").write_text("text")
    tokenizer, data, link = (tmp_path / name for name in ("tokenizer.json", "data", "link"))
    byte_tokenizer().save(str(tokenizer))
    convert_to_mds(tmp_path / "a.txt", data, compression=None, progress=False)
    link.symlink_to(data)
    before = {path: path.read_bytes() for path in [tokenizer, *data.iterdir()]}
    places = {"data": data, "tokenizer": tokenizer, "link": link}
    assert cli.main(arguments.format(**places).split()) != 0
    assert "which would replace a file that is read" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before
