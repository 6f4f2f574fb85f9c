"""Transforms, which are functions from a sample to its text, and their names in a state."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from cloudload.config.code_digest import CodeDigest, module_of

logger = logging.getLogger(__name__)

Transform = Callable[[dict[str, Any]], str | None]
GIVEN_ID = "transform_id="
"""The prefix, in a state, of an ID that the user gave."""
_MOST_SHOWN = 5


def name_function(function: Callable[..., Any]) -> str:
    """The name that identifies a function in a state, such as `module.name#1f0c2b9d3a4e`.

    It ends in 12 hex digits of a `CodeDigest`. Warns if the digest leaves values out, once for each
    name.
    """
    inner = function.func if isinstance(function, functools.partial) else function
    qualified = getattr(inner, "__qualname__", type(inner).__qualname__)
    digest = CodeDigest(function)
    name = f"{module_of(inner)}.{qualified}#{digest.hexdigest[:12]}"
    if digest.left_out:
        _warn(name.partition("#")[0], tuple(digest.left_out.items()))
    return name


@functools.cache
def _warn(name: str, left_out: tuple[tuple[str, str], ...]) -> None:
    shown = [f"{place.lstrip('.') or name} ({kind})" for place, kind in left_out[:_MOST_SHOWN]]
    more = len(left_out) - len(shown)
    logger.warning(
        "the transform %s uses %s%s, whose content cannot be compared on resume. If it changes, "
        "a resume continues with other text. Pass transform_id='NAME', and change NAME whenever "
        "the transform gives other text",
        name,
        ", ".join(shown),
        f" and {more} more" if more else "",
    )
