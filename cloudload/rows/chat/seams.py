"""Learn what a template writes between the contents of messages, from conversations of one word.

    [user Ask, assistant Tell, user Seek, assistant Say]

    <|user|>Ask<|end|><|assistant|>Tell<|end|><|user|>Seek<|end|><|assistant|>Say<|end|>
    first      prompt                  ending             prompt                 ending

    [user Ask], with a generation prompt

    <|user|>Ask<|end|><|assistant|>      a turn begins where the prompt ends

If a document consists of these strings and of the contents of its messages, then it is known which
of its characters the model generates. Documents are compared with the strings, so a template that
writes something else in a document is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudload.rows.chat.conversation import ASSISTANT, Message
from cloudload.rows.chat.literals import Names, count_equal

Render = Callable[[list[Message], bool], str | None]
"""Renders messages, with or without a generation prompt. Returns None if the template raises."""
END = ""
"""Stands for the role of the message after the last one."""
_SYSTEM, _USER, _TOOL = "system", "user", "tool"
# words that no template has
_SYSTEM_MESSAGE: Message = {"role": _SYSTEM, "content": "Sysqz"}
_TOOL_MESSAGE: Message = {"role": _TOOL, "content": "Toolqz"}
_ASKED: Message = {"role": _USER, "content": "Askqz"}
_SOUGHT: Message = {"role": _USER, "content": "Seekqz"}
_TOLD: Message = {"role": ASSISTANT, "content": "Tellqz"}
_SAID: Message = {"role": ASSISTANT, "content": "Sayqz"}


@dataclass(frozen=True)
class TurnEnd:
    """What follows the content of a turn, up to the next content or to the end of the text."""

    text: str
    eot: int
    """Where in `text` the token that ends the turn begins, or 0 if there is none."""
    stop: int
    """Where in `text` this token ends, or 0."""


@dataclass(frozen=True)
class Seams:
    """The strings between contents. A string that could not be learned is missing."""

    first: Mapping[str, str] = field(default_factory=dict)
    """What precedes the content of the first message, by its role."""
    between: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """What is between two messages without a turn, by their roles."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """What follows the content of the message before a turn, to the end of the generation prompt,
    by the message's role."""
    early_prompts: Mapping[str, str] = field(default_factory=dict)
    """The same for turns before the last one. Templates whose prompts open the reasoning may leave
    it out of such turns. If so, these are the prompts without the reasoning's tags."""
    fills: Mapping[str, str] = field(default_factory=dict)
    """What a turn begins with before its content, by the role of the next message."""
    endings: Mapping[str, TurnEnd] = field(default_factory=dict)
    """What follows a turn's content, by the role of the next message."""


def learn_seams(render: Render, names: Names, tags: tuple[str, str]) -> Seams:
    """Learn the strings of a template.

    `names` are those of the tokenizer's tokens, and `tags` those around reasoning.
    """
    first, prompts = _learn_prompt(render)
    early, fills, texts = _learn_turns(render, prompts.get(_USER), tags)
    between = {}
    if found := _split(render([_SYSTEM_MESSAGE, _ASKED], True), _SYSTEM_MESSAGE, _ASKED):
        first[_SYSTEM], between[_SYSTEM, _USER], _ = found
    if found := _split(render([_ASKED, _TOLD, _TOOL_MESSAGE], True), _ASKED, _TOLD, _TOOL_MESSAGE):
        _, _, texts[_TOOL], prompts[_TOOL] = found
    ends = _find_endings(texts, prompts.get(_USER), names)
    return Seams(first, between, prompts, early, fills, ends)


def _learn_prompt(render: Render) -> tuple[dict[str, str], dict[str, str]]:
    """Return `first` and `prompts` of a user's message, unless prompts of later turns differ."""
    once = _split(render([_ASKED], True), _ASKED)
    again = _split(render([_ASKED, _TOLD, _SOUGHT], True), _ASKED, _TOLD, _SOUGHT)
    if not once:
        return {}, {}
    is_same = not again or again[-1] == once[-1]
    return {_USER: once[0]}, {_USER: once[1]} if is_same else {}


def _learn_turns(
    render: Render, prompt: str | None, tags: tuple[str, str]
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return `early_prompts`, `fills`, and the texts of `endings`, for turns after a user's
    message, whose prompt is `prompt`."""
    messages = [_ASKED, _TOLD, _SOUGHT, _SAID]
    dialogue = _split(render(messages, False), *messages)
    single = None if dialogue else _split(render(messages[:2], False), *messages[:2])
    texts: dict[str, str] = {}
    starts: list[tuple[str, str, str]] = []
    if prompt is None:
        return {}, {}, texts
    early = prompt
    if dialogue:
        _, to_middle, texts[_USER], to_last, texts[END] = dialogue
        if not to_middle.startswith(prompt):
            early = without_reasoning(prompt, tags)
        starts = [(_USER, to_middle, early), (END, to_last, prompt)]
    elif single:
        _, to_last, texts[END] = single
        starts = [(END, to_last, prompt)]
    fills = {
        role: text.removeprefix(start) for role, text, start in starts if text.startswith(start)
    }
    return {_USER: early}, fills, texts


def without_reasoning(prompt: str, tags: tuple[str, str]) -> str:
    """Return a generation prompt without the opening tag of reasoning, or the empty reasoning, with
    which it ends."""
    opening, closing = map(re.escape, tags)
    return re.sub(rf"{opening}\s*({closing}\s*)?\Z", "", prompt)


def _split(text: str | None, *messages: Message) -> list[str] | None:
    """Split a text at the contents of messages; None unless it has each of them once, in order."""
    found = []
    for message in messages:
        content: Any = message["content"]
        if text is None or text.count(content) != 1:
            return None
        before, _, text = text.partition(content)
        found.append(before)
    return [*found, text or ""]


def _find_endings(texts: Mapping[str, str], prompt: str | None, names: Names) -> dict[str, TurnEnd]:
    """Find the tokens that end a turn, in what follows turns.

        last turn    middle turn                       ends
        <eot>        <eot> user                        <eot>
        <a>b<eot>    <a>b<eot><user>                   <a>b<eot>
        <eos>        <end><user>     <end> in prompt   <eos>, <end>
                     <user>                            <user>: the model starts the next message

    Whitespace before it belongs to the turn.
    """
    last, middle = texts.get(END, ""), texts.get(_USER, "")
    # through the last token that both have, or else the first of each
    common = last[: count_equal(last, middle)]
    ends = {common[: names.last_end(common)].lstrip()} - {""}
    if not ends:
        ends = {_first_token(last, names)} - {""}
        token = _first_token(middle, names)
        if token and (not ends or (prompt or "").lstrip().startswith(token)):
            ends.add(token)
    found = {}
    for role, text in texts.items():
        start = len(text) - len(text.lstrip())
        fitting = [end for end in ends if text.startswith(end, start)]
        if not fitting and not _first_token(last, names):
            fitting = [_first_token(text, names)]
        stop = start + max(map(len, fitting), default=0)
        found[role] = TurnEnd(text, start, stop) if stop > start else TurnEnd(text, 0, 0)
    return found


def _first_token(text: str, names: Names) -> str:
    """Return the token that a text begins with, after whitespace, or an empty string."""
    start = len(text) - len(text.lstrip())
    return text[start : names.match(text, start)]
