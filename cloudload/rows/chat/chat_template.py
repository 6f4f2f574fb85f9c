"""Find a chat template, and what it needs of the tokenizer: plain data for workers.

    Chat.template        tokenizer                    the tokenizer's own template
                         a path                       a template, or a JSON file that has one
                         text with {% or {{           the template itself

    a tokenizer's own    chat_template.jinja          else `chat_template` of tokenizer_config.json,
                         additional_chat_templates/   else chat_template.json

A tokenizer may have several templates by name. Rows with tools use `tool_use` if there is one, and
other rows use `default`, as in transformers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudload.config import Chat, choices
from cloudload.rows.chat.conversation import ChatError
from cloudload.rows.chat.sandbox import CompiledTemplate
from cloudload.rows.tokenization.framing import CONFIG_NAME, MAP_NAME
from cloudload.rows.tokenization.tokenizer import find_tokenizer

# version of the rules that turn a conversation into a document: increment it when one changes
RULES = 1
_DEFAULT, _TOOL_USE = "default", "tool_use"
_GIVEN = "given as text"
_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_TOKEN_NAMES = (*(f"{name}_token" for name in _TOKENS), "additional_special_tokens")
_USE_ANOTHER = "Pass Chat(template=PATH) with a .jinja file"


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template and the options of `Chat`, as plain data that is sent to workers."""

    name: str
    """For messages."""
    text: str
    tool_text: str
    """The template for rows with tools. It is the same as `text` unless the tokenizer has two."""
    tokens: Mapping[str, Any]
    """The texts of special tokens by the name that the template uses, such as `bos_token`."""
    special_names: tuple[str, ...]
    """The texts of all special tokens, ascending."""
    added_names: tuple[str, ...]
    """The texts of all added tokens, special or not, ascending."""
    chat: Chat

    @property
    def identity(self) -> str:
        """A name, and 12 hex digits of a hash of all that determines documents, except the most
        tokens of a document. The name does not change if a tokenizer is moved."""
        options = dataclasses.asdict(self.chat)
        parts = [RULES, self.text, self.tool_text, self.tokens, self.special_names]
        parts += [self.added_names, {**options, "template": "", "max_tokens": None}]
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
        name = choices.TOKENIZER if self.chat.template == choices.TOKENIZER else self.name
        name = "template" if name == _GIVEN else name
        return f"{name}#{digest.hexdigest()[:12]}"

    def compile(self, text: str) -> CompiledTemplate:
        """Compile `text` or `tool_text`."""
        return CompiledTemplate(text, self.name, self.tokens, self.chat.date)


def read_template(chat: Chat, tokenizer: Any) -> ChatTemplate:
    """Read a chat template, and compile it as a check.

    `tokenizer` is as for `load_tokenizer`. Raises `ChatError` if there is no template, or if it
    cannot be read or is not valid, and `TokenizerError` if the tokenizer cannot be loaded.
    """
    found = find_tokenizer(tokenizer)
    folder = found.file.parent if found.file else None
    is_path = isinstance(found.source, str | os.PathLike)
    name = _name_path(Path(found.source)) if is_path else type(found.source).__name__
    if chat.template == choices.TOKENIZER:
        templates = (
            _read_folder(folder)
            if folder
            else _name_templates(getattr(found.loaded, "chat_template", None))
        )
        if not templates:
            raise ChatError(f"the tokenizer {name} has no chat template. {_USE_ANOTHER}")
    else:
        name, templates = _read_given(chat.template)
    text = _choose(name, templates)
    tokens = _read_tokens(folder, found.loaded)
    added = json.loads(found.text).get("added_tokens") or []
    template = ChatTemplate(
        name=name,
        text=text,
        tool_text=templates.get(_TOOL_USE, text),
        tokens=tokens or {},
        special_names=tuple(sorted(each["content"] for each in added if each.get("special"))),
        added_names=tuple(sorted(each["content"] for each in added)),
        chat=chat,
    )
    compiled = [template.compile(each) for each in dict.fromkeys((text, template.tool_text))]
    if tokens is None:
        _check_tokens(template, compiled)
    return template


