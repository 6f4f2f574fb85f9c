"""Every wrong command line and every unexpected error ends in one sentence, without secrets."""

from __future__ import annotations

import argparse
import pickle
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from cloudload import Stream
from cloudload.errors import DatasetError, StreamChangedError
from cloudload.losses import read_losses
from cloudload.provenance import describe_state, load_state
from cloudload.tools import cli
from cloudload.tools.cli.command import path_argument, positive_number, whole_number
from cloudload.tools.count.count import count_tokens
from cloudload.tools.losses.log_file import Records, start_file, write_records
from testkit.corpora import byte_tokenizer, random_documents, write_mds
from testkit.loaders import make_loader

PASSWORD, SIGNATURE = "correct-horse-battery", "deadbeefcafe0123"
URL = f"https://user:{PASSWORD}@host/x?sig={SIGNATURE}"
Capture = pytest.CaptureFixture[str]


def run(*arguments: str) -> int:
    """Run the command line, and return its exit status."""
    try:
        return cli.main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)


def list_options() -> Iterator[tuple[str, argparse.Action]]:
    """List each option and argument of each command."""
    [commands] = [each for each in cli.make_parser()._actions if isinstance(each.choices, dict)]
    assert isinstance(commands.choices, dict)
    for name, parser in commands.choices.items():
        for action in parser.fill()._actions:
            yield name, action


def test_an_unexpected_error_is_one_sentence_and_its_traceback_is_printed_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError(f"at {URL} in \x1b[31mred")

    monkeypatch.setattr("cloudload.tools.inspect.info.open_corpus", fail)
    assert run("info", "data") == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "cloudload: an unexpected error ended the command (ZeroDivisionError: at https://host/x in "
        r"\x1b[31mred). Check its arguments and its input. To see where the error comes from, run "
        "it again with CLOUDLOAD_TRACEBACK=1\n"
    )
    monkeypatch.setenv("CLOUDLOAD_TRACEBACK", "1")
    assert run("info", "data") == 1
    said = capsys.readouterr().err
    assert said.startswith("cloudload: the traceback:\nTraceback (most recent call last):")
    assert "in fail" in said
    assert "\x1b" not in said
    assert PASSWORD not in said


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("zero.py", "1 / 0", "raised ZeroDivisionError: division by zero"),
        ("syntax.py", "config = (", "raised SyntaxError"),
        ("exit.py", "raise SystemExit(3)", "raised SystemExit: 3"),
        ("os.py", "open('no/such/file')", "raised FileNotFoundError"),
        ("latin.yaml", b"data: caf\xe9", "is not valid YAML"),
        ("deep.yaml", "[" * 5_000, "is not valid YAML"),
        ("digits.yaml", f"seq_len: {'9' * 5_000}", "is not valid YAML"),
    ],
)
def test_a_config_that_fails_is_named_with_its_error(
    tmp_path: Path, capsys: Capture, name: str, content: str | bytes, what: str
) -> None:
    config = tmp_path / name
    config.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert run("plan", "--config", str(config)) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"cloudload: --config {config}")
    assert what in said
    assert "Correct the file" in said


def test_a_transform_that_cannot_be_imported_is_named_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "leaves_early.py").write_text("import sys; sys.exit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("leaves_early:f", ".x:y", "json:no_such_function", ":"):
        assert run("count", "data", "--tokenizer", "none", "--transform", name) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"cloudload: --transform {name!r} cannot be imported (") or (
            said.startswith(f"cloudload: transform {name!r} cannot be imported (")
        )


def test_every_number_and_path_of_a_command_line_has_bounds() -> None:
    kinds = {whole_number().__qualname__, positive_number.__qualname__, path_argument.__qualname__}
    for command, action in list_options():
        assert action.type not in (int, float, Path), f"{command} {action.dest}"
        if getattr(action.type, "__qualname__", "") not in kinds:
            continue
        wrong = ["s3://bucket/x"] if action.type is path_argument else ["-1", "x", "nan", "9" * 400]
        for text in wrong:
            with pytest.raises(argparse.ArgumentTypeError):
                cast("Callable[[str], object]", action.type)(text)


