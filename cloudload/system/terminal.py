r"""Text that a terminal shows as it is: control characters are escaped, and long lines are cut.

"red \x1b[31m"      red \x1b[31m         escape sequences
"a\u202eb"          a\u202eb             invisible characters, such as bidi controls
"one\ntwo"          two lines            `escape_lines` keeps line breaks, `escape` does not
"""

from __future__ import annotations

import contextlib
import unicodedata
from collections.abc import Iterator
from typing import TextIO

_TAB = "    "


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal. It may be None, closed, or an object without `isatty`."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return stream is not None and stream.isatty()
    return False


def escape(text: str) -> str:
    """Escape every character that is invisible or moves the cursor, line breaks included."""
    if text.isprintable():
        return text
    return "".join(
        each if _is_visible(each) else each.encode("unicode_escape").decode() for each in text
    )


def _is_visible(character: str) -> bool:
    """Whether a terminal shows the character as itself or as a space.

    Control characters, format characters (such as those that set the writing direction),
    surrogates, private and unassigned characters, and line separators are not visible.
    """
    return character.isprintable() or unicodedata.category(character) == "Zs"


def escape_lines(text: str) -> list[str]:
    """Split text at its line feeds, expand tabs, and escape each line."""
    return [escape(line.replace("\t", _TAB)) for line in text.split("\n")]


def wrap(line: str, columns: int) -> Iterator[str]:
    """Cut a line without line breaks into lines of at most `columns` terminal cells.

    Cuts after the last space that fits, if there is one.
    """
    start, used, last_space = 0, 0, -1
    for index, character in enumerate(line):
        width = _count_cells(character)
        if used + width > columns and index > start:
            stop = last_space + 1 if last_space >= start else index
            yield line[start:stop]
            start, used = stop, sum(map(_count_cells, line[stop:index]))
        if character == " ":
            last_space = index
        used += width
    yield line[start:]


def _count_cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
