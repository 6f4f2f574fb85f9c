"""Transforms: functions from a sample to its text. Their results, and their names in a state."""

from __future__ import annotations

import hashlib
import inspect
import tokenize
from collections.abc import Callable
from typing import Any, final

Transform = Callable[[dict[str, Any]], str | None]


@final
class Text(str):
    """The text of a document, as a transform may return it, with a choice for special tokens.

    With `special_tokens=True`, the names of special tokens in the text, such as `<|im_start|>`,
    become these tokens. Otherwise they stay text, as in every other document. Use it only for texts
    whose special tokens the transform itself has written, because a document that contains such a
    name could end itself or imitate a turn of a chat. Text that is derived from it by `+`, slicing
    or a method is plain `str` again.
    """

    __slots__ = ("special_tokens",)
    special_tokens: bool

    def __new__(cls, text: str, *, special_tokens: bool = False) -> Text:
        if not isinstance(special_tokens, bool):
            raise ValueError(f"special_tokens is {special_tokens!r}. Use True or False")
        value = super().__new__(cls, text)
        value.special_tokens = special_tokens
        return value

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, bool]]:
        return (str(self),), {"special_tokens": self.special_tokens}


def name_function(function: Callable[..., Any]) -> str:
    """The name that identifies a function in a state, such as `module.name#1f0c2b9d3a4e`.

    It includes the arguments of a `functools.partial` and, if the source can be read, 12 hex digits
    of the source's SHA-256. A callable object is identified only by its class.
    """
    inner = getattr(function, "func", function)  # the function of a functools.partial
    qualified = getattr(inner, "__qualname__", type(inner).__qualname__)
    name = f"{getattr(inner, '__module__', '')}.{qualified}"
    if inner is not function:
        keywords = sorted(getattr(function, "keywords", {}).items())
        name += f"{getattr(function, 'args', ())!r}{keywords!r}"
    try:
        source = inspect.getsource(inner if inspect.isroutine(inner) else type(inner))
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        return name
    return f"{name}#{hashlib.sha256(source.encode()).hexdigest()[:12]}"
