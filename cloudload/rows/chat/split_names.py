"""Refuse names of special tokens that only arise where a template joins texts.

    template      '<|' + message.role + '|>' + message.content     constants '<|' and '|>'
    a content     im_end|> and more        begins with the rest of `<|im_end|>` after '<|'
    again         i·m_end|> and more       with a private character (here ·) after its first
    refused       if the content follows '<|', so that the text has `<|im_end|>` there

A template writes its constants whole, so they say where it may leave a name. Few texts begin with
the rest of such a name, or end with the start of any, and only these are rendered again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from cloudload.rows.chat.conversation import ChatError, list_texts
from cloudload.rows.chat.literals import (
    Names,
    Range,
    change_texts,
    choose_private,
    find_marks,
)

Render = Callable[[list[Any]], str]
"""Renders a list of messages, tools, and a row's arguments of the template."""


class SplitNames:
    """The parts of names at the ends of a user's texts that a template may complete.

    The template writes each of its constants whole, except for white space around them.
    """

    def __init__(self, names: Sequence[str], constants: Collection[str]) -> None:
        self._names = Names(names)
        self._most = max(map(len, names), default=1)
        whole = {text for each in constants for text in (each, each.strip()) if text}
        tails = {text[-size:] for text in whole for size in range(1, self._most)}
        # where a name may be cut, so that the template wrote what is before
        cuts = [
            (name, cut)
            for name in names
            for cut in range(1, len(name))
            if name[:cut] in tails or any(name[start:cut] in whole for start in range(cut))
        ]
        self._rests = tuple({name[cut:] for name, cut in cuts})
        self._inner = {name[cut:stop] for name, cut in cuts for stop in range(cut + 1, len(name))}
        self._starts = {name[:stop] for name in names for stop in range(1, len(name))}
        firsts = {name[0] for name in names if name}
        self._first = re.compile("|".join(map(re.escape, firsts)) or "(?!)")

    def may_be_in(self, row: Sequence[Any]) -> bool:
        """Whether a row, as for `check`, has a text that begins or ends with a part of a name."""
        messages, *others = row
        # templates make names of roles, which are few
        values = [each for one in messages for name, each in one.items() if name != "role"]
        return any(map(self._is_part, list_texts([values, others])))

    def check(
        self, text: str, row: Sequence[Any], render: Render, literal: Sequence[Range]
    ) -> None:
        """Raise `ChatError` if an end of a user's text is a part of a name in `text`.

        `row` has messages, tools, and arguments, which are rendered as `text`. Names in `literal`
        ranges are the user's own. Also raises `ChatError` if the template writes the row
        differently when it is marked.
        """
        private = choose_private(text, 1)
        messages, *others = change_texts(row, partial(self._mark, private))
        pairs = zip(messages, row[0], strict=True)
        unmarked = [{**message, "role": given["role"]} for message, given in pairs]
        marks = find_marks(text, render([unmarked, *others]), private)
        for start, stop in self._names.find(text):
            is_literal = any(low <= start and stop <= high for low, high in literal)
            if not is_literal and any(start < mark <= stop for mark in marks):
                raise ChatError(
                    "the chat template joins the end of a text with other text, which forms "
                    f"{text[start:stop]!r}, the name of a special token. Remove the row, or pass "
                    "Chat(trusted=True) if it is meant as this token"
                )

    def _is_part(self, text: str) -> bool:
        text = text.strip()
        if text.startswith(self._rests) or (len(text) < self._most and text in self._inner):
            return True
        tail = text[-self._most :]
        return any(tail[found.start() :] in self._starts for found in self._first.finditer(tail))

    def _mark(self, private: str, text: str) -> str:
        """Return a text with a private character after its first and its last character that is not
        white space, if it begins or ends with a part of a name."""
        if not self._is_part(text):
            return text
        start, stop = len(text) - len(text.lstrip()), len(text.rstrip())
        rest = text[start + 1 : stop]
        return f"{text[: start + 1]}{private}{rest}{private if rest else ''}{text[stop:]}"
