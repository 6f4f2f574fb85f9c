"""Find the source of a lambda, without the rest of its line.

L(transform=lambda s: s["a"], batch_size=8)     lambda s: s["a"]
pick = (lambda s: s["a"], lambda s: s["b"])     each lambda separately
"""

from __future__ import annotations

import ast
import inspect
from types import CodeType, FunctionType

_Place = tuple[int, int]


def find_lambda(function: FunctionType) -> str | None:
    """Return a lambda's source; None if it cannot be read, or matches several lambdas."""
    try:
        source = "".join(inspect.findsource(function)[0])
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Lambda)]
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    code = function.__code__
    nodes = [node for node in nodes if node.lineno == code.co_firstlineno]
    if len(nodes) > 1:
        nodes = _pick(nodes, code)
    return ast.get_source_segment(source, nodes[0]) if len(nodes) == 1 else None


def _pick(nodes: list[ast.Lambda], code: CodeType) -> list[ast.Lambda]:
    """Return the innermost lambda that contains all instructions of `code`; empty if unknown."""
    places = [place for each in _instruction_places(code) for place in each]
    if not places:
        return []
    around = [node for node in nodes if _start(node) <= min(places) and max(places) <= _stop(node)]
    return sorted(around, key=_start)[-1:]


def _instruction_places(code: CodeType) -> list[tuple[_Place, _Place]]:
    """List the (line, column) at which each instruction of an expression starts and ends."""
    positions = code.co_positions() if hasattr(code, "co_positions") else ()  # since Python 3.11
    return [
        ((line, column), (last_line, last_column))
        for line, last_line, column, last_column in positions
        if line is not None
        and last_line is not None
        and column is not None
        and last_column is not None
        and (line, column) != (last_line, last_column)  # an empty range is not an expression
    ]


def _start(node: ast.Lambda) -> _Place:
    return node.body.lineno, node.body.col_offset


def _stop(node: ast.Lambda) -> _Place:
    return node.body.end_lineno or node.lineno, node.body.end_col_offset or 0
