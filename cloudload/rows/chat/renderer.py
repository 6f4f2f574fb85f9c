"""Render a conversation as text, with the characters that are trained.

    sample ─► read_conversation ─► template ─► text
                                      │
              {% generation %} blocks, or find_turns ─► trained, without reasoning if asked
                                      │
              a second rendering, only if users wrote names of special tokens ─► literal

Whatever cannot be proved is an error, which names the message and what to do about it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

from cloudload.config import Chat, Text
from cloudload.rows.chat.chat_template import ChatTemplate, read_template
from cloudload.rows.chat.conversation import (
    ASSISTANT,
    ChatError,
    Conversation,
    Message,
    NoDateError,
    UnknownTurnError,
    check_complete,
    read_conversation,
)
from cloudload.rows.chat.literals import (
    Names,
    Range,
    change_texts,
    choose_private,
    find_literal,
    without,
)
from cloudload.rows.chat.sandbox import CompiledTemplate
from cloudload.rows.chat.seams import Seams, learn_seams
from cloudload.rows.chat.split_names import SplitNames
from cloudload.rows.chat.tool_calls import (
    PROBE_TOOLS,
    convert_arguments,
    has_calls,
    learn_form,
)
from cloudload.rows.chat.turn_ranges import RenderedConversation, find_start, find_turns

_USE_BLOCKS = "use a template with {% generation %} blocks around what the model generates"
# rows may have arguments of their own, such as dates
_MOST_SEAMS = 64
_ANSWERS: list[Message] = [
    {"role": ASSISTANT, "content": "Answer"},
    {"role": ASSISTANT, "content": "Answer", "reasoning_content": "Think"},
    {"role": ASSISTANT, "content": "<think>\nThink\n</think>\n\nAnswer"},
]


def load_template(chat: Chat, tokenizer: Any) -> ChatTemplate:
    """Load a chat template as plain data.

    `tokenizer` is as for `load_tokenizer`. Raises `ChatError` if there is no template, if it is not
    valid, or if it does not show what the model generates, and `TokenizerError` if the tokenizer
    cannot be loaded.
    """
    template = read_template(chat, tokenizer)
    if chat.train in ("assistant", "last"):
        _check_template(template)
    return template


def _check_template(template: ChatTemplate) -> None:
    """Raise `ChatError` if no conversation of two messages can be trained with a template."""
    renderer = Renderer(dataclasses.replace(template, chat=_without_keys(template.chat)))
    errors = []
    for answer in _ANSWERS:
        try:
            renderer.render({"messages": [{"role": "user", "content": "Ask"}, answer]})
        except UnknownTurnError as error:
            errors.append(error)
        except NoDateError:
            raise
        except ChatError:  # the template may need more messages, or tools
            return
    if len(errors) == len(_ANSWERS):
        raise errors[0]


def _without_keys(chat: Chat) -> Chat:
    return dataclasses.replace(chat, messages_key="messages")


class Renderer:
    """Renders conversations with one template. Create it once per process."""

    def __init__(self, template: ChatTemplate) -> None:
        """Raises `ChatError` if the template is not valid."""
        self._template = template
        self._chat = template.chat
        self._special = Names(template.special_names)
        self._added = Names(template.added_names)
        self._seams: dict[tuple[CompiledTemplate, str], Seams] = {}
        self._forms: dict[CompiledTemplate, type | None] = {}
        self._compile = functools.cache(template.compile)
        self._find_split_names = functools.cache(self._list_split_names)

    def render(self, sample: Mapping[str, Any]) -> Text | None:
        """Return the document of a sample; None if none of its characters is trained.

        The names of special tokens in the text stand for these tokens, except in `literal` ranges.
        Raises `ChatError` if the sample is not a valid conversation, if the template refuses it, or
        if it is unknown which characters of it are trained.
        """
        conversation = read_conversation(sample, self._chat)
        if not conversation.trained:
            return None
        template = self._template
        compiled = self._compile(template.tool_text if conversation.tools else template.text)
        if has_calls(conversation.messages):
            messages = convert_arguments(conversation.messages, self._learn_form(compiled))
            conversation = dataclasses.replace(conversation, messages=messages)
        kwargs = {**self._chat.template_kwargs, **conversation.kwargs}
        text, blocks = compiled.render_blocks(conversation.messages, conversation.tools, kwargs)
        check_complete(text, conversation, template.name)
        literal = self._find_literal(compiled, conversation, text)
        if self._chat.train == "all":
            return Text(text, special_tokens=True, literal=literal) if text else None
        if compiled.has_generation and self._chat.train != "completion":
            trained = self._choose_blocks(text, conversation, blocks, literal)
        else:
            trained = self._find_ranges(compiled, conversation, kwargs, text, literal)
        trained = self._without_reasoning(text, trained)
        self._check(text, trained)
        if not trained:
            return None
        return Text(text, special_tokens=True, trained=trained, literal=literal)

    def _find_literal(
        self, compiled: CompiledTemplate, conversation: Conversation, text: str
    ) -> list[Range]:
        """Return the ranges of names of special tokens that the row's own texts contain."""
        if self._chat.trusted:
            return []
        row = [conversation.messages, conversation.tools, conversation.kwargs]

        def render(changed: list[Any]) -> str:
            messages, tools, kwargs = changed
            return compiled.render(messages, tools, {**self._chat.template_kwargs, **kwargs})

        literal = list[Range]()
        if self._special.may_be_in(row):
            private = choose_private(text, 1)
            breaks = functools.partial(self._special.breaks, private=private)
            broken = render(change_texts(row, breaks, breaks))
            literal = find_literal(text, broken, private, self._special)
        split_names = self._find_split_names(compiled)
        if split_names.may_be_in(row):
            split_names.check(text, row, render, literal)
        return literal

    def _list_split_names(self, compiled: CompiledTemplate) -> SplitNames:
        given = [each for each in self._chat.template_kwargs.values() if isinstance(each, str)]
        return SplitNames(self._template.special_names, {*compiled.list_constants(), *given})

    def _find_ranges(
        self,
        compiled: CompiledTemplate,
        conversation: Conversation,
        kwargs: Mapping[str, Any],
        text: str,
        literal: list[Range],
    ) -> list[Range]:
        """Return what is trained of the text of a template without `{% generation %}` blocks."""
        render = functools.partial(_try_rendering, compiled, conversation.tools, kwargs)
        seams = self._learn_seams(compiled, kwargs)
        endings = seams.endings.values()
        if self._chat.train_eot and endings and not any(each.stop for each in endings):
            raise UnknownTurnError(
                f"the chat template {self._template.name} ends turns with "
                f"{next(iter(endings)).text!r:.60}, which has no token of the tokenizer, so "
                "a model would not learn to stop. Pass Chat(train_eot=False), or another template"
            )
        rendered = RenderedConversation(
            text=text,
            messages=conversation.messages,
            render=render,
            seams=seams,
            names=self._added,
            tags=self._chat.reasoning_tags,
            literal=literal,
        )
        try:
            if self._chat.train == "completion":
                return [(find_start(rendered, conversation.num_prompt), len(text))]
            turns = find_turns(rendered, conversation.trained)
        except UnknownTurnError as error:
            raise UnknownTurnError(
                f"{error}, or {_USE_BLOCKS} (the chat template is {self._template.name})"
            ) from None
        ranges = [(turn.start, turn.stop if self._chat.train_eot else turn.eot) for turn in turns]
        return [(start, stop) for start, stop in ranges if start < stop]

    def _learn_form(self, compiled: CompiledTemplate) -> type | None:
        if compiled not in self._forms:
            kwargs = self._chat.template_kwargs
            render = functools.partial(_try_rendering, compiled, PROBE_TOOLS, kwargs)
            self._forms[compiled] = learn_form(render)
        return self._forms[compiled]

    def _learn_seams(self, compiled: CompiledTemplate, kwargs: Mapping[str, Any]) -> Seams:
        key = compiled, json.dumps(kwargs, sort_keys=True)
        if key not in self._seams:
            if len(self._seams) >= _MOST_SEAMS:
                self._seams.clear()
            render = functools.partial(_try_rendering, compiled, None, kwargs)
            self._seams[key] = learn_seams(render, self._added, self._chat.reasoning_tags)
        return self._seams[key]

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
            raise UnknownTurnError(
                f"the chat template {self._template.name} marks all of its text as generated, so "
                f"prompts would be trained, too. Instead, {_USE_BLOCKS}, or pass Chat(train='all')"
            )


def _try_rendering(
    compiled: CompiledTemplate,
    tools: list[Any] | None,
    kwargs: Mapping[str, Any],
    messages: list[Message],
    prompts: bool,
) -> str | None:
    """Render messages, or return None if the template raises."""
    try:
        return compiled.render(messages, tools, kwargs, prompts=prompts)
    except ChatError:
        return None
