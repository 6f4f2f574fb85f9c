"""Add the docstrings below a dataclass's fields to the class's docstring, for `help`.

seq_len: int            ─► explained ─►    Args:
\"\"\"Tokens per row.\"\"\"                          seq_len: Tokens per row.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

C = TypeVar("C", bound=type)


def explained(cls: C) -> C:
    """Add an `Args` section with all fields to a dataclass's docstring, and return the class."""
    text = inspect.cleandoc(f"{cls.__doc__}")
    cls.__doc__ = f"{text}\n\nArgs:\n{explain_fields(fields(cls), field_docs(cls))}"
    return cls


def explained_by(*configs: type) -> Callable[[C], C]:
    """Return a decorator that replaces `{options}` in a class's docstring with its options.

    The options are the fields of `configs` that the class takes as arguments.
    """

    def explain(cls: C) -> C:
        taken = inspect.signature(cls).parameters
        options = [
            option for config in configs for option in fields(config) if option.name in taken
        ]
        docs = {name: text for config in configs for name, text in field_docs(config).items()}
        text = inspect.cleandoc(f"{cls.__doc__}")
        cls.__doc__ = text.replace("    {options}", explain_fields(options, docs))
        return cls

    return explain


def explain_fields(options: Iterable[Field[Any]], docs: dict[str, str]) -> str:
    """Format options as the indented lines of an `Args` section.

    An option's default is added, unless it is None and the option's text explains it.
    """
    lines = []
    for option in options:
        text = f"{option.name}: {docs[option.name]}{_explain_default(option, docs[option.name])}"
        lines += textwrap.wrap(
            text,
            width=96,
            initial_indent="    ",
            subsequent_indent="        ",
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def _explain_default(option: Field[Any], text: str) -> str:
    is_explained = option.default is None and ("None" in text or "default" in text)
    return "" if option.default is MISSING or is_explained else f" Default: `{option.default!r}`."


def field_docs(cls: type) -> dict[str, str]:
    """Return the docstring below each field of a class, by field name, as one line.

    The text of a field without a docstring, or whose source cannot be read, is empty.
    """
    found = dict.fromkeys((option.name for option in fields(cls)), "")
    for statement in _parse_module(cls.__module__):
        if isinstance(statement, ast.ClassDef) and statement.name == cls.__name__:
            for field, text in zip(statement.body, statement.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    found[field.target.id] = _text_of(text)
    return found


def _text_of(statement: ast.stmt) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return " ".join(str(statement.value.value).split())
    return ""


@cache
def _parse_module(name: str) -> list[ast.stmt]:
    try:
        return ast.parse(Path(str(sys.modules[name].__file__)).read_text("utf-8")).body
    except OSError:
        return []
