"""Conditions on the columns of a sample, as in the WHERE of SQL.

    score >= 3 and lang in ('en', 'de')          text ─► words ─► nested functions of a sample
    not (source = 'forum' or `my column` is null)
    meta.quality > 0.5                           a field of a column of JSON

A comparison with null is neither true nor false, as in SQL, and neither is its negation. Nothing in
the text is executed as code.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

Values = Mapping[str, Any]
"""The values of a sample by column."""
Condition = Callable[[Values], bool | None]
"""Whether a condition is true of a sample; None if a null leaves this open."""
_Term = Callable[[Values], Any]

_WORD = re.compile(
    r"""\s*(?:
      (?P<number>[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]))
    | (?P<string>'(?:[^']|'')*' | "(?:[^"]|"")*")
    | (?P<column>`[^`]+`)
    | (?P<name>[^\W\d][\w.]*)
    | (?P<sign><=|>=|<>|!=|==|=|<|>|\(|\)|,)
    )""",
    re.VERBOSE,
)
_COMPARED = {
    **{"=": operator.eq, "==": operator.eq, "<>": operator.ne, "!=": operator.ne},
    **{"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},
}
_KEYWORDS = frozenset({"and", "or", "not", "in", "is", "null", "true", "false"})
_LITERALS = {"null": None, "true": True, "false": False}
_MOST_DEPTH = 50


class WrongTypeError(Exception):
    """A value cannot be compared as the condition asks."""


@dataclass(frozen=True)
class Expression:
    """A condition, and the columns that it reads."""

    text: str
    columns: tuple[str, ...]
    """The names in it. `meta.quality` is a column of this name, or a field of the column `meta`."""
    condition: Condition

    def is_true(self, values: Values) -> bool:
        """Whether the condition is true of a sample. Raises `WrongTypeError` if it cannot be."""
        return self.condition(values) is True


def parse_expression(text: str) -> Expression:
    """Parse a condition. Raises a `ValueError` that says where it is wrong."""
    parser = _Parser(text)
    condition = parser.parse_any(0)
    parser.expect_end()
    columns = tuple(dict.fromkeys(parser.columns))
    if not columns:
        raise ValueError(f"the condition {text!r} names no column. Use one, as in 'score >= 3'")
    return Expression(text, columns, condition)


def find_value(values: Values, name: str) -> Any:
    """Return the value of a column, or of a field of it; None if it is missing."""
    if name in values:
        return values[name]
    outer, _, inner = name.partition(".")
    value = values.get(outer)
    for part in inner.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


class _Parser:
    """Parses a condition from left to right."""

    def __init__(self, text: str) -> None:
        self._text, self._tokens, self._next = text, list[_Token](), 0
        self.columns: list[str] = []
        index = 0
        while index < len(text.rstrip()):
            found = _WORD.match(text, index)
            if found is None or found.lastgroup is None:
                raise self._wrong(index, "is not part of a condition")
            kind = found.lastgroup
            self._tokens.append(_Token(kind, found[kind], found.start(kind)))
            index = found.end()

    def _wrong(self, start: int, what: str) -> ValueError:
        shown = self._text[start : start + 20] or "the end"
        return ValueError(
            f"the condition {self._text!r} is wrong at character {start + 1}: {shown!r} {what}. "
            "Use conditions such as score >= 3, lang in ('en', 'de'), or url is null, with and, or,"
            " not, and parentheses"
        )

    def _fail(self, what: str) -> ValueError:
        start = (
            self._tokens[self._next].start if self._next < len(self._tokens) else len(self._text)
        )
        return self._wrong(start, what)

    def _take(self, *words: str) -> str | None:
        """Take the next word if it is one of `words`."""
        if self._next < len(self._tokens):
            token = self._tokens[self._next]
            word = token.text.lower() if token.kind == "name" else token.text
            if token.kind in ("name", "sign") and word in words:
                self._next += 1
                return word
        return None

    def _expect(self, word: str) -> None:
        if self._take(word) is None:
            raise self._fail(f"is where {word!r} should be")

    def expect_end(self) -> None:
        if self._next < len(self._tokens):
            raise self._fail("comes after the end of the condition")

    def parse_any(self, depth: int) -> Condition:
        if depth > _MOST_DEPTH:
            raise self._fail(f"is in more than {_MOST_DEPTH} parentheses")
        parts = [self._parse_all(depth)]
        while self._take("or"):
            parts.append(self._parse_all(depth))
        return parts[0] if len(parts) == 1 else _any(parts)

    def _parse_all(self, depth: int) -> Condition:
        parts = [self._parse_not(depth)]
        while self._take("and"):
            parts.append(self._parse_not(depth))
        return parts[0] if len(parts) == 1 else _all(parts)

    def _parse_not(self, depth: int) -> Condition:
        if self._take("not"):
            return _not(self._parse_not(depth + 1))
        if self._take("("):
            inside = self.parse_any(depth + 1)
            self._expect(")")
            return inside
        return self._parse_test()

    def _parse_test(self) -> Condition:
        value = self._parse_term()
        if sign := self._take(*_COMPARED):
            return _compare(value, sign, self._parse_term())
        if self._take("is"):
            is_negated = bool(self._take("not"))
            self._expect("null")
            return lambda values: (value(values) is None) != is_negated
        is_negated = bool(self._take("not"))
        if self._take("in"):
            found = _among(value, self._parse_list())
            return _not(found) if is_negated else found
        if is_negated:
            raise self._fail("is where 'in' should be")
        return _as_flag(value)

    def _parse_list(self) -> list[Any]:
        self._expect("(")
        items = [self._parse_literal()]
        while self._take(","):
            items.append(self._parse_literal())
        self._expect(")")
        return items

    def _parse_literal(self) -> Any:
        if self._next >= len(self._tokens):
            raise self._fail("is where a value should be")
        kind, text, _ = self._tokens[self._next]
        word = text.lower()
        if kind in ("column", "sign") or (kind == "name" and word not in _LITERALS):
            raise self._fail("is where a value should be, such as 3 or 'en'")
        self._next += 1
        if kind == "name":
            return _LITERALS[word]
        if kind == "string":
            quote = text[0]
            return text[1:-1].replace(quote * 2, quote)
        return float(text) if re.search(r"[.eE]", text) else int(text)

    def _parse_term(self) -> _Term:
        if self._next < len(self._tokens):
            kind, text, _ = self._tokens[self._next]
            is_name = kind == "name" and text.lower() not in _KEYWORDS
            if is_name or kind == "column":
                self._next += 1
                column = text.strip("`") if kind == "column" else text
                self.columns.append(column)
                return lambda values: find_value(values, column)
        literal = self._parse_literal()
        return lambda _: literal


