"""Transforms, which are functions from a sample to its text: results, and names in a state."""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Callable, Iterable
from typing import Any, final

from cloudload.config import checks
from cloudload.config.code_digest import CodeDigest, module_of

logger = logging.getLogger("cloudload.config")

Transform = Callable[[dict[str, Any]], str | None]
_MOST_SHOWN = 5


Spans = tuple[tuple[int, int], ...]
"""Ranges [start, stop) of characters, ascending, which do not overlap."""


@final
class Text(str):
    """The text of a document that a transform returns, with options for its tokens.

    With `special_tokens=True`, the names of special tokens in the text, such as `<|im_start|>`,
    become these tokens. Otherwise they stay text, as in every other document. Use this option only
    if the transform itself has written all special tokens in the text, because a document that
    contains such a name could end itself or imitate a chat turn. `literal` lists parts of the text
    in which these names stay text nevertheless, such as what users wrote.

    `trained` lists the parts of the text that a model learns to predict. A token that overlaps none
    of them has the label -100. None means that all tokens are trained.

    Both are ranges [start, stop) of characters, ascending, that do not overlap. The result of `+`,
    slicing or a method is a plain `str` again.
    """

    __slots__ = ("literal", "special_tokens", "trained")
    special_tokens: bool
    trained: Spans | None
    literal: Spans

    def __new__(
        cls,
        text: str,
        *,
        special_tokens: bool = False,
        trained: Iterable[tuple[int, int]] | None = None,
        literal: Iterable[tuple[int, int]] = (),
    ) -> Text:
        if not isinstance(special_tokens, bool):
            raise ValueError(f"special_tokens is {special_tokens!r}. Use True or False")
        value = super().__new__(cls, text)
        value.special_tokens = special_tokens
        value.trained = None if trained is None else _as_spans("trained", trained, len(text))
        value.literal = _as_spans("literal", literal, len(text))
        return value

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Any]]:
        names = ("special_tokens", "trained", "literal")
        return (str(self),), {name: getattr(self, name) for name in names}


def _as_spans(name: str, spans: Iterable[tuple[int, int]], size: int) -> Spans:
    """Return ranges of a text of `size` characters. Raises `ValueError` for invalid ranges."""
    found = tuple((operator.index(start), operator.index(stop)) for start, stop in spans)
    last = 0
    for start, stop in found:
        if not last <= start < stop <= size:
            raise ValueError(
                f"{name} has the range ({start}, {stop}) of a text of {size:,} characters. Use "
                "ascending ranges (start, stop) that are not empty, do not overlap, and end within "
                "the text"
            )
        last = stop
    return found


def name_function(function: Callable[..., Any], option: str = "transform") -> str:
    """The name that identifies a function in a state, such as `module.name#1f0c2b9d3a4e`.

    It ends in 12 hex digits of a `CodeDigest`. Warns if the digest leaves values out, once for each
    name. `option` is the option that holds the function.
    """
    name, digest = show_function(function), CodeDigest(function)
    if digest.left_out:
        _warn(option, name, tuple(digest.left_out.items()))
    return f"{name}#{digest.hexdigest[:12]}"


def as_transform(name: str, value: Any) -> Transform:
    """Return a function. Raises `ValueError` if the value cannot be called."""
    use = "takes a sample (a dict) and returns text or None"
    function: Transform = checks.as_function(name, value, use)
    return function


def show_function(function: Callable[..., Any]) -> str:
    """The name of a function for a message, such as `module.name`."""
    inner = function.func if isinstance(function, functools.partial) else function
    return f"{module_of(inner)}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"


@functools.cache
def _warn(option: str, name: str, left_out: tuple[tuple[str, str], ...]) -> None:
    shown = [f"{where.lstrip('.') or name} ({kind})" for where, kind in left_out[:_MOST_SHOWN]]
    more = len(left_out) - len(shown)
    logger.warning(
        "the %s %s uses %s%s, whose contents cannot be compared on resume. If they change, a "
        "resumed run continues with different documents. Pass %s_id='NAME', and change NAME when "
        "the output of the %s changes",
        option,
        name,
        ", ".join(shown),
        f" and {more} more" if more else "",
        option,
        option,
    )
