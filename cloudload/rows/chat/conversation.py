"""Read a sample's columns as a conversation: messages, tools, and which messages are trained.

    messages        [{"role": "user", "content": "Hi"}, …]
    conversations   [{"from": "human", "value": "Hi"}, …]         ShareGPT
    prompt, completion                                            texts, or lists of messages
    instruction, input, output                                    Alpaca

A column holds Python objects, or their JSON text. Messages reach the template as they are in the
data, with these exceptions. ShareGPT's names become `role` and `content`, a key whose value is null
is left out, because Parquet adds such keys, and `train` and `weight` are removed.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cloudload.config import Chat

KWARGS_KEY = "chat_template_kwargs"
ASSISTANT = "assistant"
_ROLES = {
    **{role: role for role in ("system", "developer", "user", "assistant", "tool", "function")},
    **{role: role for role in ("ipython", "environment", "context")},
    "observation": "tool",
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "bot", "model", "chatgpt", "bing", "bard"), ASSISTANT),
}
_MOST_SHOWN = 80
_OWN_KEYS = ("train", "weight")
_FORMATS = ("conversations",), ("prompt", "completion"), ("instruction", "output")


Message = dict[str, Any]
"""A message, as a template sees it: a role, a content, and more."""


class ChatError(ValueError):
    """A conversation or a chat template cannot be used. Callers add the document's location."""


class NoDateError(ChatError):
    """A template writes today's date."""


class UnknownTurnError(ChatError):
    """It is unknown which characters of a template's text the model generates."""


@dataclass(frozen=True)
class Conversation:
    """A conversation, as a template sees it, and what is trained in it."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    kwargs: dict[str, Any]
    """The row's arguments of the template, which override those of `Chat`."""
    trained: tuple[int, ...]
    """The numbers of the trained messages, ascending."""
    num_prompt: int
    """The number of messages in the prompt, or 0 if the row has no separate completion."""


class NoMessagesError(ChatError):
    """A sample has no messages."""


class EmptyMessageError(ChatError):
    """A message has no content."""


class NoAnswerError(ChatError):
    """A conversation has no assistant message."""


def find_columns(names: Collection[str], chat: Chat) -> tuple[str, ...]:
    """Return the columns of a dataset that are read for conversations; none if it has none."""
    formats = (chat.messages_key,), *_FORMATS
    if not any({*names}.issuperset(needed) for needed in formats):
        return ()
    used = [*itertools.chain(*formats), "input", "system", chat.tools_key, KWARGS_KEY]
    return tuple(name for name in dict.fromkeys(used) if name in names)


def list_texts(value: Any) -> Iterator[str]:
    """Yield all strings in a value of JSON types, without the keys of objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from list_texts(each)


def show_briefly(value: Any) -> str:
    """A value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def read_conversation(sample: Mapping[str, Any], chat: Chat) -> Conversation:
    """Read a sample. Raises `ChatError` if it has no messages, or one that is not valid."""
    items, num_prompt = _find_messages(sample, chat)
    roles = _ROLES | dict(chat.roles)
    messages = [_read_message(item, number, roles) for number, item in enumerate(items)]
    tools = _parse_column(sample, chat.tools_key, list) or None
    kwargs = _parse_column(sample, KWARGS_KEY, dict) or {}
    trained = _choose_trained(items, messages, num_prompt, chat)
    return Conversation(messages, tools, kwargs, trained, num_prompt)


def _find_messages(sample: Mapping[str, Any], chat: Chat) -> tuple[list[Any], int]:
    """Return a sample's messages as they are, and how many of them are the prompt."""
    for key in (chat.messages_key, "conversations"):
        if sample.get(key) is not None:
            messages = _parse_column(sample, key, list)
            system = sample.get("system") if key == "conversations" else None
            if not messages:
                raise NoMessagesError(f"the column {key!r} has no messages. Remove the row")
            return _with_system(system, messages), 0
    if sample.get("prompt") is not None and sample.get("completion") is not None:
        prompt = _as_messages(sample, "prompt", "user")
        return prompt + _as_messages(sample, "completion", ASSISTANT), len(prompt)
    if sample.get("instruction") is not None and sample.get("output") is not None:
        asked = [_text_of(sample, "instruction"), _text_of(sample, "input")]
        prompt = [{"role": "user", "content": "\n\n".join(filter(None, asked))}]
        prompt = _with_system(sample.get("system"), prompt)
        answer = {"role": ASSISTANT, "content": _text_of(sample, "output")}
        return [*prompt, answer], len(prompt)
    raise NoMessagesError(
        f"the sample has the columns {', '.join(sorted(sample))}, but no conversation. Use the "
        f"columns {chat.messages_key!r}, 'conversations', 'prompt' and 'completion', or "
        "'instruction' and 'output', or pass Chat(messages_key='COLUMN')"
    )


def _with_system(system: Any, messages: list[Any]) -> list[Any]:
    return [{"role": "system", "content": system}, *messages] if system else messages


def _as_messages(sample: Mapping[str, Any], key: str, role: str) -> list[Any]:
    value = sample[key]
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if isinstance(value, list) and value:
        return value
    raise ChatError(f"the column {key!r} is {show_briefly(value)}. Use text, or a list of messages")


def _text_of(sample: Mapping[str, Any], key: str) -> str:
    value = sample.get(key)
    if value is not None and not isinstance(value, str):
        raise ChatError(f"the column {key!r} is {show_briefly(value)}. Use text")
    return value or ""