def _any(parts: list[Condition]) -> Condition:
    def is_any(values: Values) -> bool | None:
        found: bool | None = False
        for part in parts:
            one = part(values)
            if one:
                return True
            found = None if one is None else found
        return found

    return is_any


def _all(parts: list[Condition]) -> Condition:
    def are_all(values: Values) -> bool | None:
        found: bool | None = True
        for part in parts:
            one = part(values)
            if one is False:
                return False
            found = None if one is None else found
        return found

    return are_all


def _not(part: Condition) -> Condition:
    def is_not(values: Values) -> bool | None:
        found = part(values)
        return None if found is None else not found

    return is_not


def _compare(one: _Term, sign: str, other: _Term) -> Condition:
    compare = _COMPARED[sign]

    def holds(values: Values) -> bool | None:
        left, right = one(values), other(values)
        if left is None or right is None:
            return None
        if isinstance(left, str) != isinstance(right, str):
            raise WrongTypeError(f"{left!r:.100} cannot be compared with {right!r:.100}")
        try:
            return bool(compare(left, right))
        except (TypeError, ValueError) as error:
            raise WrongTypeError(str(error)) from error

    return holds


def _among(value: _Term, items: list[Any]) -> Condition:
    known = [item for item in items if item is not None]
    are_text = {isinstance(item, str) for item in known}
    otherwise = False if len(known) == len(items) else None  # a null may be any value

    def is_among(values: Values) -> bool | None:
        found = value(values)
        if found is None:
            return None
        if known and isinstance(found, str) not in are_text:
            raise WrongTypeError(f"{found!r:.100} cannot be compared with {known[0]!r:.100}")
        return True if found in known else otherwise

    return is_among


def _as_flag(value: _Term) -> Condition:
    def is_set(values: Values) -> bool | None:
        found = value(values)
        if found is not None and found not in (0, 1):
            raise WrongTypeError(f"{found!r:.100} is neither true nor false")
        return None if found is None else bool(found)

    return is_set
