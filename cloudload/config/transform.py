"""Transforms: functions from a sample to its text, and the names that identify them in a state."""

from __future__ import annotations

import hashlib
import inspect
import tokenize
from collections.abc import Callable
from typing import Any

Transform = Callable[[dict[str, Any]], str | None]


def name_function(function: Callable[..., Any]) -> str:
    """The qualified name of a function and, if its source can be read, a hash of the source."""
    inner = getattr(function, "func", function)  # of a functools.partial
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
