"""Find the names of special tokens that users wrote, which must stay text.

    a message        "Type <|im_end|> to stop"
    rendered again   "Type <·|im_end|> to stop"     a private character (here ·) inside each name
    proof            without the private character, it is the same text as before
    literal          the range of `<|im_end|>`, so that a tokenizer leaves it text

A template that looks at such a name, or that writes it differently, fails the proof.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from cloudload.rows.chat.conversation import ChatError

_PRIVATE = range(0xF0000, 0xFFFFE)
"""Private characters of Unicode, which texts do not use."""
_PRIVATE_CHARACTER = re.compile(f"[{chr(_PRIVATE[0])}-{chr(_PRIVATE[-1])}]")
Range = tuple[int, int]


class Names:
    """The names of tokens, to find in texts."""

    def __init__(self, names: Sequence[str]) -> None:
        longest_first = sorted(filter(None, names), key=len, reverse=True)
        self._pattern = _compile(longest_first)
        self._json_pattern = _compile([_to_json(name)[1:-1] for name in longest_first])

    def may_be_in(self, value: Any) -> bool:
        """Whether a value of JSON types may have a name in one of its strings. This takes a tenth
        of the time of looking at each."""
        return bool(self._json_pattern.search(_to_json(value)))

    def find(self, text: str) -> Iterator[Range]:
        """Yield the ranges of all names in a text."""
        return (found.span() for found in self._pattern.finditer(text))

    def match(self, text: str, start: int) -> int:
        """Return the end of the name at `start`, or `start` if there is none."""
        found = self._pattern.match(text, start)
        return found.end() if found else start

    def last_end(self, text: str) -> int:
        """Return the end of the last name in a text, or 0."""
        return max((stop for _, stop in self.find(text)), default=0)

    def match_end(self, text: str, start: int, stop: int) -> int:
        """Return the start of the name that ends at `stop` and begins at or after `start`, or
        `stop`."""
        found = [each.start() for each in self._pattern.finditer(text, start, stop)]
        return found[-1] if found and self.match(text, found[-1]) == stop else stop

    def breaks(self, text: str, private: str) -> str:
        """Return a text with a private character after the first character of each name."""
        return self._pattern.sub(lambda found: found[0][0] + private + found[0][1:], text)


def _compile(names: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, names)) or "(?!)")


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def choose_private(text: str, count: int) -> str:
    """Return `count` private characters of Unicode that a text does not contain. Raises `ChatError`
    if there are none."""
    used = set(map(ord, _PRIVATE_CHARACTER.findall(text)))
    first = max(used, default=_PRIVATE.start - 1) + 1
    if first + count >= _PRIVATE.stop:
        raise ChatError("the text has private characters of Unicode. Remove the row")
    return "".join(map(chr, range(first, first + count)))


def change_texts(
    value: Any, change: Callable[[str], str], change_key: Callable[[str], str] = str
) -> Any:
    """Return a value of JSON types with `change` applied to its strings, and `change_key` to the
    keys of its objects."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {
            change_key(key): change_texts(each, change, change_key) for key, each in value.items()
        }
    if isinstance(value, list):
        return [change_texts(each, change, change_key) for each in value]
    return value


def find_marks(text: str, marked: str, private: str) -> list[int]:
    """Return where in `text` the private characters of `marked` are.

    Raises `ChatError` if the texts differ by more than the private character.
    """
    pieces = marked.split(private)
    if "".join(pieces) != text:
        raise ChatError(
            "a message has the name of a special token, or begins or ends with a part of one, and "
            "the chat template writes the message differently because of it. Remove the name from "
            "the message, or pass Chat(trusted=True) if it is meant as this token"
        )
    return [*itertools.accumulate(map(len, pieces[:-1]))]


def find_literal(text: str, broken: str, private: str, names: Names) -> list[Range]:
    """Return the ranges of the names in `text` that are broken in `broken`.

    Raises `ChatError` if the texts differ by more than the private character.
    """
    found: list[Range] = []
    for mark in find_marks(text, broken, private):
        start = mark - 1
        stop = names.match(text, start)
        if found and start < found[-1][1]:
            start = found.pop()[0]
        found.append((start, stop))
    return found


def without(ranges: Iterable[Range], removed: Iterable[Range]) -> list[Range]:
    """Return what remains of ascending ranges when others are removed."""
    holes = sorted(removed)
    found = []
    for start, stop in ranges:
        position = start
        for low, high in holes:
            if low < stop and high > position:
                if low > position:
                    found.append((position, low))
                position = high
        if position < stop:
            found.append((position, stop))
    return found


def count_equal(one: str, other: str) -> int:
    """Return how many characters at the start of two texts are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
