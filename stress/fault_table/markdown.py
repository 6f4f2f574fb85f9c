"""Format Markdown tables, and shorten messages to one line without this machine's paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_MOST_CHARACTERS = 420
_PATH = re.compile(r"/(?:tmp|work|usr|root|home|opt|var)/[^\s:;,'\"()|`]*")


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a section with its table. A column whose head ends in `:` is right-aligned."""
    rules = ["---:" if head.endswith(":") else "---" for head in heads]
    lines = [[head.rstrip(":") for head in heads], rules, *rows]
    return f"## {title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def shorten(message: str) -> str:
    """Shorten a message to one line of at most 420 characters, plus a marker where it is cut.

    "…" replaces folders of this machine, "[…]" the middle of a long message, and "/" line breaks.
    """
    message = _PATH.sub(lambda path: "…/" + path[0].rstrip("/").rpartition("/")[2], message)
    message = re.sub(r"\s*\n\s*", " / ", message.strip())
    message = re.sub(r"\s+", " ", message).replace("|", "\\|")
    half = _MOST_CHARACTERS // 2
    return (
        message if len(message) <= _MOST_CHARACTERS else f"{message[:half]} […] {message[-half:]}"
    )
