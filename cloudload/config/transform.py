"""Transforms, which are functions from a sample to its text, and their names in a state."""

from __future__ import annotations

import hashlib
import inspect
import tokenize
from collections.abc import Callable
from typing import Any

Transform = Callable[[dict[str, Any]], str | None]


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
