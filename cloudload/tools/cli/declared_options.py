"""Options of a command from the declarations of what it calls: their names, types, and help.

    seed: int = 17                       ─► --seed N              seed of the shuffle (default: 17)
    shuffle: bool = True                 ─► --shuffle, --no-shuffle
    on_error: Literal["raise", "skip"]   ─► --on-error {raise,skip}
    fields: Sequence[str]                ─► --fields NAME,...
    eos: str | int | None = "auto"       ─► --eos TOKEN           5 is an ID, and none is None
    chat: Chat | None = None             ─► --chat x.jinja,train=last     fields of Chat
    dataset: str                         ─► DATASET

A declaration is an argument of a function, with its entry under `Args`, or a field of a config,
with its docstring. The help is its first sentence, and the one about the default. The namespace of
a command has only the options that the user gives, so the callee applies its own defaults.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from os import PathLike
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from cloudload.system import option_help
from cloudload.tools.cli import command

T = TypeVar("T")

_METAVARS = {
    **dict.fromkeys(("tokenizer", "split", "dtype"), "NAME"),
    **dict.fromkeys(("bos", "eos", "row_bos", "expect_bos", "expect_eos"), "TOKEN"),
    **dict.fromkeys(("text_key", "id_key", "tokens_key", "by"), "FIELD"),
    "labels_key": "FIELD",
    "chat": "TEMPLATE,NAME=VALUE,...",
    "cache_limit": "SIZE",
    "exchange_timeout_s": "SECONDS",
    "keep": "FIELD[:ENCODING],...",
    "splits": "NAME=SHARE,...",
    "worker": "I/N",
}
_LONGEST_CHOICES = 30
_OF_THE_LOADER = "as for `CloudLoader`"
_TOKENIZER = "name, folder or tokenizer.json of the tokenizer"
_CHAT = (
    "how conversations become documents: tokenizer, or the file of a chat template, and any other "
    "options of Chat, such as tokenizer,train=last,max_tokens=4096"
)
_NAMED = re.compile(r"[a-z_]+=")


def add_declared(
    add: Callable[..., Any],
    callee: Callable[..., Any],
    names: str,
    **changes: Mapping[str, Any],
) -> None:
    """Add options for some arguments of a function, or fields of a config, given their names.

    `add` is the `add_argument` of a parser or group. `changes` has arguments of `add_argument` for
    names whose option differs from the declaration. Among them, `flags` are its own names.
    """
    parameters, is_config = inspect.signature(callee).parameters, isinstance(callee, type)
    annotations = {name: parameters[name].annotation for name in names.split()}
    docs, hints = _read_docs(callee), _resolve(annotations, callee.__module__)
    for name in annotations:
        default, change = parameters[name].default, dict(changes.get(name, {}))
        settings = {
            **_settings_of(name, hints[name], default),
            "help": _explain(docs.get(name, ""), default, parameters),
        }
        if default is not inspect.Parameter.empty or is_config:
            flags = change.pop("flags", (f"--{name.replace('_', '-')}",))
            add(*flags, dest=name, **{"default": argparse.SUPPRESS, **settings, **change})
        else:
            add(name, **{**settings, "metavar": name.upper(), **change})


def list_given(options: argparse.Namespace, callee: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments of a function, or fields of a config, that the user gave, by name."""
    known = inspect.signature(callee).parameters
    return {name: value for name, value in vars(options).items() if name in known}


def read_functions(arguments: dict[str, Any]) -> dict[str, Any]:
    """Replace the names of functions, such as `module:function`, by the functions."""
    functions = ("transform", "encode", "row_hook")
    names = [name for name in functions if isinstance(arguments.get(name), str)]
    if not names:
        return arguments
    from cloudload.tools.provenance.state_run import import_function  # imports torch

    return {**arguments, **{name: import_function(name, arguments[name]) for name in names}}


def read_configs(arguments: dict[str, Any]) -> dict[str, Any]:
    """Replace the options of `chat` and `fim`, as text or as mappings, by a `Chat` and a `Fim`."""
    from cloudload.config import Chat, Fim

    kinds: dict[str, type[Any]] = {"chat": Chat, "fim": Fim}
    found = {name: arguments[name] for name in kinds if name in arguments}
    return {**arguments, **{name: _read_config(name, kinds[name], found[name]) for name in found}}


def _read_config(name: str, kind: type[Any], given: Any) -> Any:
    try:
        if isinstance(given, str):
            return parse_fields(kind, given)
        if isinstance(given, Mapping):
            # YAML parses a date as one
            return kind(
                **{key: f"{each}" if key == "date" else each for key, each in given.items()}
            )
    except (TypeError, argparse.ArgumentTypeError) as error:
        raise ValueError(f"{name} is {given!r}: {error}") from None
    return given


