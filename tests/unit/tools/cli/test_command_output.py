"""Results reach any stdout: text cannot control a terminal, and JSON is always JSON."""

from __future__ import annotations

import io
import json
import re
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload import cli, convert_to_mds
from cloudload.cli import main
from cloudload.inspect import Sample, read_samples
from cloudload.provenance import describe_state
from cloudload.system.reports import to_json
from cloudload.system.terminal import escape, escape_lines, wrap
from cloudload.tools.cli.output import print_marked
from cloudload.tools.convert.dry_run import Outline
from cloudload.tools.count.length_report import LengthBin, LengthStats
from cloudload.tools.inspect.masked_text import MaskedText
from testkit.corpora import byte_tokenizer, random_documents, write_mds
from testkit.loaders import make_loader

Capture = pytest.CaptureFixture[str]
EVIL = "\x1b]0;t\x07\x1b[31mred\x9b2J\u202e"


class Terminal(io.TextIOWrapper):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Log:
    """A stream without the methods of a terminal."""

    def write(self, text: str) -> int:
        return len(text)


def redirect(
    monkeypatch: pytest.MonkeyPatch, encoding: str, kind: type[io.TextIOWrapper] = io.TextIOWrapper
) -> io.BytesIO:
    """Replace stdout by a stream of an encoding. Returns the stream's bytes."""
    found = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", kind(found, encoding=encoding, write_through=True))
    return found


def parse_lines(printed: str | bytes) -> list[Any]:
    """Parse JSON Lines. Fails for NaN and infinities, which JSON does not have."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return [json.loads(line, parse_constant=refuse) for line in printed.splitlines()]


def list_invisible(printed: str) -> list[str]:
    """List the characters that could control a terminal, except line feeds."""
    return [each for each in printed if unicodedata.category(each)[0] == "C" and each != "\n"]


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A dataset whose texts, IDs and numbers are awkward."""
    texts = [f"naïve 漢字 {EVIL}\nnext line {number} {'x' * 30 * number}" for number in range(12)]
    extra = {
        "id": ("str", [f"{EVIL}{number}" for number in range(12)]),
        "number": ("json", [float("nan"), float("-inf"), *range(10)]),
    }
    return write_mds(tmp_path / "data", texts, extra=extra, shard_samples=[1, 2, 4, 1, 1, 3])


@pytest.fixture
def state(tmp_path: Path, data: str) -> list[str]:
    """The arguments of a command that reads a run from its state."""
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    settings: dict[str, Any] = {"tokenizer": str(tmp_path / "tokenizer.json"), "eos": 256}
    with make_loader(data, local=tmp_path / "cache", **settings) as loader:
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    return [
        str(tmp_path / "state.json"),
        "--local",
        str(tmp_path / "cache"),
        *["--workers", "0", "--global-batch", "4"],
    ]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16", "cp1252", "utf-8"])
def test_json_is_utf_8_on_a_stdout_of_any_encoding(
    data: str, encoding: str, monkeypatch: pytest.MonkeyPatch, cli: Any
) -> None:
    found = redirect(monkeypatch, encoding)
    cli("head", data, "-n", "2")
    lines = parse_lines(found.getvalue().decode("utf-8"))
    assert [line["values"]["text"].startswith(f"naïve 漢字 {EVIL}") for line in lines] == [True] * 2
    assert [line["values"]["number"] for line in lines] == [None, None]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_bars_and_documents_are_shown_on_a_terminal_without_unicode(
    data: str, encoding: str, monkeypatch: pytest.MonkeyPatch, cli: Any
) -> None:
    found = redirect(monkeypatch, encoding, Terminal)
    cli("info", data)
    cli("head", data, "-n", "1")
    shown = found.getvalue().decode(encoding)
    assert "####" in shown
    assert r"\u6f22\u5b57" in shown


