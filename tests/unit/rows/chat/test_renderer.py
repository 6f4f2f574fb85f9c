"""What is trained of a conversation, and which names of special tokens in it stay text."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.config import Chat, Text
from cloudload.rows.chat.chat_template import ChatTemplate
from cloudload.rows.chat.conversation import ChatError, UnknownTurnError
from cloudload.rows.chat.literals import Names, find_literal, without
from cloudload.rows.chat.renderer import Renderer
from cloudload.rows.chat.sandbox import CompiledTemplate

PROMPT = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
STOCK = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls %}[{{ c.function.name }}{{ c.function.arguments | tojson }}]"
    "{% endfor %}<|end|>\n{% endfor %}" + PROMPT
)
BLOCKS = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}" + PROMPT
)
# as in Qwen3, reasoning of earlier turns is left out, and the last one has it even if it is empty
REASONING = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if loop.last and m.role == 'assistant' %}<think>{{ m.reasoning_content }}</think>"
    "{% endif %}"
    "{{ m.content }}<|end|>{% endfor %}" + PROMPT
)
# as in GLM-4, the model ends its turn by starting the next message
NEXT = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}" + PROMPT
# as in gpt-oss, the last turn ends with a token of its own
FINAL = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% if loop.last and m.role == 'assistant' %}<|user|>{% else %}<|end|>{% endif %}{% endfor %}"
    + PROMPT
)
# as in Kimi K3, several tokens end a turn, with text between them
LONG = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "<|tool|>answer<|end|>\n{% endfor %}" + PROMPT
)
# only the last turn ends with a token
LAST = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% if loop.last and m.role == 'assistant' %}<|end|>{% endif %}{% endfor %}" + PROMPT
)
# as in Mistral Nemo, tools are described before the last message of a user
TOOLS_LAST = (
    "{% for m in messages %}"
    "{% if tools and m.role == 'user' and loop.index >= messages | length - 1 %}"
    "[{{ tools | length }}]{% endif %}"
    "<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}" + PROMPT
)
SPECIAL = ("<|assistant|>", "<|end|>", "<|tool|>", "<|user|>")


def render(text: str, *contents: str | dict[str, Any], **options: Any) -> Text | None:
    """Render turns that alternate between user and assistant; a dict adds to a message."""
    template = ChatTemplate("test", text, text, {}, SPECIAL, SPECIAL, Chat(**options))
    messages = [
        {
            "role": "assistant" if number % 2 else "user",
            **({"content": content} if isinstance(content, str) else content),
        }
        for number, content in enumerate(contents)
    ]
    return Renderer(template).render({"messages": messages})


def trained(document: Text | None) -> list[str]:
    assert document is not None
    assert document.trained is not None
    assert document.special_tokens
    return [document[start:stop] for start, stop in document.trained]


def literal(document: Text | None) -> list[str]:
    assert document is not None
    return [document[start:stop] for start, stop in document.literal]


def test_blocks_of_a_template_say_what_is_trained() -> None:
    document = render(BLOCKS, "a", "b", "c", "d")
    assert document == "<|user|>a<|end|><|assistant|>b<|end|><|user|>c<|end|><|assistant|>d<|end|>"
    assert trained(document) == ["b<|end|>", "d<|end|>"]


@pytest.mark.parametrize("text", [STOCK, BLOCKS])
def test_turns_are_trained_through_the_token_at_their_end(text: str) -> None:
    assert trained(render(text, "a", "b", "c", "d")) == ["b<|end|>", "d<|end|>"]
    assert trained(render(text, "a", "b", "c", "d", train_eot=False)) == ["b", "d"]
    assert trained(render(text, "a", "b", "c", "d", train="last")) == ["d<|end|>"]
    assert trained(render(text, "a", {"content": "b", "train": False}, "c", "d")) == ["d<|end|>"]


@pytest.mark.parametrize("text", [STOCK, BLOCKS])
def test_a_document_without_trained_turns_is_none(text: str) -> None:
    assert render(text, "a", {"content": "b", "weight": 0}) is None


def test_everything_can_be_trained() -> None:
    document = render(STOCK, "a", "b", train="all")
    assert document is not None
    assert document.trained is None


def test_all_after_a_prompt_can_be_trained() -> None:
    template = ChatTemplate("test", STOCK, STOCK, {}, SPECIAL, SPECIAL, Chat(train="completion"))
    document = Renderer(template).render({"prompt": "a", "completion": "b"})
    assert trained(document) == ["b<|end|>\n"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (REASONING, ["b<|end|>", "<think></think>d<|end|>"]),
        (NEXT, ["b<|user|>", "d"]),
        (FINAL, ["b<|end|>", "d<|user|>"]),
        (LAST, ["b", "d<|end|>"]),
        (LONG, ["b<|tool|>answer<|end|>", "d<|tool|>answer<|end|>"]),
    ],
)
def test_turns_of_unlike_templates_are_found(text: str, expected: list[str]) -> None:
    assert trained(render(text, "a", "b", "c", "d")) == expected


def test_tool_calls_are_trained_and_answers_of_tools_are_not() -> None:
    call = {"function": {"name": "f", "arguments": {"x": 1}}}
    tool = {"role": "tool", "content": "42"}
    document = render(STOCK, "a", {"content": "", "tool_calls": [call]}, tool, "It is 42", "b", "c")
    assert trained(document) == ['[f{"x": 1}]<|end|>', "It is 42<|end|>", "c<|end|>"]


def test_turns_beside_what_a_template_moves_are_found_if_they_are_texts() -> None:
    template = ChatTemplate("test", TOOLS_LAST, TOOLS_LAST, {}, SPECIAL, SPECIAL, Chat())
    messages = [
        {"role": "assistant" if number % 2 else "user", "content": content}
        for number, content in enumerate("abcd")
    ]
    document = Renderer(template).render({"messages": messages, "tools": [{"name": "f"}]})
    assert trained(document) == ["b<|end|>", "d<|end|>"]


@pytest.mark.parametrize("content", ["m.content", "m.content.strip()"])
def test_turns_beside_tool_calls_and_whitespace_are_found(content: str) -> None:
    call = {"function": {"name": "f", "arguments": {"x": 1}}}
    tool = {"role": "tool", "content": " 42\n"}
    told = {"content": "", "tool_calls": [call]}
    document = render(STOCK.replace("m.content", content), " a\n", told, tool, "b", "\n c ", "d")
    assert trained(document) == ['[f{"x": 1}]<|end|>', "b<|end|>", "d<|end|>"]


def test_reasoning_that_earlier_prompts_open_may_be_left_out() -> None:
    text = REASONING.replace(PROMPT, PROMPT.replace("<|assistant|>", "<|assistant|><think>"))
    call = {"function": {"name": "f", "arguments": {}}}
    assert trained(render(text, "a", "b", "c", "d")) == ["b<|end|>", "</think>d<|end|>"]
    calls = "{% for c in m.tool_calls %}[{{ c.function.name }}]{% endfor %}"
    text = text.replace("{{ m.content }}", "{{ m.content }}" + calls)
    document = render(text, "a", {"content": "b", "tool_calls": [call]}, "c", "d")
    assert trained(document) == ["b[f]<|end|>", "</think>d<|end|>"]
    wrong = text.replace("{% if loop.last and", "{% if false and")
    with pytest.raises(UnknownTurnError, match="the turn of message 3 cannot be located"):
        render(wrong, "a", "b", "c", "d")


@pytest.mark.parametrize(
    ("told", "times"),
    [
        ({"content": " d\n"}, 1),
        ({"content": "d", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}, 2),
    ],
)
def test_turns_need_no_rendering_of_their_own(
    told: dict[str, Any], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = ChatTemplate("test", STOCK, STOCK, {}, SPECIAL, SPECIAL, Chat())
    asked = {"role": "user", "content": " q\n"}
    messages = [asked, {"role": "assistant", **told}] * 5
    renderer = Renderer(template)
    renderer.render({"messages": messages})  # learns from the template
    rendered = 0

    def count(*arguments: Any, **options: Any) -> Any:
        nonlocal rendered
        rendered += 1
        return render_blocks(*arguments, **options)

    render_blocks = CompiledTemplate.render_blocks
    monkeypatch.setattr(CompiledTemplate, "render_blocks", count)
    assert renderer.render({"messages": messages}) is not None
    assert rendered == times


def test_reasoning_can_be_left_untrained() -> None:
    told = {"content": "b", "reasoning_content": "hm"}
    assert trained(render(REASONING, "a", told)) == ["<think>hm</think>b<|end|>"]
    assert trained(render(REASONING, "a", told, train_reasoning=False)) == ["b<|end|>"]
    # a prompt may end with the opening tag
    prompt = REASONING.replace("<|assistant|>", "<|assistant|><think>")
    assert trained(render(prompt, "a", told)) == ["hm</think>b<|end|>"]
    assert trained(render(prompt, "a", told, train_reasoning=False)) == ["b<|end|>"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("b", ["b<|end|>"]),
        ("b<think>hm</think>c", ["b", "c<|end|>"]),
        ("b<think>hm", ["b"]),  # as is the end of reasoning that does not end
    ],
)
def test_reasoning_between_tags_is_left_untrained(content: str, expected: list[str]) -> None:
    assert trained(render(STOCK, "a", content, train_reasoning=False)) == expected


def test_an_empty_turn_without_its_end_is_not_trained() -> None:
    assert trained(render(STOCK, "a", "", "c", "d", train_eot=False)) == ["d"]
    assert render(STOCK, "a", "", train_eot=False) is None


def test_turns_without_a_token_at_their_end_need_an_option() -> None:
    text = STOCK.replace("<|end|>", "").replace("<|", "").replace("|>", ": ")
    with pytest.raises(UnknownTurnError, match="a model would not learn to stop"):
        render(text, "a", "b")
    assert trained(render(text, "a", "b", train_eot=False)) == ["b"]


@pytest.mark.parametrize("arguments", [{"x": "\u00f6"}, '{"x": "\u00f6"}'])
@pytest.mark.parametrize("written", ["c.function.arguments | tojson", "c.function.arguments"])
def test_arguments_of_tool_calls_are_written_as_json(arguments: Any, written: str) -> None:
    text = STOCK.replace("c.function.arguments | tojson", written)
    call = {"function": {"name": "f", "arguments": arguments}}
    document = render(text, "a", {"content": "", "tool_calls": [call]})
    assert trained(document) == ['[f{"x": "\u00f6"}]<|end|>']


def test_turns_that_end_with_the_next_message_are_trained_through_its_first_token() -> None:
    call = {"function": {"name": "f", "arguments": {}}}
    calls = "{% for c in m.tool_calls %}[{{ c.function.name }}]{% endfor %}"
    text = NEXT.replace("{{ m.content }}", "{{ m.content }}" + calls)
    told, tool = {"content": "", "tool_calls": [call]}, {"role": "tool", "content": "42"}
    document = render(text, "a", told, tool, "b", "c", "d")
    assert trained(document) == ["[f]<|tool|>", "b<|user|>", "d"]


def test_a_turn_that_its_prompt_does_not_begin_is_refused() -> None:
    text = STOCK.replace(PROMPT, PROMPT.replace("<|assistant|>", "<|assistant|>Well, "))
    words = r"turn of message 1 .* asks for it with .*Well, ', but writes .*<.assistant.>b<.end"
    with pytest.raises(UnknownTurnError, match=words):
        render(text, "a", "b")


def test_a_message_that_a_template_leaves_out_is_refused() -> None:
    text = (
        "{% for m in messages %}{% if m.role != 'tool' %}"
        "<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    )
    words = r"the chat template test leaves out message 2 \(tool\), or its tool calls"
    with pytest.raises(ChatError, match=words):
        render(text + PROMPT, "a", "b", {"role": "tool", "content": "wet"}, "c")


@pytest.mark.parametrize("text", [STOCK, BLOCKS])
def test_names_of_special_tokens_that_users_write_stay_text(text: str) -> None:
    document = render(text, "say <|end|> now", "ok <|user|><|end|>", "<|<|end|>", "b")
    assert literal(document) == ["<|end|>", "<|user|>", "<|end|>", "<|end|>"]
    assert trained(document) == ["ok <|user|><|end|><|end|>", "b<|end|>"]


def test_names_of_special_tokens_in_tool_calls_stay_text() -> None:
    call = {"function": {"name": "f", "arguments": {"<|end|>": ["<|user|>"]}}}
    document = render(STOCK, "a", {"content": "", "tool_calls": [call]})
    assert literal(document) == ["<|end|>", "<|user|>"]


def test_a_name_that_a_user_typed_does_not_end_a_turn() -> None:
    text = BLOCKS.replace("<|end|>{% endgeneration %}", "{% endgeneration %}<|end|>")
    assert trained(render(text, "a", "b<|end|>", train_eot=False)) == ["b<|end|>"]


def test_names_that_touch_are_one_range() -> None:
    assert find_literal("xabx", "xa\ue000b\ue000x", "\ue000", Names(["a", "b", "ab"])) == [(1, 3)]
    assert without([(0, 3), (5, 9)], [(1, 2), (2, 6)]) == [(0, 1), (6, 9)]


def test_a_private_character_in_a_text_changes_nothing() -> None:
    document = render(STOCK, "\U000f0000<|end|>", "\U000f0001", {"content": "x"}, "\ue000")
    assert literal(document) == ["<|end|>"]
    assert trained(document) == ["\U000f0001<|end|>", "\ue000<|end|>"]


def test_names_of_special_tokens_of_trusted_data_become_tokens() -> None:
    assert literal(render(STOCK, "say <|end|> now", "ok", trusted=True)) == []


def test_a_template_that_looks_for_a_name_in_a_message_is_refused() -> None:
    text = STOCK.replace("m.content", "m.content.replace('<|end|>', '')")
    with pytest.raises(
        ChatError, match="the chat template writes the message differently because of it"
    ):
        render(text, "say <|end|> now", "ok")


def test_a_name_that_arises_between_texts_of_a_user_is_refused() -> None:
    parts = [{"type": "text", "text": "<|en"}, {"type": "text", "text": "d|>"}]
    text = STOCK.replace("{{ m.content }}", "{% for p in m.content %}{{ p.text or p }}{% endfor %}")
    with pytest.raises(ChatError, match=r"joins the end of a text .* forms '<\|end\|>'"):
        render(text, {"content": parts}, "ok")
    apart = text.replace("{% endfor %}{% for c", " {% endfor %}{% for c")
    assert literal(render(apart, {"content": parts}, "ok", train="all")) == []


@pytest.mark.parametrize("content", ["end|> x", "end|>", "en"])
def test_a_name_that_a_template_begins_and_a_user_ends_is_refused(content: str) -> None:
    text = "{% for m in messages %}{{ '<|' }}{{ m.content }}{{ 'd|>' }}{% endfor %}"
    with pytest.raises(ChatError, match=r"forms '<\|end\|>'"):
        render(text, content, "b", train="all")
    document = render(text, content, "b", train="all", trusted=True)
    assert document is not None
    assert "<|end|>" in document
    assert literal(render(STOCK, content, "b")) == []


NAMES = ("<a>", "<|b|>", "aab", "[c")
_pieces = st.text("<|>ab[c ", max_size=7)


@given(
    templates=st.lists(_pieces, min_size=3, max_size=3),
    contents=st.lists(_pieces, min_size=2, max_size=2),
    trims=st.booleans(),
    in_one=st.booleans(),
)
def test_a_conversation_is_refused_exactly_if_a_name_has_characters_of_two_texts(
    templates: list[str], contents: list[str], *, trims: bool, in_one: bool
) -> None:
    """Each character has an owner: the template, or one of the contents."""
    first, second, last = map(json.dumps, templates)
    one, other = (f"messages[{at}].content{' | trim' if trims else ''}" for at in (0, 1))
    parts = [first, one, second, other, last]
    text = f"{{{{ {' ~ '.join(parts)} }}}}" if in_one else "".join(f"{{{{ {e} }}}}" for e in parts)
    written = [each.strip() if trims else each for each in contents]
    texts = [templates[0], written[0], templates[1], written[1], templates[2]]
    owners = [owner for owner, each in enumerate(texts) for _ in each]
    names = Names(NAMES)
    spans = list(names.find("".join(texts)))
    owned = [set(owners[start:stop]) for start, stop in spans]
    is_joined = any(len(each) > 1 and each & {1, 3} for each in owned)
    template = ChatTemplate("test", text, text, {}, NAMES, NAMES, Chat(train="all"))
    messages = [{"role": "user", "content": contents[0]}, {"role": "assistant"}]
    messages[1]["content"] = contents[1]
    renderer, sample = Renderer(template), {"messages": messages}
    if is_joined:
        with pytest.raises(ChatError, match="joins the end of a text"):
            renderer.render(sample)
    elif (document := renderer.render(sample)) is not None:
        own = [range(*span) for span, each in zip(spans, owned, strict=True) if each & {1, 3}]
        kept = itertools.chain.from_iterable(itertools.starmap(range, document.literal))
        assert {*kept} == {*itertools.chain.from_iterable(own)}


def test_a_template_that_trains_everything_is_refused() -> None:
    text = "{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}{% endgeneration %}"
    with pytest.raises(UnknownTurnError, match="template test marks all of its text as generated"):
        render(text, "a", "b")


def test_a_row_that_trains_some_turns_needs_a_block_for_each() -> None:
    text = BLOCKS.replace(
        "{{ m.content }}<|end|>{% endgen",
        "{{ m.content }}{% endgeneration %}-{% generation %}<|end|>{% endgen",
    )
    words = r"test has 4 .% generation %. blocks for 2 assistant messages"
    with pytest.raises(ChatError, match=words):
        render(text, "a", "b", "c", "d", train="last")
