"""Render a conversation as text, with the characters that are trained.

sample ─► read_conversation ─► template ─► text
                                  │
          {% generation %} blocks, or find_turns ─► trained, without reasoning if asked
                                  │
          a second rendering, only if users wrote names of special tokens ─► literal
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from cloudload.config import Text
from cloudload.rows.chat.chat_template import ChatTemplate
from cloudload.rows.chat.conversation import ASSISTANT, ChatError, Conversation, read_conversation
from cloudload.rows.chat.literals import (
    Names,
    Range,
    break_names,
    choose_private,
    find_literal,
    without,
)
from cloudload.rows.chat.sandbox import CompiledTemplate

_USE_BLOCKS = "use a template with {% generation %} blocks around what the model generates"


class Renderer:
    """Renders conversations with one template. Create it once per process."""

    def __init__(self, template: ChatTemplate) -> None:
        """Raises `ChatError` if the template is not valid."""
        self._template = template
        self._chat = template.chat
        self._special = Names(template.special_names)
        self._added = Names(template.added_names)
        self._compile = functools.cache(lambda has_tools: template.compile(has_tools=has_tools))

    def render(self, sample: Mapping[str, Any]) -> Text | None:
        """Return the document of a sample; None if none of its characters is trained.

        The names of special tokens in the text stand for these tokens, except in `literal` ranges.
        Raises `ChatError` if the sample is not a valid conversation, if the template refuses it, or
        if it is unknown which characters of it are trained.
        """
        conversation = read_conversation(sample, self._chat)
        if not conversation.trained:
            return None
        compiled: CompiledTemplate = self._compile(bool(conversation.tools))
        kwargs = {**self._chat.template_kwargs, **conversation.kwargs}
        text, blocks = compiled.render_blocks(conversation.messages, conversation.tools, kwargs)
        literal = self._find_literal(compiled, conversation, text)
        if self._chat.train == "all":
            return Text(text, special_tokens=True, literal=literal) if text else None
        if not compiled.has_generation:
            raise ChatError(
                f"the chat template {self._template.name} does not say what is trained. Instead, "
                f"{_USE_BLOCKS}"
            )
        trained = self._choose_blocks(text, conversation, blocks, literal)
        trained = self._without_reasoning(text, trained)
        self._check(text, trained)
        if not trained:
            return None
        return Text(text, special_tokens=True, trained=trained, literal=literal)

    def _find_literal(
        self, compiled: CompiledTemplate, conversation: Conversation, text: str
    ) -> list[Range]:
        """Return the ranges of names of special tokens that the row's own texts contain."""
        if self._chat.trusted or not self._special.are_in(text):
            return []
        private = choose_private(text, 1)
        if private is None:
            return []
        row = [conversation.messages, conversation.tools, conversation.kwargs]
        broken = break_names(row, self._special, private)
        if broken is row:
            return []
        messages, tools, kwargs = broken
        again = compiled.render(messages, tools, {**self._chat.template_kwargs, **kwargs})
        return find_literal(text, again, private, self._special)

    def _choose_blocks(
        self,
        text: str,
        conversation: Conversation,
        blocks: list[Range],
        literal: list[Range],
    ) -> list[Range]:
        """Return what is trained of the text of a template with `{% generation %}` blocks."""
        joined: list[Range] = []
        for start, stop in blocks:
            touches = bool(joined) and joined[-1][1] == start
            joined.append((joined.pop()[0] if touches else start, stop))
        turns = [
            number
            for number, message in enumerate(conversation.messages)
            if message["role"] == ASSISTANT
        ]
        if tuple(turns) != conversation.trained:
            if len(joined) != len(turns):
                raise ChatError(
                    f"the chat template {self._template.name} has {len(joined)} "
                    f"{{% generation %}} blocks for {len(turns)} assistant messages, so it is "
                    "unknown which of them to train. Train all of them, or use another template"
                )
            chosen = zip(turns, joined, strict=True)
            joined = [block for number, block in chosen if number in conversation.trained]
        if self._chat.train_eot:
            return joined
        return [(start, self._before_eot(text, start, stop, literal)) for start, stop in joined]

    def _before_eot(self, text: str, start: int, stop: int, literal: list[Range]) -> int:
        end = start + len(text[start:stop].rstrip())
        found = self._added.match_end(text, start, end)
        is_typed = any(low <= found < high for low, high in literal)
        return stop if found == end or is_typed else found

    def _without_reasoning(self, text: str, trained: list[Range]) -> list[Range]:
        if self._chat.train_reasoning:
            return trained
        opening, closing = self._chat.reasoning_tags
        reasoning = []
        for start, stop in trained:
            end = text.find(closing, start, stop)
            begin = text.find(opening, start, stop)
            # a generation prompt may end with the opening tag
            if end >= 0:
                reasoning.append((begin if 0 <= begin < end else start, end + len(closing)))
            elif begin >= 0:
                reasoning.append((begin, stop))
        return without(trained, reasoning)

    def _check(self, text: str, trained: list[Range]) -> None:
        """Raise `ChatError` if all of a text is trained, though only turns should be."""
        if (
            trained
            and not "".join(
                text[start:stop] for start, stop in without([(0, len(text))], trained)
            ).strip()
        ):
            raise ChatError(
                f"the chat template {self._template.name} marks all of its text as generated, so "
                f"prompts would be trained, too. Instead, {_USE_BLOCKS}, or pass Chat(train='all')"
            )
