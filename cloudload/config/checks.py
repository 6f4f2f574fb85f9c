"""Checks of option values, which raise a `ValueError` that states the valid values."""

from __future__ import annotations

import re
from typing import Any

from cloudload.config.choices import SAME, TOKEN_DTYPES


def parse_bytes(value: int | str) -> int:
    """Parse a size such as `1024`, `"500mb"`, `"1.5tb"`, or `"64MiB"` into bytes.

    The units kb, mb, … are powers of 1024, as in Streaming. Raises `ValueError` if `value` is not a
    size of at least 1 byte.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kmgtp]?)i?b?\s*", str(value).lower())
    size = float(match[1]) * 1024 ** " kmgtp".index(match[2] or " ") if match else 0.0
    if not 1 <= size < 2**63:
        raise ValueError(
            f"{value!r:.60} is not a size. Use a positive number of bytes, or a number with the "
            "unit kb, mb, gb or tb"
        )
    return int(size)


def check_positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is {value!r}. Use an integer of at least 1")


def check_count(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} is {value!r}. Use an integer of at least 0")


def check_text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}. Use a string")


def check_token(name: str, value: Any) -> None:
    is_id = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if not is_id and not isinstance(value, str | None):
        raise ValueError(
            f"{name} is {value!r}. Use a token, its ID, None, 'auto', or (for a Stream) 'same'"
        )


def check_tokens_column(key: Any, dtype: Any, where: str = "") -> None:
    """Check `tokens_key` and `tokens_dtype`. Error messages put `where` after an option's name."""
    if key is not None and (not isinstance(key, str) or not key):
        raise ValueError(f"tokens_key{where} is {key!r}. Use the name of a column, or None")
    if dtype is not None and dtype not in (*TOKEN_DTYPES, SAME):
        raise ValueError(
            f"tokens_dtype{where} is {dtype!r}. Use one of {', '.join(TOKEN_DTYPES)}, or None"
        )
    if key is None and dtype not in (None, SAME):
        raise ValueError(
            f"tokens_dtype{where} is {dtype!r}, but tokens_key is not set. Set tokens_key to the "
            "column of token IDs, or omit tokens_dtype"
        )


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}. Use one of {', '.join(map(str, choices))}")