def parse_fields(kind: type[T], text: str) -> T:
    """Parse `NAME=VALUE,...` as fields of a config. The first field needs no name.

    Errors are those of argparse.
    """
    first, *parts = re.split(f",(?={_NAMED.pattern})", text)
    names = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    named = first if _NAMED.match(first) else f"{names[0]}={first}"
    pairs = [each.split("=", 1) for each in (named, *parts)]
    hints, known = get_type_hints(kind), inspect.signature(kind).parameters
    try:
        return kind(
            **{
                name: _parse_field(name, hints[name], known[name].default, value)
                if name in names
                else value
                for name, value in pairs
            }
        )
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parse_field(name: str, hint: Any, default: Any, value: str) -> Any:
    # a switch, or one of several choices, has no parser
    parse = _settings_of(name, hint, default).get("type", parse_yaml)
    try:
        return parse(value)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{name}: {error}") from None


def _explain(text: str, default: Any, known: Iterable[str]) -> str:
    """Return the help of an option: the first sentence of its text, and its default.

    `known` are the names of the arguments beside it, which are shown as options.
    """
    first, *more = re.split(r"(?<=\.) (?=[A-Z`])", text)
    kept = [first, *(each for each in more if re.match(r"By default|None ", each))]
    shown = " ".join(kept).removesuffix(".")
    for name in known:
        if "_" in name:
            shown = shown.replace(f"`{name}`", f"--{name.replace('_', '-')}")
    shown = re.sub(r"^([A-Z])(?=[a-z ])", lambda found: found[1].lower(), shown.replace("`", ""))
    shown = re.sub(r"\bNone\b", "none", shown).removeprefix("whether to ").replace("%", "%%")
    is_plain = isinstance(default, str | int | float) and default is not False
    if is_plain and "default" not in shown:
        shown += f" (default: {'yes' if default is True else default})"
    return shown


def _resolve(annotations: Mapping[str, Any], module: str) -> dict[str, Any]:
    """Return the types that annotations of a module name."""
    return get_type_hints(type("", (), {"__annotations__": annotations}), vars(sys.modules[module]))


def _read_docs(callee: Callable[..., Any]) -> dict[str, str]:
    from cloudload.config import DeliveryConfig, RowsConfig

    docs = option_help.argument_docs(callee)
    own = option_help.field_docs(RowsConfig) | option_help.field_docs(DeliveryConfig)
    own["tokenizer"] = _TOKENIZER
    found = {
        name: own.get(name, text) if text.startswith(_OF_THE_LOADER) else text
        for name, text in docs.items()
    }
    return {**found, "chat": _CHAT}


def _settings_of(name: str, hint: Any, default: Any) -> dict[str, Any]:
    """Return arguments of `add_argument` for values of a type."""
    types = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = {get_origin(each) or each for each in types} - {NoneType}
    if kinds == {bool}:
        is_on = default is True
        return {"action": argparse.BooleanOptionalAction if is_on else "store_true"}
    if kinds == {Literal}:
        choices = [value for each in types for value in get_args(each)]
        is_long = len(",".join(choices)) > _LONGEST_CHOICES
        return {"choices": choices, **({"metavar": "NAME"} if is_long else {})}
    metavar, parse = _parser_of(name, kinds, types)
    settings: dict[str, Any] = {"metavar": _METAVARS.get(name, metavar), "type": parse}
    if parse in (_split, _split_numbers):
        return {**settings, "action": "extend"}
    # a text that means none must not be a name that the user may have chosen
    if NoneType in types and (default is not None or kinds & {int, float}):
        settings["type"] = lambda text: None if text == "none" else parse(text)
    return settings


def _parser_of(name: str, kinds: set[Any], types: Any) -> tuple[str, Callable[[str], Any]]:
    """Return how an option's value is called, and its parser."""
    if name.endswith("_bytes"):
        return "SIZE", _parse_size
    if Callable in kinds:
        return "MODULE:FUNCTION", str
    if name.endswith("rate"):
        return "SHARE", parse_yaml
    if kinds & {int, float}:
        is_mixed = kinds & {str, Literal}
        is_whole = float not in kinds
        parse = command.whole_number(0) if is_whole else command.positive_number
        return "N", _integer_or_text if is_mixed else parse
    if PathLike in kinds:
        return "PATH", str
    if configs := [each for each in kinds if isinstance(each, type) and is_dataclass(each)]:
        return "NAME=VALUE,...", partial(parse_fields, configs[0])
    if Mapping in kinds:
        return "YAML", parse_yaml
    if any(get_args(each)[:1] == (str,) for each in types):
        return "NAME,...", _split
    if any(get_args(each)[:1] == (int,) for each in types):
        return "ID,...", _split_numbers
    is_plain = kinds <= {str, Any}
    return ("TEXT", str) if is_plain else ("YAML", parse_yaml)


def _split(text: str) -> list[str]:
    return [] if text == "none" else [each.strip() for each in text.split(",")]


def _split_numbers(text: str) -> list[int]:
    return [command.whole_number(0)(each) for each in _split(text)]


def _integer_or_text(text: str) -> int | str:
    return int(text) if text.isdecimal() and text.isascii() else text


def _parse_size(text: str) -> int:
    from cloudload.config import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_yaml(text: str) -> Any:
    """Parse YAML, such as `[[0, {web: 0.6, code: 0.4}]]`. Errors are those of argparse."""
    import yaml

    from cloudload.run import explain_yaml_error

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(
            f"{explain_yaml_error(error)}. Quote or correct the value, {text!r}"
        ) from None
