"""Pass the arguments of tool calls in the form that a template writes correctly.

    data        {"arguments": {"x": 1}}    or    {"arguments": "{\\"x\\": 1}"}
    template    arguments | tojson         or    '{"arguments": ' + arguments + '}'

Data has either form. With the other one, a template would fail, or write JSON in quotes, or write a
dict as Python does. A call of a function of one argument shows which form a template needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from cloudload.rows.chat.conversation import ASSISTANT, ChatError, Message, show_briefly

_ARGUMENTS = {"argqz": "valueqz"}
_TOOL = {
    "name": "toolqz",
    "description": "Describes.",
    "parameters": {
        "type": "object",
        "properties": {"argqz": {"type": "string", "description": "Describes."}},
        "required": ["argqz"],
    },
}
PROBE_TOOLS = [{"type": "function", "function": _TOOL}]
"""The tools of the conversation that is rendered to learn the form."""


def learn_form(render: Callable[[list[Message], bool], str | None]) -> type | None:
    """Return `dict` or `str`, the type of arguments that a template needs. Returns None if it
    writes neither, so that arguments stay as they are."""
    written = render(_probe(_ARGUMENTS), False)
    if written is not None and "argqz" in written and "{'argqz'" not in written:
        return dict
    text = json.dumps(_ARGUMENTS)
    written = render(_probe(text), False)
    return str if written is not None and text in written else None


def _probe(arguments: Any) -> list[Message]:
    call = {
        "id": "callqz001",  # Mistral's templates need 9 characters
        "type": "function",
        "function": {"name": _TOOL["name"], "arguments": arguments},
    }
    return [
        {"role": "user", "content": "Askqz"},
        {"role": ASSISTANT, "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "Toolqz", "tool_call_id": call["id"], "name": _TOOL["name"]},
        {"role": ASSISTANT, "content": "Tellqz"},
    ]


def has_calls(messages: list[Message]) -> bool:
    return any("tool_calls" in message for message in messages)


def convert_arguments(messages: list[Message], form: type | None) -> list[Message]:
    """Return messages whose tool calls have arguments of a type. Raises `ChatError` for arguments
    that are not a JSON object."""
    if form is None:
        return messages
    return [
        {
            **message,
            "tool_calls": [_convert_call(each, form, number) for each in message["tool_calls"]],
        }
        if "tool_calls" in message
        else message
        for number, message in enumerate(messages)
    ]


def _convert_call(call: dict[str, Any], form: type, number: int) -> dict[str, Any]:
    if isinstance(call.get("function"), dict):
        return {**call, "function": _convert_call(call["function"], form, number)}
    arguments = call.get("arguments")
    if arguments is None or isinstance(arguments, form):
        return call
    if isinstance(arguments, dict):
        return {**call, "arguments": json.dumps(arguments, ensure_ascii=False)}
    try:
        parsed = json.loads(arguments)
    except (TypeError, ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise ChatError(
            f"a tool call of message {number} has the arguments {show_briefly(arguments)}. Use a "
            "JSON object, or its text"
        )
    return {**call, "arguments": parsed}
