"""Learn what a template writes between the contents of messages, from conversations of one word.

    [user Q1, assistant R1, user Q2, assistant R2]

    <|user|>Q1<|end|><|assistant|>R1<|end|><|user|>Q2<|end|><|assistant|>R2<|end|>
    first   prompt                ending           prompt                ending

    [user Q1], with a generation prompt

    <|user|>Q1<|end|><|assistant|>      a turn begins where the prompt ends

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
from cloudload.rows.chat.literals import Names

Render = Callable[[list[Message], bool], str | None]
"""Renders messages, with or without a generation prompt. Returns None if the template raises."""
END = ""
"""Stands for the role of the message after the last one."""
_SYSTEM, _USER, _TOOL = "system", "user", "tool"
_WORDS = {"system": "Sysqz", "tool": "Toolqz", "q1": "Askqz", "q2": "Seekqz"}
_ANSWERS = {"r1": "Tellqz", "r2": "Sayqz"}


@dataclass(frozen=True)
class Ending:
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
    endings: Mapping[str, Ending] = field(default_factory=dict)
    """What follows a turn's content, by the role of the next message."""


def learn_seams(render: Render, names: Names, tags: tuple[str, str]) -> Seams:
    """Learn the strings of a template.

    `names` are those of the tokenizer's tokens, and `tags` those around reasoning.
    """
    first, between, prompts, early, fills = {}, {}, {}, {}, {}
    texts: dict[str, str] = {}
    q1, q2, r1, r2 = _user("q1"), _user("q2"), _answer("r1"), _answer("r2")
    asked, asked_again = render([q1], True), render([q1, r1, q2], True)
    dialogue = _split(render([q1, r1, q2, r2], False), q1, r1, q2, r2)
    again, once = _split(asked_again, q1, r1, q2), _split(asked, q1)
    if once:
        first[_USER], prompt = once
        if not again or again[-1] == prompt:
            prompts[_USER] = prompt
    if dialogue and _USER in prompts:
        _, to_middle, texts[_USER], to_last, texts[END] = dialogue
        early[_USER] = prompts[_USER]
        if not to_middle.startswith(early[_USER]):
            early[_USER] = without_reasoning(early[_USER], tags)
        for role, text, prompt in (
            (_USER, to_middle, early[_USER]),
            (END, to_last, prompts[_USER]),
        ):
            if text.startswith(prompt):
                fills[role] = text.removeprefix(prompt)
    elif single := _split(render([q1, r1], False), q1, r1):
        texts[END] = single[-1]
        if _USER in prompts and single[1].startswith(prompts[_USER]):
            fills[END] = single[1].removeprefix(prompts[_USER])
    system = {"role": _SYSTEM, "content": _WORDS[_SYSTEM]}
    if found := _split(render([system, q1], True), system, q1):
        first[_SYSTEM], between[_SYSTEM, _USER], _ = found
    tool = {"role": _TOOL, "content": _WORDS[_TOOL]}
    if found := _split(render([q1, r1, tool], True), q1, r1, tool):
        _, _, texts[_TOOL], prompts[_TOOL] = found
    endings = _find_endings(texts, prompts.get(_USER), names)
    return Seams(first, between, prompts, early, fills, endings)


def without_reasoning(prompt: str, tags: tuple[str, str]) -> str:
    """Return a generation prompt without the opening tag of reasoning, or the empty reasoning, with
    which it ends."""
    opening, closing = map(re.escape, tags)
    return re.sub(rf"{opening}\s*({closing}\s*)?\Z", "", prompt)


def _user(name: str) -> Message:
    return {"role": _USER, "content": _WORDS[name]}


def _answer(name: str) -> Message:
    return {"role": ASSISTANT, "content": _ANSWERS[name]}


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


def _find_endings(texts: Mapping[str, str], prompt: str | None, names: Names) -> dict[str, Ending]:
    """Find the token that ends a turn, in what follows turns.

        last turn    middle turn                       ends
        <eot>        <eot> user                        <eot>
        <a><eot>     <a><eot><user>                    <a><eot>
        <eos>        <end><user>     <end> in prompt   <eos>, <end>
                     <user>                            <user>: the model starts the next message

    Whitespace before it belongs to the turn.
    """
    runs = {role: _list_tokens(text, names) for role, text in texts.items()}
    last, middle = runs.get(END, []), runs.get(_USER, [])
    equal = _count_equal(last, middle)
    ends = {"".join(last[: equal or 1])}
    if not equal and middle and (not last or (prompt or "").lstrip().startswith(middle[0])):
        ends.add(middle[0])
    found = {}
    for role, text in texts.items():
        start = len(text) - len(text.lstrip())
        fitting = [end for end in ends if end and text.startswith(end, start)]
        if middle and not last and not fitting:
            fitting = runs[role][:1]
        stop = start + max(map(len, fitting), default=0)
        found[role] = Ending(text, start, stop) if fitting else Ending(text, 0, 0)
    return found


def _list_tokens(text: str, names: Names) -> list[str]:
    """Return the tokens that a text begins with, after whitespace, with nothing between them."""
    start = len(text) - len(text.lstrip())
    found = []
    while (stop := names.match(text, start)) > start:
        found.append(text[start:stop])
        start = stop
    return found


def _count_equal(one: list[str], other: list[str]) -> int:
    """Return how many items at the start of two lists are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