def test_json_on_a_terminal_is_ascii(data: str, monkeypatch: pytest.MonkeyPatch, cli: Any) -> None:
    found = redirect(monkeypatch, "utf-8", Terminal)
    cli("head", data, "--json", "-n", "1")
    assert found.getvalue().isascii()
    [line] = parse_lines(found.getvalue())
    assert EVIL in line["values"]["text"]


@pytest.mark.parametrize(
    ("variables", "is_bold"),
    [
        ({}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, True),
        ({"TERM": "dumb"}, False),
        ({"TERM": "xterm"}, True),
    ],
)
def test_bold_follows_the_wishes_of_the_terminal(
    data: str, variables: dict[str, str], is_bold: bool, monkeypatch: pytest.MonkeyPatch, cli: Any
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = redirect(monkeypatch, "utf-8", Terminal)
    cli("head", data, "-n", "1")
    assert found.getvalue().startswith(b"\x1b[1m") == is_bold
    assert (b"\x1b" in found.getvalue()) == is_bold


@pytest.mark.parametrize("has_color", [True, False])
def test_trained_parts_are_marked_by_color_or_by_brackets(
    has_color: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm" if has_color else "dumb")
    found = redirect(monkeypatch, "utf-8", Terminal)
    parts = (("ask\x1b[31m\n", False), ("one two\nthree", True), ("\n", False))
    document = MaskedText(4, 2, parts, "long", "has 4 tokens\n")
    print_marked(document.describe(8, is_full=True), heading="x")
    opening, closing = ("\x1b[1;32m", "\x1b[0m") if has_color else ("⟦", "⟧")
    lines = found.getvalue().decode().splitlines()
    assert lines[1:] == [
        "  long: ",
        "  has 4 ",
        "  tokens",
        "    ask\\",
        "    x1b[",
        "    31m",
        f"    {opening}one {closing}",
        f"    {opening}two{closing}",
        f"    {opening}thre{closing}",
        f"    {opening}e{closing}",
    ]


@pytest.mark.parametrize(
    ("prompt", "shown"), [(0, (0, 800)), (600, (600, 200)), (601, (200, 600)), (5_000, (200, 600))]
)
def test_a_long_document_is_shown_around_its_first_trained_part(
    prompt: int, shown: tuple[int, int]
) -> None:
    parts = tuple(part for part in (("a" * prompt, False), ("c" * 900, True)) if part[0])
    document = MaskedText(9, 4, parts, None, "")
    texts = [text for line in document.describe(80, is_full=False) for text, _ in line]
    assert (
        tuple(sum(text.count(letter) for text in texts if "…" not in text) for letter in "ac")
        == shown
    )
    assert (texts[0] == f"  … {prompt - 200:,} characters before") == (prompt > 600)
    assert texts[-1] == f"  … {900 - shown[1]} more characters"
    full = [text for line in document.describe(80, is_full=True) for text, _ in line]
    assert "".join(full).replace(" ", "") == "".join(text for text, _ in parts)


def test_a_result_that_cannot_be_printed_is_an_error(
    data: str, monkeypatch: pytest.MonkeyPatch, cli: Any
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert "stdout is closed, so the result cannot be printed" in cli("info", data, status=1).err


@pytest.mark.parametrize("stderr", [None, Log()])
def test_work_goes_on_if_stderr_is_closed_or_not_a_file(
    tmp_path: Path, stderr: Any, monkeypatch: pytest.MonkeyPatch, cli: Any
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one two"}\n')
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    out, tokenizer = str(tmp_path / "out"), str(tmp_path / "tokenizer.json")
    monkeypatch.setattr(sys, "stderr", stderr)
    convert_to_mds([str(tmp_path / "a.jsonl")], out, processes=1)
    for command in (["check", out], ["count", out, "--tokenizer", tokenizer], ["info", out]):
        cli(*command)
    assert "missing" not in cli("info", tmp_path / "missing", status=1).out, (
        "an error is not a result"
    )


def test_text_of_a_corpus_cannot_control_the_terminal(
    tmp_path: Path, data: str, state: list[str], capsys: Capture
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({EVIL: 1}) + "\n")
    bad, out = tmp_path / f"{EVIL}.jsonl", str(tmp_path / "out")
    bad.write_text('{"text": "a"}\n{"text": 1}\n')
    assert cli.main(["convert", str(tmp_path / "a.jsonl"), out]) == 1
    assert cli.main(["convert", str(bad), out]) == 1
    assert cli.main(["convert", str(bad), out, "--skip-bad"]) == 0
    assert cli.main(["convert", str(bad), out, "--plan"]) == 0
    assert cli.main(["trace", *state, "--steps", "1:3"]) == 0
    assert cli.main(["trace", *state, "--steps", "1:3", "--full"]) == 0
    assert cli.main(["where", *state, "--sample", "3", "--until", "20"]) == 0
    assert cli.main(["check", data, "--rules", "all", "--quiet"]) in (0, 1)
    assert cli.main(["info", str(tmp_path / EVIL)]) == 1
    with pytest.raises(SystemExit):
        cli.main(["info", "data", EVIL])
    printed = capsys.readouterr()
    assert list_invisible(printed.out) == []
    assert list_invisible(printed.err.replace("\r", "")) == []
    assert r"\x1b[31mred" in printed.out
    assert r"\x1b[31mred" in printed.err


def test_an_estimate_without_an_error_bound_is_json(tmp_path: Path, cli: Any) -> None:
    data = write_mds(tmp_path / "one-shard", random_documents(1, 3_000, max_words=3))
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    arguments = ["--tokenizer", str(tmp_path / "tokenizer.json"), "--sample", "1%", "--json"]
    [found] = parse_lines(cli("count", data, *arguments).out.replace("\n", " "))
    assert found["error"] is None


def test_numbers_that_json_lacks_are_null() -> None:
    values = {"a": float("nan"), "b": [float("inf"), (1.5, -float("inf"))]}
    assert json.loads(to_json(values)) == {"a": None, "b": [None, [1.5, None]]}


@pytest.mark.parametrize("more", [["--json"], ["--json", "--steps", "1:2"]])
def test_json_of_runs_is_json(state: list[str], more: list[str], cli: Any) -> None:
    command = "trace" if "--steps" in more else "where"
    arguments = more if command == "trace" else [*more, "--sample", "3", "--until", "20"]
    assert parse_lines(cli(command, *state, *arguments).out)


# ---------------------------------------------------------------- head


TEXTS = random_documents(5, 12)


def test_a_pipe_gets_one_json_object_per_line(tmp_path: Path, cli: Any) -> None:
    write_mds(tmp_path, TEXTS)
    lines = cli("head", tmp_path, "-n", "3").out.splitlines()
    documents = [*read_samples(tmp_path, limit=3)]
    assert [json.loads(line) for line in lines] == [each.as_dict() for each in documents]


def test_a_json_column_with_an_unpaired_surrogate_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_mds(tmp_path, ["a"], extra={"meta": ("json", ["\ud800"])})
    assert main(["head", str(tmp_path)]) == 0
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
    lines = [*document.describe("text", 80, is_full=False)]
    assert lines[1] == "  … 1,200 characters before"
    assert any("needle" in line for line in lines)
    assert lines[-1] == f"  … {len(text) - 2_000:,} more characters"


def test_a_long_id_is_shortened_too() -> None:
    sample = Sample(0, "shard.00000.mds", {"id": "x" * 1_000, "text": "a"})
    [line, _] = sample.describe("text", 80, is_full=False)
    assert line.endswith(f"  id {'x' * 200} … 800 more characters  1 character")


def test_other_columns_are_one_line_each() -> None:
    values = {"tokens": [*range(99)], "source": "a\nb", "score": 0.5, "text": "hello"}
    document = Sample(0, "shard.00000.mds", values)
    assert [*document.describe("text", 80, is_full=False)] == [
        "sample 0  shard.00000.mds  5 characters",
        "  tokens: 99 integers: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 …",
        r"  source: a\nb",
        "  score: 0.5",
        "    hello",
    ]


# ---------------------------------------------------------------- words and numbers


@pytest.mark.parametrize(
    ("seconds", "largest", "segments", "text"),
    [
        (0.2, 0.1, 2, "less than a second"),
        (40.0, 40.0, 1, "about 40 s on one core, because a segment is converted by one core"),
        (3.2, 0.3, 12, "about 3 s on one core"),
        (
            *(4_000.0, 61.0, 100),
            "about 4,000 s on one core; at least 61 s on many cores, because of the largest "
            "segment",
        ),
    ],
)
def test_the_plan_of_a_conversion_has_no_time_of_zero_seconds(
    seconds: float, largest: float, segments: int, text: str
) -> None:
    *_, last = Outline((), 1, 1, segments, 1, seconds, largest).describe()
    assert last == text


def test_the_percentiles_of_long_documents_fit_in_80_columns() -> None:
    names = ("1", "5", "25", "50", "75", "90", "95", "99", "99.9")
    percentiles = dict.fromkeys(names, 1_234_567)
    stats = LengthStats(123_456.7, 1_234_567, percentiles, (LengthBin(1, 2, 1, 1),), ())
    lines = list(stats.describe())
    assert max(map(len, lines)) <= 80
    shown = dict(re.findall(r"p([\d.]+) ([\d,]+)", "\n".join(lines)))
    assert shown == dict.fromkeys(names, "1,234,567")


def test_a_state_is_shown_with_the_meaning_of_its_fields(folder: str) -> None:
    with make_loader(folder, num_workers=0) as loader:
        lines = list(describe_state(loader.state_dict()).describe())
    [chosen] = [line for line in lines if line.startswith("  choose ")]
    [frames] = [line for line in lines if line.startswith("  bos_eos ")]
    assert chosen.endswith("  (samples in an epoch, by stream or corpus)")
    assert frames.endswith("  (IDs before and after a document, by stream)")
    assert max(map(len, lines[: lines.index("read from")])) <= 80


# ---------------------------------------------------------------- text on a terminal


ANY_TEXT = st.text(st.characters())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, Grüße, 狐 🦊\u3000", "plain, Grüße, 狐 🦊\u3000"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x9b2J\x85\x00\x7f\r\n\t", r"\x9b2J\x85\x00\x7f\r\n\t"),
        ("a\u202eb\u2066c\u200fd", r"a\u202eb\u2066c\u200fd"),
        ("\ud800", r"\ud800"),
        ("\u2028\ufeff\u00ad", r"\u2028\ufeff\xad"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_what_a_terminal_would_not_show_is_escaped(text: str, shown: str) -> None:
    assert escape(text) == shown


@given(ANY_TEXT)
def test_no_control_or_format_character_is_left(text: str) -> None:
    for line in escape_lines(text):
        assert all(unicodedata.category(each)[0] != "C" for each in line)
        line.encode("utf-8")


@given(st.text(st.characters(codec="utf-8")), st.integers(2, 20))
def test_wrapped_lines_are_the_text_and_fit(text: str, columns: int) -> None:
    line = escape(text)
    parts = [*wrap(line, columns)]
    assert "".join(parts) == line
    for part in parts:
        cells = [
            0
            if unicodedata.combining(each)
            else 1 + (unicodedata.east_asian_width(each) in ("W", "F"))
            for each in part
        ]
        assert sum(cells) <= columns


def test_lines_are_cut_after_a_space() -> None:
    assert [*wrap("the quick brown fox", 10)] == ["the quick ", "brown fox"]
    assert [*wrap("狐狐狐", 4)] == ["狐狐", "狐"]
