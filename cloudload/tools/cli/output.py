"""Print results to stdout and messages to stderr. Text that could control a terminal is escaped.

    print_lines     lines for people, escaped
    print_marked    lines with parts in color, or in brackets
    print_json      JSON: in UTF-8, or in ASCII on a terminal
    print_result    one or the other
    print_message   a message on stderr, without secrets
    notice_after    a message if a command takes long

`prepare_streams` makes stdout accept any text: a character that its encoding lacks is replaced.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from cloudload.data import redact
from cloudload.system import escape, is_terminal, reports, terminal

_BOLD, _MARKED, _PLAIN = "\x1b[1m", "\x1b[1;32m", "\x1b[0m"
_BRACKETS = "⟦", "⟧"
_ASCII = {"█": "#", "…": "...", "→": "->", "±": "+-", "⟦": "[[", "⟧": "]]"}
_REPLACE = "cloudload.replace"
_COMMANDS_WITH_BARS = {"check", "convert", "count", "export", "fetch", "select"}


class EscapingFormatter(logging.Formatter):
    """A formatter that escapes everything in a message that could control the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(terminal.escape_lines(redact(super().format(record))))


def prepare_streams() -> None:
    """Replace characters that the encoding of stdout lacks, instead of raising an error."""
    codecs.register_error(_REPLACE, _replace)
    _reconfigure(sys.stdout, errors=_REPLACE)


def _reconfigure(stream: TextIO | None, **settings: str) -> None:
    """Change the settings of a stream, if it is one of Python's own."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(**settings)  # type: ignore[arg-type]


def print_lines(lines: Iterable[str], *, heading: str = "") -> None:
    """Print a heading, which is bold on a terminal, and lines to stdout."""
    shown = [*map(escape, lines)]
    if heading:
        shown.insert(0, _embolden(escape(heading)))
    _print("\n".join(shown))


def print_marked(lines: Iterable[Iterable[tuple[str, bool]]], *, heading: str) -> None:
    """Print a heading and lines of parts. Marked parts are green, or in brackets without color."""
    opening, closing = (_MARKED, _PLAIN) if _has_styles() else _BRACKETS
    shown = [
        "".join(
            f"{opening}{escape(text)}{closing}" if mark else escape(text) for text, mark in line
        )
        for line in lines
    ]
    _print("\n".join([_embolden(escape(heading)), *shown]))


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a value as JSON to stdout. Without an `indent`, it is one line."""
    is_on_terminal = is_terminal(sys.stdout)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    if not is_on_terminal and codecs.lookup(encoding).name != "utf-8":
        _reconfigure(sys.stdout, encoding="utf-8", errors=_REPLACE)
    text = reports.to_json(value, indent=indent, ensure_ascii=is_on_terminal)
    # a string may contain unpaired surrogates, which UTF-8 cannot encode
    _print(text.encode("utf-8", "backslashreplace").decode())


def print_result(
    value: Any, lines: Iterable[str], *, as_json: bool, indent: int | None = 2
) -> None:
    """Print a value as JSON, or else the lines that describe it."""
    if as_json:
        print_json(value, indent=indent)
    else:
        print_lines(lines)


def print_message(message: str) -> None:
    """Print a message to stderr, unless stderr is closed."""
    if sys.stderr is not None:
        lines = terminal.escape_lines(redact(f"cloudload: {message}"))
        with contextlib.suppress(OSError, ValueError):  # it is broken, or an object that was closed
            print("\n".join(lines), file=sys.stderr)


def print_end(step: int) -> None:
    """Print that the data ends before a step, which the user asked for."""
    print_message(f"the data ends before step {step:,}")


@contextlib.contextmanager
def notice_after(seconds: float, command: str, *, shown: bool) -> Iterator[None]:
    """Print a line on a terminal if the `with` block takes longer than `seconds`.

    Commands with a progress bar print none.
    """
    has_bar = command.rpartition(" ")[2] in _COMMANDS_WITH_BARS
    if not shown or has_bar or not is_terminal(sys.stderr):
        yield
        return
    text = f"{command.removeprefix('cloudload ')} is still working. To stop it, press Ctrl-C"
    timer = threading.Timer(seconds, print_message, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _print(text: str) -> None:
    if sys.stdout is None:
        raise OSError("stdout is closed, so the result cannot be printed. Redirect it to a file")
    print(text)


def _embolden(line: str) -> str:
    return f"{_BOLD}{line}{_PLAIN}" if _has_styles() else line


def _has_styles() -> bool:
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not is_plain and is_terminal(sys.stdout)


def _replace(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace characters that cannot be encoded with similar ASCII, or with their escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wrong = error.object[error.start : error.end]
    return "".join(_ASCII.get(each) or _escape(each) for each in wrong), error.end


def _escape(character: str) -> str:
    return character.encode("ascii", "backslashreplace").decode()
