"""Tables as text of at most 80 columns, for a terminal, and as HTML, for a notebook; pictures.

    list_values("title", [("local", "/a", "default"), …])        title
                                                                   local    /a          default
                                                                   streams  a long one  given
                                                                            that continues here
    render_columns("title", ["stream", "tokens"], [["web", "7"]])
    render_table("title", ["a", "b"], [["1", "<2>"]])     <table><caption>title</caption>…&lt;2&gt;…

All text in HTML is escaped.
"""

from __future__ import annotations

import html
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cloudload.system.terminal import is_terminal

WIDTH = 80
BLUE, ORANGE, GRAY = "#2a6fbb", "#e08a1e", "#666666"
"""The colors of pictures."""
_GAP = "  "
_MOST_OF_NAME = 24

_MOST_CHARACTERS = 2_000


def counted(number: int | str, noun: str) -> str:
    """Format a number with a noun, such as `1 rank`, `1,024 ranks`, or `1, 4 nodes`."""
    shown = number if isinstance(number, str) else f"{number:,}"
    return f"{shown} {noun}{'s' * (number != 1)}"


def open_progress_bar(
    label: str, total_bytes: int | None, *, done_bytes: int = 0, shown: bool = True
) -> Any:
    """Open a `tqdm` bar. `total_bytes` is None if it is not known.

    If stderr is not a terminal, the bar is updated at most every 30 s. If stderr is closed, the bar
    is not shown.
    """
    from tqdm import tqdm

    return tqdm(
        total=total_bytes,
        initial=done_bytes,
        unit="B",
        unit_scale=True,
        disable=not shown or sys.stderr is None,
        mininterval=0.2 if is_terminal(sys.stderr) else 30.0,
        desc=label,
        dynamic_ncols=True,
    )


def wrap_text(text: str, width: int, first: int) -> list[str]:
    """Split text into lines of up to `width` characters, and up to `first` on the first line.

    A word is only split if it is longer than `width`.
    """
    lines, room = [""], first
    for word in text.split():
        joined = f"{lines[-1]} {word}".lstrip()
        if len(joined) <= room:
            lines[-1] = joined
            continue
        if lines[-1] or room < width:
            lines.append("")
            room = width
        parts = [word[start : start + width] for start in range(0, len(word), width)]
        lines[-1:] = parts
    return lines


def list_values(title: str, rows: Sequence[tuple[str, str, str]]) -> str:
    """Render rows of a name, a value, and a remark. A long value continues on indented lines."""
    names = min(_MOST_OF_NAME, max(len(name) for name, _, _ in rows))
    room = WIDTH - names - 2 * len(_GAP)
    remarks = max(len(remark) for _, _, remark in rows)
    values = min(room - remarks - len(_GAP), max(len(value) for _, value, _ in rows))
    lines = wrap_text(title, WIDTH, WIDTH)
    for name, value, remark in rows:
        first, *more = [value] if len(value) <= values else wrap_text(value, room, values)
        *above, last = _fit_name(name)
        lines += above
        lines.append(f"{_GAP}{last:{names}}{_GAP}{first:{values}}{_GAP}{remark}")
        lines += [f"{_GAP}{'':{names}}{_GAP}{line}" for line in more]
    return "\n".join(line.rstrip() for line in lines)


def render_columns(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Render rows of a name and numbers. Columns that do not fit continue in a table below."""
    names = min(_MOST_OF_NAME, max(len(row[0]) for row in [heads, *rows]))
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = wrap_text(title, WIDTH, WIDTH)
    for columns in _share_columns(widths, WIDTH - names - len(_GAP)):
        for row in [heads, *rows]:
            *above, last = _fit_name(row[0])
            lines += above
            cells = [f"{_GAP}{row[column]:>{widths[column]}}" for column in columns]
            lines.append(f"{_GAP}{last:{names}}{''.join(cells)}")
    return "\n".join(line.rstrip() for line in lines)


def _fit_name(name: str) -> list[str]:
    """Split a name into the lines above its row, if it is long, and the text in its column."""
    if len(name) <= _MOST_OF_NAME:
        return [name]
    room = WIDTH - len(_GAP)
    return [*(f"{_GAP}{line}" for line in wrap_text(name, room, room)), ""]


def _share_columns(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Distribute all columns except the first over tables of up to `room` characters."""
    columns: list[int] = []
    used = 0
    for column in range(1, len(widths)):
        needed = len(_GAP) + widths[column]
        if columns and used + needed > room:
            yield columns
            columns, used = [], 0
        columns.append(column)
        used += needed
    yield columns


def escape_text(text: str) -> str:
    """Escape text for an HTML element. Invalid bytes are replaced.

    Right-to-left text does not change the direction of the text after it.
    """
    shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return f"<bdi>{html.escape(shown)}</bdi>"


def shorten_text(text: str) -> str:
    """Cut a text after 2,000 characters, and append the length of the whole text."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[:_MOST_CHARACTERS]}… ({len(text):,} characters)"


def render_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Render rows of text as a table. The caption `title` and the `heads` may be empty."""
    caption = f"<caption>{escape_text(title)}</caption>" if title else ""
    head = "".join(f"<th>{html.escape(each)}</th>" for each in heads)
    head = f"<tr>{head}</tr>" if heads else ""
    body = "".join(
        f"<tr>{''.join(f'<td>{escape_text(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table>{caption}{head}{body}</table>"


def to_json(value: Any, *, indent: int | None = 2, ensure_ascii: bool = True) -> str:
    """Format a report as JSON that every parser accepts. See `to_plain`."""
    plain = to_plain(value)
    return json.dumps(plain, indent=indent, ensure_ascii=ensure_ascii, allow_nan=False, default=str)


def to_plain(value: Any) -> Any:
    """Convert dataclasses to dicts, tuples to lists, and NaN and infinities to None, recursively.

    JSON can represent neither NaN nor infinities.
    """
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {name: to_plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_picture(path: Path) -> None:
    """Raise `ValueError` if a picture cannot be written to `path`, before a long work starts."""
    if find_spec("matplotlib") is None:
        raise ValueError("a picture requires the matplotlib package. Run: pip install matplotlib")
    if not path.absolute().parent.is_dir():
        raise ValueError(
            f"there is no folder {path.parent} for {path.name}. Create the folder first"
        )


@contextmanager
def draw_picture(path: Path, title: str, summary: str) -> Iterator[Any]:
    """Yield the axes of a chart with a title and a line of text above it, and then write it.

    The picture is a PNG of 1280 by 720 pixels. Raises `ValueError` as `check_picture` does, and
    `OSError` if the file cannot be written.
    """
    check_picture(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    yield axes
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e5e5e5")
    axes.set_axisbelow(True)
    axes.set_title(f"{title}\n", loc="left", fontsize=12)
    axes.text(0, 1.02, summary, transform=axes.transAxes, color=GRAY, fontsize=9)
    # omit matplotlib's version, so that equal reports result in equal files
    figure.savefig(path, dpi=160, format="png", metadata={"Software": None})
