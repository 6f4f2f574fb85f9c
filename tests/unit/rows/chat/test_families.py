"""Templates of real models render as in transformers, and train what models generate."""

from __future__ import annotations

import re
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload.config import Text
from cloudload.rows.chat.conversation import ChatError, UnknownTurnError
from tests.unit.rows.chat.families import (
    CONVERSATIONS,
    DATE,
    SPECIAL,
    TEMPLATES,
    TOKENS,
    TOOLS,
    assistant,
    renderer,
    user,
)

WITH_BLOCKS = sorted(name for name, text in TEMPLATES.items() if "endgeneration" in text)
STOCK = sorted(set(TEMPLATES) - set(WITH_BLOCKS))
NO_REASONING = {"one turn", "turns", "system", "empty", "tools", "names"}
UNPROVED = {
    # the prompt opens reasoning that the template leaves out of its last turn
    "deepseek_r1_distill": {*CONVERSATIONS} - {"tools"},
    "deepseekv3": {*CONVERSATIONS},
    # the prompt opens reasoning, which has other characters in turns without reasoning
    **{name: NO_REASONING for name in STOCK if name.startswith("nemotron")},
    # the prompt has empty reasoning
    "qwen3_5_nothink": {"reasoning", "tags", "early reasoning"},
}
"""Conversations for which it is unknown what these templates' models generate."""


def render_with_transformers(
    name: str, sample: dict[str, Any], **options: Any
) -> tuple[str, list[tuple[int, int]]]:
    """Return the text of a sample, and what its `{% generation %}` blocks wrote."""
    from transformers.utils import chat_template_utils

    with mock.patch.object(chat_template_utils, "datetime") as clock:
        clock.now.return_value.strftime.side_effect = lambda format: _date().strftime(format)
        [text], blocks = chat_template_utils.render_jinja_template(
            [sample["messages"]],
            tools=sample.get("tools"),
            chat_template=TEMPLATES[name],
            return_assistant_tokens_mask=name in WITH_BLOCKS,
            **TOKENS,
            **options,
        )
    return text, blocks[0] if blocks else []


def _date() -> Any:
    import datetime

    return datetime.datetime.fromisoformat(DATE)


def render(name: str, sample: dict[str, Any]) -> Text | None:
    """Return a document, or None if its template does not support it."""
    try:
        return renderer(name).render(sample)
    except UnknownTurnError:
        raise
    except ChatError as error:
        if re.search("refuses the conversation|leaves out message", str(error)):
            return None
        raise


@pytest.mark.parametrize("name", TEMPLATES)
def test_text_is_that_of_transformers(name: str) -> None:
    for case, sample in CONVERSATIONS.items():
        if case in UNPROVED.get(name, ()):
            continue
        document = render(name, sample)
        if document is None:
            assert case in ("tools", "system", "empty")
        elif not (name.startswith("deepseek") and case == "tools"):  # it needs arguments as text
            assert str(document) == render_with_transformers(name, sample)[0], case


@pytest.mark.parametrize("name", WITH_BLOCKS)
def test_blocks_train_the_characters_that_they_train_in_transformers(name: str) -> None:
    for case, sample in CONVERSATIONS.items():
        document = render(name, sample)
        if document is not None and not (name.startswith("deepseek") and case == "tools"):
            blocks = render_with_transformers(name, sample)[1]
            trained = {n for start, stop in document.trained or () for n in range(start, stop)}
            assert trained == {n for start, stop in blocks for n in range(start, stop)}, case


@pytest.mark.parametrize("name", STOCK)
def test_turns_are_found_or_the_document_is_refused(name: str) -> None:
    for case, sample in CONVERSATIONS.items():
        if case in UNPROVED.get(name, ()):
            with pytest.raises(UnknownTurnError, match=rf"{name}|refuses"):
                renderer(name).render(sample)
        else:
            render(name, sample)


def check_turns(name: str, sample: dict[str, Any]) -> int:
    """Compare trained ranges with renderings of the messages before and after each turn.

    Returns the number of turns that were compared.
    """
    document = render(name, sample)
    if document is None:
        return 0
    text, messages, compared = str(document), sample["messages"], 0
    turns = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
    assert document.trained is not None
    assert len(document.trained) == len(turns)
    for number, (start, stop) in zip(turns, document.trained, strict=True):
        before = {**sample, "messages": messages[:number]}
        asked = render_with_transformers(name, before, add_generation_prompt=True)[0]
        if text.startswith(asked):
            assert start == len(asked)
            compared += 1
        answered = render_with_transformers(name, {**sample, "messages": messages[: number + 1]})[0]
        if text.startswith(answered):
            # the model may end its turn with the first token of the next message
            assert answered[stop:].strip() in ("", "</s>")
            assert text[len(answered) : stop] in ("", *SPECIAL)
    return compared


