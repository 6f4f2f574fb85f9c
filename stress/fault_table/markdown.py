"""Rows of Markdown, and messages in one line without paths of this machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_MOST_CHARACTERS = 420
_PATH = re.compile(r"/(?:tmp|work|usr|root|home|opt|var)/[^\s:;,'\"()|`]*")


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A section, with its table; a head that ends in `:` is of numbers."""
    rules = ["---:" if head.endswith(":") else "---" for head in heads]
    lines = [[head.rstrip(":") for head in heads], rules, *rows]
    return f"## {title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def shorten(message: str) -> str:
    """One line, with … for folders of this machine, […] for the midst of what is long, and / for
    the ends of lines."""
    message = _PATH.sub(lambda path: "…/" + path[0].rstrip("/").rpartition("/")[2], message)
    message = re.sub(r"\s*\n\s*", " / ", message.strip())
    message = re.sub(r"\s+", " ", message).replace("|", "\\|")
    half = _MOST_CHARACTERS // 2
    return (
        message if len(message) <= _MOST_CHARACTERS else f"{message[:half]} […] {message[-half:]}"
    )
