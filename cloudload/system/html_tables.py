"""HTML tables for notebooks. All text is escaped.

render_table("title", ["a", "b"], [["1", "<2>"]])     <table><caption>title</caption>…&lt;2&gt;…
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

_MOST_CHARACTERS = 2_000


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
