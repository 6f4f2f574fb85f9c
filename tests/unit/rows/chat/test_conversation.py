"""Rows of every common format become the same messages; wrong rows are refused with their place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cloudload.config import Chat
from cloudload.rows.chat.conversation import ChatError, read_conversation
from cloudload.rows.chat.tool_calls import convert_arguments

ASKED = {"role": "user", "content": "Hi"}
TOLD = {"role": "assistant", "content": "Yes"}


@pytest.mark.parametrize(
    ("sample", "options", "num_prompt"),
    [
        ({"messages": [ASKED, TOLD]}, {}, 0),
        ({"messages": json.dumps([ASKED, TOLD])}, {}, 0),
        ({"messages": [ASKED, TOLD], "prompt": "x", "completion": "y"}, {}, 0),
        ({"messages": None, "prompt": "Hi", "completion": "Yes"}, {}, 1),
        ({"turns": [ASKED, TOLD]}, {"messages_key": "turns"}, 0),
        ({"messages": [{**ASKED, "role": "ask"}, TOLD]}, {"roles": {"ask": "user"}}, 0),
        ({"messages": [{**ASKED, "name": None}, {**TOLD, "tool_calls": None}]}, {}, 0),
        (
            {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes"}]},
            {},
            0,
        ),
        ({"prompt": "Hi", "completion": "Yes"}, {}, 1),
        ({"prompt": [ASKED], "completion": [TOLD]}, {}, 1),
        ({"instruction": "Hi", "input": "", "output": "Yes"}, {}, 1),
    ],
)
def test_rows_of_each_format_are_the_same_messages(
    sample: dict[str, Any], options: dict[str, Any], num_prompt: int
) -> None:
    conversation = read_conversation(sample, Chat(**options))
    assert conversation.messages == [ASKED, TOLD]
    assert (conversation.tools, conversation.kwargs) == (None, {})
    assert (conversation.trained, conversation.num_prompt) == ((1,), num_prompt)


def test_an_alpaca_input_follows_its_instruction() -> None:
    sample = {"instruction": "Add", "input": "1 2", "output": "3", "system": "Be brief"}
    messages = read_conversation(sample, Chat()).messages
    assert [each["content"] for each in messages] == ["Be brief", "Add\n\n1 2", "3"]


def test_a_row_has_tools_and_arguments_of_the_template_of_its_own() -> None:
    sample = {
        "messages": [ASKED, TOLD],
        "tools": json.dumps([{"name": "f"}]),
        "chat_template_kwargs": {"enable_thinking": False},
    }
    conversation = read_conversation(sample, Chat())
    assert conversation.tools == [{"name": "f"}]
    assert conversation.kwargs == {"enable_thinking": False}
    assert read_conversation({**sample, "tools": "[]"}, Chat()).tools is None


@pytest.mark.parametrize(
    ("options", "flags", "trained"),
    [
        ({}, [{}, {}], (1, 3)),
        ({"train": "last"}, [{}, {}], (3,)),
        ({}, [{"train": False}, {}], (3,)),
        ({}, [{"weight": 0}, {"weight": 1}], (3,)),
        ({"train": "last"}, [{"train": True}, {}], (1, 3)),
        ({"train": "last"}, [{}, {"train": False}], ()),
        ({"train": "all"}, [{}, {}], (0, 1, 2, 3)),
    ],
)
def test_an_option_and_flags_of_messages_say_which_are_trained(
    options: dict[str, Any], flags: list[dict[str, Any]], trained: tuple[int, ...]
) -> None:
    messages = [ASKED, {**TOLD, **flags[0]}, ASKED, {**TOLD, **flags[1]}]
    conversation = read_conversation({"messages": messages}, Chat(**options))
    assert conversation.trained == trained
    assert conversation.messages == [ASKED, TOLD, ASKED, TOLD]


def test_turns_of_a_prompt_are_not_trained() -> None:
    sample = {"prompt": [ASKED, TOLD, ASKED], "completion": [TOLD]}
    assert read_conversation(sample, Chat()).trained == (3,)
    assert read_conversation(sample, Chat(train="completion")).trained == (3,)


CALL = {"function": {"name": "f", "arguments": "{"}}


@pytest.mark.parametrize(
    ("sample", "options", "words"),
    [
        ({"text": "x", "id": 1}, {}, "has the columns id, text, but no conversation. Use the col"),
        ({"messages": []}, {}, "the column 'messages' has no messages"),
        ({"messages": "[{"}, {}, "the column 'messages' is not JSON"),
        (
            {"messages": {"role": "user"}},
            {},
            "the column 'messages' is {'role': 'user'}. Use a list",
        ),
        ({"messages": ["Hi"]}, {}, "message 0 is 'Hi'. Use an object with role and content"),
        ({"messages": [{"content": "Hi"}]}, {}, "the role of message 0 is None. Use one of assi"),
        ({"messages": [{**ASKED, "role": "x"}]}, {}, "the role of message 0 is 'x'.*Chat.roles="),
        ({"messages": [{"role": "user"}]}, {}, r"message 0 \(user\) has no content"),
        ({"messages": [{**TOLD, "content": None}]}, {}, r"message 0 \(assistant\) has no content"),
        ({"messages": [{**ASKED, "content": 5}]}, {}, "the content of message 0 is 5. Use text"),
        ({"messages": [{**ASKED, "content": [{"type": "image"}]}]}, {}, "Only text can be trained"),
        ({"messages": [{**TOLD, "tool_calls": {}}]}, {}, "tool_calls of message 0 is {}"),
        ({"messages": [ASKED]}, {}, "has no assistant message to train. Remove the row"),
        (
            {"messages": [{**ASKED, "train": True}, TOLD]},
            {},
            r"message 0 \(user\) is to be trained",
        ),
        ({"messages": [ASKED, {**TOLD, "weight": 2}]}, {}, "weight of message 1 is 2. Use true or"),
        ({"messages": [ASKED, TOLD]}, {"train": "completion"}, "no columns 'prompt' and 'compl"),
        (
            {"messages": [ASKED, {**TOLD, "train": False}]},
            {"train": "all"},
            "is 'all', but a message is not to be trained",
        ),
        ({"prompt": 3, "completion": "x"}, {}, "the column 'prompt' is 3. Use text, or a list"),
        ({"instruction": 3, "output": "x"}, {}, "the column 'instruction' is 3. Use text"),
        ({"messages": [ASKED, TOLD], "tools": "x"}, {}, "the column 'tools' is not JSON"),
    ],
)
def test_a_wrong_row_is_refused(
    sample: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ChatError, match=words):
        read_conversation(sample, Chat(**options))


def call(arguments: Any) -> list[dict[str, Any]]:
    return [{**TOLD, "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]


def test_arguments_of_tool_calls_take_the_form_that_a_template_needs() -> None:
    assert convert_arguments(call('{"x": 1}'), dict) == call({"x": 1})
    assert convert_arguments(call({"x": "\u00f6"}), str) == call('{"x": "\u00f6"}')
    assert convert_arguments(call({"x": 1}), None) == call({"x": 1})
    with pytest.raises(ChatError, match=r"a tool call of message 0 has the arguments '\{'"):
        convert_arguments(call("{"), dict)