def _name_path(path: Path) -> str:
    return path.absolute().parent.name if path.suffix == ".json" else path.name


def _choose(name: str, templates: Mapping[str, str]) -> str:
    if _DEFAULT in templates:
        return templates[_DEFAULT]
    if len(templates) == 1:
        return next(iter(templates.values()))
    raise ChatError(
        f"{name} has the chat templates {', '.join(sorted(templates))}, and none is called "
        f"'{_DEFAULT}'. {_USE_ANOTHER}"
    )


def _name_templates(value: Any) -> dict[str, str]:
    """Return templates by name, of a `chat_template` as text, or as a list or dict of texts."""
    if isinstance(value, str):
        return {_DEFAULT: value}
    if isinstance(value, list):
        value = {each["name"]: each["template"] for each in value}
    return dict(value or {})


def _read_folder(folder: Path) -> dict[str, str]:
    """Return the templates in a tokenizer's folder, by name."""
    main = folder / "chat_template.jinja"
    more = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    if main.is_file() or more:
        files = ([(_DEFAULT, main)] if main.is_file() else []) + [
            (each.stem, each) for each in more
        ]
        return {name: _read(file) for name, file in files}
    for name in (CONFIG_NAME, "chat_template.json"):
        if (folder / name).is_file() and (found := _read_json(folder / name)):
            return found
    return {}


def _read_given(template: str) -> tuple[str, dict[str, str]]:
    """Return the name and the templates of a `Chat.template` that is a path or text."""
    if "{%" in template or "{{" in template:
        return _GIVEN, {_DEFAULT: template}
    path = Path(template).expanduser()
    if not path.is_file():
        raise ChatError(
            f"template of Chat is {template!r}, which is neither a file nor the text of a "
            "template. Use 'tokenizer', a path, or text that contains '{%' or '{{'"
        )
    if path.suffix != ".json":
        return path.stem, {_DEFAULT: _read(path)}
    if templates := _read_json(path):
        return path.stem, templates
    raise ChatError(f"{path} has no chat_template. {_USE_ANOTHER}")


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ChatError(f"the chat template {path} cannot be read: {error}") from error


def _read_json(path: Path) -> dict[str, str]:
    try:
        return _name_templates(json.loads(_read(path)).get("chat_template"))
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ChatError(f"{path} has no valid chat_template: {error}. {_USE_ANOTHER}") from error


def _read_tokens(folder: Path | None, loaded: Any) -> dict[str, Any] | None:
    """Return the special tokens that the tokenizer names, or None if nothing names any."""
    if folder is None:
        return None if loaded is None else _plain_tokens(loaded.special_tokens_map)
    files = [folder / name for name in (MAP_NAME, CONFIG_NAME) if (folder / name).is_file()]
    found: dict[str, Any] = {}
    for file in files:
        found |= _plain_tokens(json.loads(_read(file)))
    return found if files else None


def _plain_tokens(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return special tokens as text. A file has some of them as objects with more settings."""
    named = {name: content[name] for name in _TOKEN_NAMES if content.get(name)}
    return {
        name: [_plain(each) for each in value] if isinstance(value, list) else _plain(value)
        for name, value in named.items()
    }


def _plain(token: Any) -> str:
    return token["content"] if isinstance(token, dict) else str(token)


def _check_tokens(template: ChatTemplate, compiled: list[CompiledTemplate]) -> None:
    """Raise `ChatError` if the template writes a token that nothing names, which would be empty."""
    names = set().union(*(each.list_variables() for each in compiled))
    missing = [
        name for name in _TOKEN_NAMES if name in names - template.chat.template_kwargs.keys()
    ]
    if missing:
        given = ", ".join(f"'{name}': '…'" for name in missing)
        raise ChatError(
            f"the chat template {template.name} uses {', '.join(missing)}, but the tokenizer has "
            "no tokenizer_config.json that names them. Pass the tokenizer's folder, or "
            f"Chat(template_kwargs={{{given}}})"
        )
