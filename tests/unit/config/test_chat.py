"""Options of `Chat` are checked when it is created, and each error names the valid values."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from cloudload import Chat


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"template": ""}, "template of Chat is empty"),
        ({"template": 3}, "template of Chat is 3. Use a string"),
        ({"train": "user"}, "train of Chat is 'user'. Use one of assistant, last, completion, all"),
        ({"overlong": "cut"}, "overlong of Chat is 'cut'. Use one of drop, truncate, split"),
        ({"max_tokens": 1}, "max_tokens of Chat is 1. Use an integer of at least 2"),
        ({"train_eot": "no"}, "train_eot of Chat is 'no'"),
        ({"trusted": None}, "trusted of Chat is None"),
        ({"roles": ["bot"]}, r"roles of Chat is \['bot'\]. Use a dict"),
        ({"roles": {"bot": 1}}, "the role 'bot' in roles of Chat is 1. Use a string"),
        ({"template_kwargs": {"tools": []}}, "has 'tools', which comes from the rows"),
        ({"template_kwargs": {"f": float("nan")}}, "cannot be written to a state: .*Use values of"),
        ({"template_kwargs": {"f": print}}, "cannot be written to a state: .*Use values of JSON"),
        ({"reasoning_tags": ("<think>",)}, "reasoning_tags of Chat is .*Use two strings"),
        ({"date": "tomorrow"}, "date of Chat is 'tomorrow'. Use a date such as '2026-01-31'"),
        ({"date": "20260131"}, "date of Chat is '20260131'"),
        ({"train": "all", "train_eot": False}, "which trains whole texts, so train_eot=False"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Chat(**options)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(TypeError, match="Chat has no argument 'chat_template'"):
        Chat(chat_template="x")  # type: ignore[call-arg]


def test_options_can_be_compared_hashed_and_sent_to_workers() -> None:
    chat = Chat(template_kwargs={"enable_thinking": False}, reasoning_tags=["<r>", "</r>"])  # type: ignore[arg-type]
    assert chat == pickle.loads(pickle.dumps(chat))
    assert hash(chat) == hash(pickle.loads(pickle.dumps(chat)))
    assert chat != Chat()
