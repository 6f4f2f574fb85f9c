"""Checks of options and of arguments, which raise a `ValueError` that states the valid values.

    seek(np.int64(4))      ─► as_integer  ─► 4
    packing=Names.CONCAT   ─► as_choice   ─► "concat"

A check returns the value as a plain type, because a state is made of plain types.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
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


def as_integer(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return an integer within bounds as an `int`. Types like `np.int64` are integers, too."""
    number = _find_integer(value)
    if number is None:
        raise ValueError(f"{name} is {value!r}. Use {_describe_integers(least, most)}")
    if (least is not None and number < least) or (most is not None and number > most):
        raise ValueError(f"{name} is {number:,}. Use {_describe_integers(least, most)}")
    return number


def _describe_integers(least: int | None, most: int | None) -> str:
    if least is None:
        return "an integer"
    return (
        f"an integer of at least {least:,}"
        if most is None
        else f"an integer from {least:,} to {most:,}"
    )


def _find_integer(value: Any) -> int | None:
    """Return the integer that a value stands for, or None. A boolean is not an integer."""
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def as_text(name: str, value: Any) -> str:
    """Return text as a `str`."""
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}. Use a string")
    return str.__str__(value)  # that of a subclass may return other text


def as_token(name: str, value: Any) -> str | int | None:
    """Return a token, its ID, or None as a plain type."""
    if value is None or isinstance(value, str):
        return None if value is None else as_text(name, value)
    number = _find_integer(value)
    if number is None or number < 0:
        raise ValueError(
            f"{name} is {value!r}. Use a token, its ID, None, 'auto', or (for a Stream) 'same'"
        )
    return number


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


def as_choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    """Return the choice that equals a value."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}. Use one of {', '.join(map(str, choices))}")
    return choices[choices.index(value)]


def settle_options(
    config: object, names: Iterable[str], check: Callable[..., Any], *bounds: Any
) -> None:
    """Replace fields of a frozen dataclass by the results of `check(name, value, *bounds)`."""
    for name in names:
        object.__setattr__(config, name, check(name, getattr(config, name), *bounds))


def settle_given(config: object, names: Iterable[str], *check: Any) -> None:
    """Do the same for the fields that are not None."""
    settle_options(config, [name for name in names if getattr(config, name) is not None], *check)
