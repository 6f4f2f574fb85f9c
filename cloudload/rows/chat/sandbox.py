"""Run a chat template as transformers does: the same Jinja settings, filters and functions.

    {% generation %}…{% endgeneration %}    what a model generates; its position is recorded

Templates run in Jinja's sandbox, because they are part of downloaded models. The date is fixed,
because the same conversation must become the same document on every day.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from cloudload.rows.chat.conversation import ChatError, NoDateError

_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


class CompiledTemplate:
    """A compiled chat template. Compile it once per process."""

    def __init__(self, text: str, name: str, tokens: Mapping[str, Any], date: str | None) -> None:
        """`name` is for errors, `tokens` are the special tokens that the template may write.

        Raises `ChatError` if the text is not a valid template.
        """
        self.name = name
        self.has_generation = _GENERATION.search(text) is not None
        self._tokens = dict(tokens)
        self._blocks: list[tuple[int, str]] = []
        self._size = 0
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _clock(name, date)
        environment.globals[_Generation.RECORD] = self._record
        self._text, self._environment = text, environment
        try:
            self._template = environment.from_string(text)
        except TemplateSyntaxError as error:
            raise ChatError(
                f"the chat template {name} is not valid Jinja: {error} (line {error.lineno})"
            ) from None

    def list_variables(self) -> set[str]:
        """The names that the template uses and does not define."""
        return meta.find_undeclared_variables(self._environment.parse(self._text))

    def list_constants(self) -> set[str]:
        """The texts that the template may write and that do not come from a row."""
        tree = self._environment.parse(self._text)
        texts = {each.data for each in tree.find_all(nodes.TemplateData)}
        texts |= {each.value for each in tree.find_all(nodes.Const) if isinstance(each.value, str)}
        return texts | {each for each in self._tokens.values() if isinstance(each, str)}

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        prompts: bool = False,
    ) -> str:
        """Return the text of a conversation; with `prompts`, followed by a generation prompt.

        Raises `ChatError` if the template raises an error.
        """
        return self.render_blocks(messages, tools, kwargs, prompts=prompts)[0]

    def render_blocks(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        prompts: bool = False,
    ) -> tuple[str, list[tuple[int, int]]]:
        """Also return the ranges of characters that `{% generation %}` blocks wrote."""
        values = {
            **self._tokens,
            **(kwargs or {}),
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": prompts,
        }
        self._blocks, self._size = [], 0
        parts = []
        try:
            for part in self._template.generate(values):
                parts.append(part)
                self._size += len(part)
        except ChatError:
            raise
        except Exception as error:  # templates are code, which may raise any error
            raise ChatError(
                f"the chat template {self.name} refuses the conversation: {_describe(error)}"
            ) from error
        text = "".join(parts)
        for start, written in self._blocks:
            if not text.startswith(written, start):
                raise ChatError(
                    f"the chat template {self.name} moves the text of a {{% generation %}} block, "
                    "so its position is unknown. Do not use the block in a macro or in a filter"
                )
        return text, [(start, start + len(written)) for start, written in self._blocks if written]

    def _record(self, caller: Callable[[], str]) -> str:
        written = caller()
        self._blocks.append((self._size, str(written)))
        return written


class _Generation(Extension):
    """The tag `generation`, which passes its text to a global function of the environment."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it
    RECORD = "_record_generation"

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = nodes.Call(nodes.Name(self.RECORD, "load"), [], [], None, None)
        return nodes.CallBlock(call, [], [], body).set_lineno(line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateError(str(message))


def _clock(name: str, date: str | None) -> Callable[[str], str]:
    def strftime_now(format: str) -> str:
        if date is None:
            raise NoDateError(
                f"the chat template {name} writes today's date, so documents would differ from "
                "day to day. Pass Chat(date='YYYY-MM-DD'), or the template's own argument, such "
                "as template_kwargs={'date_string': '26 Jul 2024'} for Llama 3"
            )
        return datetime.datetime.fromisoformat(date).strftime(format)

    return strftime_now


def _describe(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text if isinstance(error, TemplateError) else f"{type(error).__name__}: {text}"
