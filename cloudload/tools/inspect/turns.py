"""Show a list of messages on a terminal, by role.

    [{"role": "user", "content": "2 + 2?"},        user
     {"role": "assistant", "tool_calls": […]}]       2 + 2?
                                                   assistant
                                                     tool_calls: […]

A list that is not shown in full ends after 800 characters, and each message after 300.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cloudload.system import counted, escape, terminal

_MOST_CHARACTERS, _MOST_OF_MESSAGE = 800, 300
_ROLES, _CONTENTS = ("role", "from"), ("content", "value")

Message = Mapping[str, Any]


def find_messages(value: Any) -> list[Message] | None:
    """Return the messages that a value, or its JSON text, lists, or None for any other value."""
    if isinstance(value, str) and value.startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    if not isinstance(value, list) or not value or not all(map(_is_message, value)):
        return None
    return value


def _is_message(item: Any) -> bool:
    return isinstance(item, Mapping) and any(isinstance(item.get(name), str) for name in _ROLES)


def describe_messages(
    messages: Sequence[Message], columns: int, indent: str, *, is_full: bool
) -> Iterator[str]:
    """Yield the lines that show messages on a terminal that is `columns` cells wide."""
    left = _MOST_CHARACTERS
    for number, message in enumerate(messages):
        if left <= 0 and not is_full:
            yield f"{indent}… {counted(len(messages) - number, 'more message')}"
            return
        role, *parts = _list_parts(message)
        yield f"{indent}{escape(role)}"
        for part in parts:
            stop = len(part) if is_full else min(_MOST_OF_MESSAGE, left)
            left -= len(part[:stop])
            for line in terminal.escape_lines(part[:stop]):
                for piece in terminal.wrap(line, columns - len(indent) - 2):
                    yield f"{indent}  {piece}"
            if stop < len(part):
                yield f"{indent}  … {counted(len(part) - stop, 'more character')}"


def _list_parts(message: Message) -> Iterator[str]:
    """Yield the role of a message, its text, and its other fields."""
    names = [next((each for each in some if each in message), None) for some in (_ROLES, _CONTENTS)]
    role, content = (None if name is None else message[name] for name in names)
    yield str(role)
    if isinstance(content, str):
        yield content
    elif content is not None:
        yield json.dumps(content, ensure_ascii=False)
    for name, value in message.items():
        if name not in names:
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"{name}: {shown}"