def _parse_column(sample: Mapping[str, Any], key: str, kind: type) -> Any:
    """Return a column's list or dict, which may be JSON text. Returns None if there is none."""
    value = sample.get(key)
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ChatError(
                f"the column {key!r} is not JSON ({error}): {show_briefly(value)}"
            ) from None
    if value is None or value == "":
        return None
    if not isinstance(value, kind):
        name = "a list" if kind is list else "an object"
        raise ChatError(
            f"the column {key!r} is {show_briefly(value)}. Use {name}, or its JSON text"
        )
    return value


def _read_message(item: Any, number: int, roles: Mapping[str, str]) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise ChatError(
            f"message {number} is {show_briefly(item)}. Use an object with role and content"
        )
    message = dict(item)
    if "role" not in message and "from" in message:
        message = {"role": message.pop("from"), "content": message.pop("value", None), **message}
    role = message.get("role")
    if not isinstance(role, str) or role not in roles:
        raise ChatError(
            f"the role of message {number} is {show_briefly(role)}. Use one of "
            f"{', '.join(sorted({*roles.values()}))}, or name it with "
            "Chat(roles={'ROLE': 'assistant'})"
        )
    message["role"] = roles[role]
    kept = {
        key: value
        for key, value in message.items()
        if (value is not None or key == "content") and key not in _OWN_KEYS
    }
    _check_content(kept, number)
    _check_calls(kept.get("tool_calls", []), number)
    return kept


def _check_content(message: dict[str, Any], number: int) -> None:
    content = message.get("content")
    if content is None:
        if len(message.keys() - {"role", "content", "name"}) > 0 and message["role"] == ASSISTANT:
            return  # it has tool calls or reasoning
        raise EmptyMessageError(f"message {number} ({message['role']}) has no content. Use text")
    for part in content if isinstance(content, list) else ():
        is_text = isinstance(part, dict) and isinstance(part.get("text"), str)
        if not is_text or part.get("type", "text") != "text":
            raise ChatError(
                f"the content of message {number} has the part {show_briefly(part)}. Only "
                "text can be trained on"
            )
    if not isinstance(content, str | list):
        raise ChatError(f"the content of message {number} is {show_briefly(content)}. Use text")


def _check_calls(calls: Any, number: int) -> None:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise ChatError(
            f"tool_calls of message {number} is {show_briefly(calls)}. Use a list of objects"
        )


def _choose_trained(
    items: list[Any], messages: list[dict[str, Any]], num_prompt: int, chat: Chat
) -> tuple[int, ...]:
    """Return the numbers of the trained messages. All count as trained for "all"."""
    flags = {
        number: _read_flag(item, number)
        for number, item in enumerate(items)
        if any(item.get(key) is not None for key in _OWN_KEYS)
    }
    if chat.train in ("all", "completion"):
        if not all(flags.values()):
            raise ChatError(
                f"train of Chat is {chat.train!r}, but a message is not to be trained. Use "
                "train='assistant', or remove train and weight from the messages"
            )
        if chat.train == "completion" and not num_prompt:
            raise ChatError(
                "train of Chat is 'completion', but the row has no columns 'prompt' and "
                "'completion'. Use train='assistant'"
            )
        return tuple(range(num_prompt, len(messages)))
    turns = [
        number
        for number, message in enumerate(messages)
        if message["role"] == ASSISTANT and number >= num_prompt
    ]
    if not turns:
        raise NoAnswerError("the conversation has no assistant message to train. Remove the row")
    chosen = dict.fromkeys(turns[-1:] if chat.train == "last" else turns, True) | flags
    for number in sorted(number for number, is_trained in chosen.items() if is_trained):
        if messages[number]["role"] != ASSISTANT:
            raise ChatError(
                f"message {number} ({messages[number]['role']}) is to be trained, but only "
                "assistant messages can be. Remove its train or weight"
            )
    return tuple(sorted(number for number, is_trained in chosen.items() if is_trained))


def _read_flag(item: Mapping[str, Any], number: int) -> bool:
    for key in _OWN_KEYS:
        value = item.get(key)
        if value is not None and value not in (0, 1):
            raise ChatError(
                f"{key} of message {number} is {show_briefly(value)}. Use true or false"
            )
    return all(bool(item[key]) for key in _OWN_KEYS if item.get(key) is not None)


def check_complete(text: str, conversation: Conversation, name: str) -> None:
    """Raise `ChatError` if a text lacks a message that its template should have written.

    Some templates leave out roles that they do not know, or tool calls. Reasoning may be left out.
    """
    for number, message in enumerate(conversation.messages):
        content = message.get("content")
        if message["role"] == ASSISTANT:
            is_written = all(_name_of(call) in text for call in message.get("tool_calls", ()))
        else:
            is_written = not isinstance(content, str) or _is_written(content, text)
        if not is_written:
            raise ChatError(
                f"the chat template {name} leaves out message {number} ({message['role']}), or its "
                "tool calls. Use a template that writes them, or remove them"
            )


def _name_of(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    return str((function if isinstance(function, dict) else call).get("name", ""))


def _is_written(content: str, text: str) -> bool:
    """Whether the start of a content is in a text, or its longest word, if it is quoted there."""
    return content.strip()[:_MOST_SHOWN] in text or (
        max(re.findall(r"\w+", content), key=len, default="") in text
    )