# templates that write earlier turns as they write the last one
PREFIXES = ["cohere", "gemma3", "llama3", "llama3_1", "phi3", "qwen2_5", "qwen3_instruct_2507"]
OTHERS = ["glm4moe", "gptoss", "qwen3", "qwen3_vl", "gemma4", "lfm2", "qwen3_8"]


@pytest.mark.parametrize("name", [*PREFIXES, *OTHERS])
def test_a_turn_begins_where_its_prompt_ends(name: str) -> None:
    compared = sum(
        check_turns(name, sample)
        for case, sample in CONVERSATIONS.items()
        if case not in UNPROVED.get(name, ())
    )
    assert compared >= 10


WORDS = st.sampled_from(
    ["a", "b\n", " ", "\n\n", "<|im_end|>", "<|end|>", "</think>", "<think>", "user", "assistant"]
) | st.text(st.characters(codec="utf-8", exclude_categories=["Co"]), max_size=4)
CONTENTS = st.lists(WORDS, max_size=4).map("".join)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(CONTENTS, CONTENTS), min_size=1, max_size=4),
    st.sampled_from(PREFIXES + OTHERS),
)
def test_turns_of_any_text_begin_where_their_prompts_end(
    turns: list[tuple[str, str]], name: str
) -> None:
    messages = [each for asked, told in turns for each in (user(asked), assistant(told))]
    try:
        check_turns(name, {"messages": messages})
    except ChatError:
        if not any("<" in told or not told.strip() for _, told in turns):
            raise  # only what looks like a tag, and empty content, may be refused


def names_outside(document: Text) -> list[str]:
    """The names in a text that become special tokens."""
    names = "|".join(sorted(map(re.escape, SPECIAL), key=len, reverse=True))
    parts, last = [], 0
    for start, stop in document.literal:
        parts.append(document[last:start])
        last = stop
    return [name for part in [*parts, document[last:]] for name in re.findall(names, part)]


HOSTILE = st.lists(
    st.sampled_from([*SPECIAL, "<|im_", "end|>", "<", "|>", "a", " ", "\n"]), max_size=5
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(HOSTILE.map("".join), min_size=2, max_size=6).filter(lambda each: len(each) % 2 == 0),
    st.sampled_from(["gemma3", "llama3", "phi3", "qwen2_5", "qwen3", "glm4moe", "qwen3_training"]),
    st.booleans(),
)
def test_no_message_can_add_a_special_token(contents: list[str], name: str, has_call: bool) -> None:
    """The special tokens of a text are those of the same conversation without names in it."""

    def render_all(texts: list[str]) -> Text:
        messages: list[dict[str, Any]] = [
            {"role": "assistant" if number % 2 else "user", "content": text}
            for number, text in enumerate(texts)
        ]
        sample: dict[str, Any] = {"messages": messages}
        if has_call and name.startswith("qwen"):
            call = {"name": "f", "arguments": {texts[0]: [texts[1]]}}
            messages[-1]["tool_calls"] = [{"type": "function", "function": call}]
            sample["tools"] = [{**TOOLS[0], "note": texts[0]}]
        document = renderer(name).render(sample)
        assert document is not None
        return document

    pattern = "|".join(sorted(map(re.escape, SPECIAL), key=len, reverse=True))
    harmless = [re.sub(pattern, lambda found: "x" * len(found[0]), text) for text in contents]
    hostile, plain = render_all(contents), render_all(harmless)
    assert names_outside(hostile) == names_outside(plain)
    assert len(hostile) == len(plain)
    assert hostile.trained == plain.trained


def train_as_trl(name: str, sample: dict[str, Any]) -> tuple[Text | None, Text | None]:
    return render(name, sample), render(f"{name}_training", sample)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("cohere", "", ""),
        ("cohere2", "", ""),
        ("gemma", "", "\n"),
        ("gemma3", "", "\n"),
        ("llama3", "", ""),
        ("phi3", "", "\n</s>"),  # the model ends its turn with <|end|>
        ("qwen2_5", "\n", "\n"),  # the newline is part of the prompt
        ("qwen2_5_vl", "\n", "\n"),
        ("qwen3_instruct_2507", "", "\n"),
        ("qwen3_vl", "", "\n"),
        ("gptoss", "<|start|>assistant", ""),  # as is the header
        ("lfm2", "", "\n"),
    ],
)
def test_turns_are_those_of_the_training_templates_of_trl(
    name: str, before: str, after: str
) -> None:
    """TRL's templates also train some characters before and after turns, which are named here."""
    compared = 0
    for case, sample in CONVERSATIONS.items():
        if case in UNPROVED.get(name, ()):
            continue
        ours, trl = train_as_trl(name, sample)
        if ours is None or trl is None or str(ours) != str(trl):
            continue
        assert ours.trained is not None
        assert trl.trained is not None
        for (start, stop), (low, high) in zip(ours.trained, trl.trained, strict=True):
            assert trl[low:start] in ("", before)
            assert trl[stop:high] in ("", after, after[:1])
            compared += 1
    assert compared >= 8
