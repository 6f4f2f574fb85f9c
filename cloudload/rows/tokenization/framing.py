"""Choose the tokens that frame each document: its bos and eos.

    requested   "<s>", 1 or None              used as it is
                "auto", bos                   add_bos_token of the files, else the template
                "auto", eos                   eos_token of the files, else the template

The files are tokenizer_config.json and special_tokens_map.json, beside tokenizer.json. A
transformers tokenizer has the same values as attributes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudload.config import choices
from cloudload.errors import TokenizerError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONFIG_NAME, MAP_NAME = "tokenizer_config.json", "special_tokens_map.json"
TokenName = str | int | None
"""A token, its ID, "auto", or None for no token."""
_TEMPLATE = "the template of tokenizer.json"
_GIVEN = "given"
_CHAT_TOKEN = re.compile(r"im_end|\beo[tm]\b|eo[tm]_id|turn|return|\|end\||message|call|user", re.I)
_END_TOKENS = (
    *("<|endoftext|>", "<|end_of_text|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "</s>"),
    *("<eos>", "<|eos|>", "<|end_of_document|>", "<EOS_TOKEN>", "[EOS]"),
)


@dataclass(frozen=True)
class NamedTokens:
    """The bos and eos that a tokenizer's files or attributes name, and where each was found."""

    bos: str | None = None
    eos: str | None = None
    adds_bos: bool | None = None
    """The value of `add_bos_token`; None if it is not set."""
    bos_source: str = ""
    eos_source: str = ""


@dataclass(frozen=True)
class FramingToken:
    """A bos or eos: its ID (None for no token), and a description for a log."""

    id: int | None
    text: str
    warning: str | None = None


def read_named_tokens(folder: Path) -> NamedTokens:
    """Read the bos and eos that the config files in a tokenizer's folder name.

    Raises `TokenizerError` if a file is damaged.
    """
    named = NamedTokens()
    for file in (folder / MAP_NAME, folder / CONFIG_NAME):
        if file.is_file():
            try:
                named = _add(named, json.loads(file.read_text("utf-8")), file.name)
            except (OSError, ValueError, RecursionError) as error:
                raise TokenizerError(
                    f"{file} cannot be read: {error}. Repair it, or remove it and pass bos and eos"
                ) from error
    return named


def list_named_tokens(tokenizer: Any) -> NamedTokens:
    """The bos and eos that a transformers tokenizer names."""
    values = {name: getattr(tokenizer, name) for name in ("bos_token", "eos_token")}
    given = getattr(tokenizer, "init_kwargs", {}).get("add_bos_token")
    texts = {name: str(value) for name, value in values.items() if value}
    return _add(NamedTokens(), {**texts, "add_bos_token": given}, type(tokenizer).__name__)


def _add(named: NamedTokens, content: Any, where: str) -> NamedTokens:
    if not isinstance(content, Mapping):
        raise ValueError(f"it contains a {type(content).__name__}, not a JSON object")
    for name, field in (("bos_token", "bos"), ("eos_token", "eos")):
        token = content.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if token and not isinstance(token, str):
            raise ValueError(f"its {name} is {token!r:.100}, not a string")
        if token:
            changes: dict[str, Any] = {field: token, f"{field}_source": f"{name} of {where}"}
            named = replace(named, **changes)
    adds_bos = content.get("add_bos_token")
    return replace(named, adds_bos=adds_bos) if isinstance(adds_bos, bool) else named


def choose_bos(backend: Tokenizer, asked: TokenName, named: NamedTokens) -> FramingToken:
    """Choose the bos, the token before each document. `asked` is the user's choice.

    Raises `TokenizerError` if the bos is not a token of the tokenizer.
    """
    if asked != choices.AUTO:
        return _take(backend, asked, "bos", _GIVEN)
    if named.adds_bos is False:
        return FramingToken(None, "no bos (add_bos_token is false)")
    if named.adds_bos and named.bos is not None:
        return _take(backend, named.bos, "bos_token", f"add_bos_token and {named.bos_source}")
    with_template = _encode_with_template(backend)
    leading = with_template.special_tokens_mask[:1] == [1]
    if not leading or (named.bos is not None and with_template.tokens[0] != named.bos):
        return FramingToken(None, f"no bos ({_TEMPLATE} adds none)")
    return FramingToken(int(with_template.ids[0]), f"bos {with_template.tokens[0]!r} ({_TEMPLATE})")


def choose_eos(
    backend: Tokenizer, asked: TokenName, named: NamedTokens, source: str
) -> FramingToken:
    """Choose the eos, the token after each document. `asked` is the user's choice.

    `source` names the tokenizer in an error. Raises `TokenizerError` if the eos is not a token of
    the tokenizer, or if `asked` is "auto" and the tokenizer defines no eos.
    """
    if asked != choices.AUTO:
        return _take(backend, asked, "eos", _GIVEN)
    if named.eos is not None:
        found = _take(backend, named.eos, "eos_token", named.eos_source)
        return replace(found, warning=_doubt(backend, named.eos, named.eos_source))
    with_template = _encode_with_template(backend)
    if with_template.special_tokens_mask[-1:] == [1]:
        token = with_template.tokens[-1]
        text = f"eos {token!r} ({_TEMPLATE})"
        return FramingToken(int(with_template.ids[-1]), text, _doubt(backend, token, _TEMPLATE))
    raise TokenizerError(
        f"{source} does not define an eos token. Pass eos='<token>', pass eos=None to join "
        "documents without an eos, or use a tokenizer folder whose tokenizer_config.json has an "
        "eos_token"
    )


def _take(backend: Tokenizer, token: TokenName, field: str, where: str) -> FramingToken:
    kind = field[:3]
    if token is None:
        return FramingToken(None, f"no {kind}")
    if isinstance(token, int):
        token_id, name = token, backend.id_to_token(token) if token < choices.MOST_IDS else None
    else:
        token_id, name = backend.token_to_id(token), token
    if token_id is None or name is None:
        raise TokenizerError(
            f"{field}={token!r} is not a token of this tokenizer. Set bos and eos to tokens of "
            "this tokenizer or to None"
        )
    return FramingToken(int(token_id), f"{kind} {name!r} ({where})")


def _doubt(backend: Tokenizer, token: str, where: str) -> str | None:
    """Return a warning if the eos `token` looks like the end of a chat turn, else None."""
    if not _CHAT_TOKEN.search(token):
        return None
    others = [each for each in _END_TOKENS if backend.token_to_id(each) is not None]
    meant = f", such as eos={others[0]!r}, which this tokenizer has" if others else ""
    return (
        f"documents end with {token!r} ({where}), which looks like the end of a chat turn. For "
        f"pretraining, set eos to the token that ends a document{meant}. To keep {token!r} without "
        f"this warning, pass eos={token!r}"
    )


def _encode_with_template(backend: Tokenizer) -> Any:
    try:
        return backend.encode("a", add_special_tokens=True)
    except Exception:  # a word-level vocabulary may have neither "a" nor an unknown token
        return backend.encode("", add_special_tokens=True)