@pytest.mark.parametrize(
    "arguments",
    [
        f"convert in out --shard-bytes {'9' * 400}",
        f"plan --data d --tokens {'9' * 400} --batch-size 1 --seq-len 8",
        "count data --tokenizer t --processes 0",
        "plan --gpu-tokens-per-s -1",
        "rows --steps 1 --global-batch 0",
        "info data --sample -1",
    ],
)
def test_a_number_that_makes_no_sense_is_refused(arguments: str, capsys: Capture) -> None:
    assert run(*arguments.split()) in (1, 2)
    said = capsys.readouterr().err.splitlines()[-1]
    assert "unexpected" not in said
    assert any(word in said for word in ("is not a", "Use an integer", "tokens is "))


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "--config", "BROKEN"],
        ["plan", "--schedule", f"[{URL}"],
        ["plan", f"--dataa={URL}"],
        ["info", "data", URL],
        ["count", "data", "--tokenizer", URL],
        ["state", "show", URL],
        ["blame", URL],
        ["plan", "--config", URL],
        ["head", "data", "--grep", f"({URL}"],
        ["convert", "INPUT", "out", "--keep", URL],
        ["convert", "INPUT", "out", "--compression", URL],
        ["export", URL, "out"],
        ["fetch", "--bytes", URL],
        ["where", "state", "--until", "1", "--sample", URL],
    ],
)
def test_no_error_of_a_command_line_shows_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("BROKEN").write_text(f"data: [{URL}\n")
    Path("INPUT").write_text('{"text": "a"}\n')
    write_mds(tmp_path / "data", ["a"])
    assert run(*arguments) in (1, 2)
    printed = capsys.readouterr()
    assert PASSWORD not in printed.out + printed.err
    assert SIGNATURE not in printed.out + printed.err
    assert "unexpected error" not in printed.err


@pytest.mark.parametrize("choose", ["0", "x,y", "", "1,-1", f"{'9' * 5_000},1"])
def test_a_state_with_damaged_numbers_of_documents_is_refused(tmp_path: Path, choose: str) -> None:
    data = [write_mds(tmp_path / name, random_documents(1, 20)) for name in ("a", "b")]
    streams = [Stream(each, proportion=1) for each in data]
    with make_loader(streams, local=tmp_path / "cache") as loader:
        state = {**loader.state_dict(), "choose": choose}
    with pytest.raises(StreamChangedError, match="is damaged, because its field 'choose'"):
        describe_state(state)


def write_log(path: Path, header: Any, *chunks: bytes) -> Path:
    """Write a loss log with a header and raw chunks."""
    with path.open("wb") as file:
        start_file(file, header)
        for chunk in chunks:
            packed = zlib.compress(chunk)
            file.write(len(packed).to_bytes(8, "little") + zlib.crc32(packed).to_bytes(4, "little"))
            file.write(packed)
    return path


@pytest.mark.parametrize(
    ("header", "chunks"),
    [
        ({}, ()),
        ([1], ()),
        ({"streams": 3, "state": None}, ()),
        ({"streams": ["a"], "state": 3}, ()),
        ({"streams": [], "state": None}, (b"\x01" + bytes(7 + 80),)),
        ({"streams": ["a"], "state": None}, (b"123",)),
        ({"streams": ["a"], "state": None}, (b"\x02" + bytes(7 + 80),)),
        ({"streams": ["a"], "state": None}, (b"\xff" * 8 + bytes(80),)),
        ({"streams": ["a"], "state": None}, (bytes(200 << 20),)),
    ],
)
def test_a_damaged_loss_log_is_named(
    tmp_path: Path, capsys: Capture, header: Any, chunks: tuple[bytes, ...]
) -> None:
    path = write_log(tmp_path / "0.losses", header, *chunks)
    with pytest.raises(DatasetError, match=r"0\.losses is not a loss log, or it is damaged"):
        read_losses(path)
    assert run("blame", str(path)) == 1
    assert "unexpected error" not in capsys.readouterr().err


def test_losses_behind_a_damaged_chunk_are_not_left_out_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = Records(np.arange(8).reshape(1, 8) * [1, 1, 0, 1, 1, 1, 1, 1], np.ones(1))
    path = tmp_path / "0.losses"
    with path.open("wb") as file:
        start_file(file, {"streams": ["a"], "state": None})
        places = [file.tell()]
        for _ in range(2):
            write_records(file, records, np.ones(1, np.int64))
            places.append(file.tell())
    content = bytearray(path.read_bytes())
    content[places[1] - 1] ^= 1
    path.write_bytes(content)
    assert len(read_losses(path).records.table) == 0
    assert f"{path} is damaged at byte {places[0]}" in caplog.text
    caplog.clear()
    path.write_bytes(content[: places[1]])  # the incomplete last chunk of a killed process
    assert len(read_losses(path).records.table) == 0
    assert caplog.text == ""


def test_a_compressed_checkpoint_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/data.pkl", pickle.dumps("x" * 1_000_000))
    with pytest.raises(StreamChangedError, match=r"bomb/data\.pkl is compressed"):
        load_state(path)


def test_a_group_file_without_its_totals_is_damaged(tmp_path: Path) -> None:
    data = write_mds(tmp_path / "data", random_documents(1, 20))
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    settings: dict[str, Any] = {"tokenizer": str(tmp_path / "tokenizer.json"), "processes": 1}
    count_tokens(data, **settings, progress=False)
    [group] = Path(data, "lengths").rglob("*.lengths")
    group.write_bytes(group.read_bytes().replace(b'"tokens"', b'"tokenz"'))
    for index in Path(data, "lengths").rglob("index*.json"):
        index.unlink()
    with pytest.raises(DatasetError, match=r"is damaged: KeyError: 'tokens'\. Remove the file"):
        count_tokens(data, **settings, progress=False)
