"""Checks of options and of arguments, which raise a `ValueError` that states the valid values.

    seek(np.int64(4))                             ─► as_integer     ─► 4
    RowsConfig(packing=Names.CONCAT)              ─► as_choice      ─► "concat"
    seed: Annotated[int, within(0, 9)], seed=12   ─► check_fields   ─► an error

A check returns the value as a plain type, because a state is made of plain types.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from cloudload.config.choices import SAME, TOKEN_DTYPES

Check = Callable[[str, Any], Any]
"""Takes the name of an option and its value, and returns the value as a plain type. Raises
`ValueError` if the value is invalid."""


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


def as_function(name: str, value: Any, use: str) -> Any:
    """Return a function. `use` says, after "a function that", which one is valid."""
    if not callable(value):
        raise ValueError(f"{name} is {value!r}. Use a function that {use}")
    return value


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


def as_token_ids(name: str, value: Any) -> tuple[int, ...]:
    """Return token IDs in ascending order, without repeats."""
    numbers = [value] if isinstance(value, str) or not isinstance(value, Iterable) else value
    return tuple(sorted({as_integer(f"a token ID in {name}", each, 0) for each in numbers}))


def check_tokens_column(key: Any, dtype: Any, labels_key: Any, where: str = "") -> None:
    """Check `tokens_key`, `tokens_dtype` and `labels_key`. Error messages put `where` after an
    option's name."""
    if labels_key is not None and (not isinstance(labels_key, str) or not labels_key):
        raise ValueError(f"labels_key{where} is {labels_key!r}. Use the name of a column, or None")
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
    if key is None and labels_key not in (None, SAME):
        raise ValueError(
            f"labels_key{where} is {labels_key!r}, but tokens_key is not set. Set tokens_key to "
            "the column of token IDs, or omit labels_key"
        )


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    """Return the choice that equals a value."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}. Use one of {', '.join(map(str, choices))}")
    return choices[choices.index(value)]


def within(least: int, most: int | None = None) -> Check:
    """Return the check of an integer from `least` to `most`."""
    return partial(as_integer, least=least, most=most)


Count = Annotated[int, within(1)]
"""An option that is an integer of at least 1."""


def check_fields(config: Any) -> None:
    """Check the fields of a frozen dataclass by their types, and make their values plain.

        seed: int                            an integer
        shuffle: bool                        True or False
        packing: Literal["concat", …]        one of these values
        bos: Annotated[str | int, check]     what `check` accepts and returns
        epochs: Count | None                 the same, or None

    Other types are not checked. Raises `ValueError` if a value is invalid.
    """
    for name, check in _list_checks(config.__class__).items():
        object.__setattr__(config, name, check(name, getattr(config, name)))


@cache
def _list_checks(config: Any) -> dict[str, Check]:
    hints = get_type_hints(config, include_extras=True)
    found = {each.name: _find_check(hints[each.name]) for each in fields(config)}
    return {name: check for name, check in found.items() if check is not None}


def _find_check(hint: Any) -> Check | None:
    """Return the check of a type, or None if the type alone does not determine one."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind is Annotated:
        check: Check = hint.__metadata__[0]
        return check
    if kind is Literal:
        return partial(as_choice, choices=parts)
    if kind in (Union, UnionType) and parts[1:] == (NoneType,):
        if get_origin(parts[0]) is Literal:
            return partial(as_choice, choices=(None, *get_args(parts[0])))
        inner = _find_check(parts[0])
        return None if inner is None else partial(_check_given, inner)
    if hint is bool:
        return partial(as_choice, choices=(True, False))
    return as_integer if hint is int else None


def _check_given(check: Check, name: str, value: Any) -> Any:
    return None if value is None else check(name, value)
