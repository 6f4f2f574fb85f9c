"""Convert values of text-only formats, such as CSV, to the encoding that the user gave."""

from __future__ import annotations

from typing import Any

from cloudload.data import writer


def parse_text(name: str, text: str, encoding: str | None) -> Any:
    """Return the value of a field for a column of `encoding`: a number, bytes, or the text.

    For a column of numbers, empty text is null. Raises `ValueError` if other text is not a number.
    """
    if encoding in (None, "str", "json"):
        return text
    if encoding == "bytes":
        return text.encode("utf-8", "surrogateescape")
    if not text.strip():
        return None
    try:
        return float(text) if encoding.startswith("float") else int(text)
    except ValueError:
        raise ValueError(
            f"the field {name!r} is not {encoding} (it is {writer.shorten(text)})"
        ) from None
