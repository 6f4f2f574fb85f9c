"""`Chat`: how a stream's conversations become documents, and which of their tokens are trained.

    Stream(url, chat=Chat())                             the tokenizer's own template
    Stream(url, chat=Chat("qwen3_training.jinja"))       another template
    Stream(url, chat=Chat(train="last", date="2026-01-31"))

`cloudload.rows.chat` renders conversations as these options say.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from cloudload.config import checks, choices
from cloudload.system import option_help

_GIVEN_BY_ROWS = ("messages", "tools", "documents", "add_generation_prompt")


@option_help.suggests_fields
@option_help.explained
@dataclass(frozen=True)
class Chat:
    """How conversations become documents, and which of their tokens a model learns to predict.

    Raises `ValueError` if an option is invalid.
    """

    template: str = choices.TOKENIZER
    """The chat template: `tokenizer` for the tokenizer's own, the path of a `.jinja` file, of a
    `tokenizer_config.json` or of a `chat_template.json`, or the text of a template."""
    messages_key: str = "messages"
    """The column of messages. Rows without it may have `conversations`, `prompt` and `completion`,
    or `instruction`, `input` and `output` instead."""
    tools_key: str = "tools"
    """The column of tools: a list of JSON schemas, or this list as JSON text. Rows may lack it."""
    roles: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Names of roles in the data, and the template's names for them, such as `{"bot":
    "assistant"}`. The names of ShareGPT, such as `human` and `gpt`, are known."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Arguments of the template for all rows, such as `{"enable_thinking": False}`. A row's column
    `chat_template_kwargs` overrides them."""
    date: str | None = None
    """The date that a template writes, as `YYYY-MM-DD`. By default, a template that asks for
    today's date is refused, because its documents would differ from day to day."""
    train: choices.TrainedTurns = "assistant"
    """What is trained: all `assistant` turns, the `last` of them, everything after the prompt of a
    row with a `completion`, or `all` tokens. If a row has a prompt and a completion, only the
    completion's turns are trained. A message's own `train` or `weight` overrides this option."""
    train_eot: bool = True
    """Whether the token that ends a trained turn is trained. If the template has `{% generation %}`
    blocks, these decide which of its tokens can be trained."""
    train_reasoning: bool = True
    """Whether reasoning in trained turns is trained. Without it, neither the reasoning nor its tags
    are trained."""
    reasoning_tags: tuple[str, str] = ("<think>", "</think>")
    """The text before and after reasoning in a turn, used if `train_reasoning` is False."""
    trusted: bool = False
    """Whether names of special tokens in messages, such as `<eos>`, become these tokens, as in
    transformers. By default, they stay text, so that no message can imitate a turn."""
    overlong: choices.Overlong = "drop"
    """What happens to documents of more than `max_tokens` tokens: `drop` them, `truncate` them, or
    `split` them into several documents."""
    max_tokens: int | None = None
    """Most tokens of a document. By default, `seq_len`."""

    def __post_init__(self) -> None:
        for name in ("template", "messages_key", "tools_key"):
            if not checks.as_text(f"{name} of Chat", getattr(self, name)):
                raise ValueError(f"{name} of Chat is empty. Omit it to use its default")
        checks.as_choice("train of Chat", self.train, get_args(choices.TrainedTurns))
        checks.as_choice("overlong of Chat", self.overlong, get_args(choices.Overlong))
        for name in ("train_eot", "train_reasoning", "trusted"):
            checks.as_choice(f"{name} of Chat", getattr(self, name), (True, False))
        if self.max_tokens is not None:
            count = checks.as_integer("max_tokens of Chat", self.max_tokens, 2)
            object.__setattr__(self, "max_tokens", count)
        self._settle_mappings()
        self._check_tags()
        if self.date is not None and not _is_date(self.date):
            raise ValueError(f"date of Chat is {self.date!r}. Use a date such as '2026-01-31'")
        if not self.train_eot and self.train in ("completion", "all"):
            raise ValueError(
                f"train of Chat is {self.train!r}, which trains whole texts, so train_eot=False "
                "cannot apply. Use train='assistant' or train='last', or omit train_eot"
            )

    def _settle_mappings(self) -> None:
        for name in ("roles", "template_kwargs"):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise ValueError(f"{name} of Chat is {value!r}. Use a dict whose keys are strings")
            object.__setattr__(self, name, dict(value))
        for role, meant in self.roles.items():
            checks.as_text(f"the role {role!r} in roles of Chat", meant)
        if taken := [name for name in _GIVEN_BY_ROWS if name in self.template_kwargs]:
            raise ValueError(
                f"template_kwargs of Chat has {taken[0]!r}, which comes from the rows. Remove it"
            )
        try:
            json.dumps(self.template_kwargs, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"template_kwargs of Chat cannot be written to a state: {error}. Use values of "
                "JSON types"
            ) from None

    def _check_tags(self) -> None:
        tags = self.reasoning_tags
        if (
            not isinstance(tags, tuple | list)
            or len(tags) != 2
            or not all(isinstance(tag, str) and tag for tag in tags)
        ):
            raise ValueError(
                f"reasoning_tags of Chat is {tags!r}. Use two strings, such as ('<think>', "
                "'</think>')"
            )
        object.__setattr__(self, "reasoning_tags", tuple(tags))


def _is_date(value: Any) -> bool:
    try:
        return f"{datetime.date.fromisoformat(value)}" == str(value)
    except (TypeError, ValueError):
        return False


def as_chat(name: str, value: Any) -> Chat:
    """Return the options of conversations. Raises `ValueError` for another value."""
    if not isinstance(value, Chat):
        raise ValueError(f"{name} is {value!r}. Use Chat(), or None")
    return value
