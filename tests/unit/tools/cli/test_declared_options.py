"""Options come from declarations: a flag has the name, type, default and help of its argument."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Literal

import pytest

from cloudload.config import Chat, DeliveryConfig, Fim, RowsConfig
from cloudload.tools.cli import make_parser
from cloudload.tools.cli.command import CommandParser
from cloudload.tools.cli.declared_options import (
    add_declared,
    list_given,
    parse_fields,
    read_configs,
    read_functions,
)

NOT_FLAGS = {"streams", "retry", "dp_rank", "dp_world_size", "has_mesh"}


def cook(
    dish: str,
    *,
    num_eggs: int = 2,
    salt: bool = False,
    stir: bool = True,
    heat: Literal["low", "high"] = "low",
    herbs: Sequence[str] = (),
    oil: str | int | None = "auto",
    wine: str | None = None,
    max_bytes: int = 5,
    plan: Sequence[tuple[int, str]] = (),
    clean: Callable[[str], str] | None = None,
) -> None:
    """Cook a dish.

    Args:
        dish: the name of the dish.
        num_eggs: the number of eggs. More eggs than
            guests are wasted.
        salt: whether to add salt.
        stir: whether to stir.
        heat: the heat, which `num_eggs` does not change.
        herbs: names of herbs.
        oil: the oil, or None. By default, olive oil.
        wine: the wine.
        max_bytes: 100% of the size.
        plan: what to do.
        clean: what to call.
    """


def make(*arguments: str) -> dict[str, Any]:
    parser = CommandParser()
    names = "dish num_eggs salt stir heat herbs oil wine max_bytes plan clean"
    add_declared(parser.add_argument, cook, names)
    return list_given(parser.parse_args(arguments), cook)


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ("", {}),
        ("--num-eggs 3", {"num_eggs": 3}),
        ("--salt --no-stir", {"salt": True, "stir": False}),
        ("--heat high", {"heat": "high"}),
        ("--herbs dill,mint --herbs sage", {"herbs": ["dill", "mint", "sage"]}),
        ("--oil none", {"oil": None}),
        ("--oil 7", {"oil": 7}),
        ("--oil nut", {"oil": "nut"}),
        ("--oil \uff17", {"oil": "\uff17"}),
        ("--wine none", {"wine": "none"}),
        ("--max-bytes 2kb", {"max_bytes": 2048}),
        ("--plan [[0,boil]]", {"plan": [[0, "boil"]]}),
        ("--clean my_module:wash", {"clean": "my_module:wash"}),
    ],
)
def test_a_command_has_the_arguments_that_were_given(arguments: str, given: dict[str, Any]) -> None:
    assert make("pie", *arguments.split()) == {"dish": "pie", **given}


@pytest.mark.parametrize(
    "arguments", ["--num-eggs two", "--heat mild", "--max-bytes big", "--plan [", "--salt=yes"]
)
def test_a_value_of_another_type_is_refused(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        make("pie", *arguments.split())
    assert f"argument {arguments.partition(' ')[0].partition('=')[0]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "chat"),
    [
        ("tokenizer", Chat()),
        ("a,b.jinja", Chat("a,b.jinja")),
        ("train=last", Chat(train="last")),
        ("x.jinja,train=all,max_tokens=7", Chat("x.jinja", train="all", max_tokens=7)),
        ("train_eot=false,trusted=true", Chat(train_eot=False, trusted=True)),
        ("date=2026-01-31,tools_key=t", Chat(date="2026-01-31", tools_key="t")),
        (
            "roles={bot: assistant, boss: user},reasoning_tags=<a>,</a>,overlong=split",
            Chat(
                roles={"bot": "assistant", "boss": "user"},
                reasoning_tags=("<a>", "</a>"),
                overlong="split",
            ),
        ),
        ("template_kwargs={think: false}", Chat(template_kwargs={"think": False})),
        ("max_tokens=none", Chat()),
    ],
)
def test_fields_of_a_config_are_named_values(text: str, chat: Chat) -> None:
    assert parse_fields(Chat, text) == chat
    assert read_configs({"chat": text, "seed": 1}) == {"chat": chat, "seed": 1}


@pytest.mark.parametrize(
    "text", ["trian=last", "train=lost", "max_tokens=many", "roles=[", "train_eot=7", "template="]
)
def test_fields_of_a_config_with_other_values_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=text.partition("=")[0]):
        parse_fields(Chat, text)


def test_the_help_is_the_first_sentence_and_the_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        make("--help")
    said = " ".join(capsys.readouterr().out.split())
    for line in (
        "DISH the name of the dish",
        "--num-eggs N the number of eggs (default: 2)",
        "--salt add salt",
        "--stir, --no-stir stir (default: yes)",
        "--heat {low,high} the heat, which --num-eggs does not change (default: low)",
        "--herbs NAME,... names of herbs",
        "--oil N the oil, or none. By default, olive oil",
        "--max-bytes SIZE 100% of the size (default: 5)",
        "--plan YAML what to do",
        "--clean MODULE:FUNCTION what to call",
    ):
        assert line in said


def list_commands() -> dict[str, Any]:
    [commands] = [each for each in make_parser()._actions if isinstance(each.choices, dict)]
    assert isinstance(commands.choices, dict)
    return commands.choices


def options_of(command: str) -> dict[str, argparse.Action]:
    return {action.dest: action for action in list_commands()[command].fill()._actions}


@pytest.mark.parametrize(
    ("command", "name", "start"),
    [
        ("count", "tokenizer", "name, folder or tokenizer.json of the tokenizer"),
        ("count", "on_error", "what to do with a document whose text is not UTF-8"),
        ("count", "tokenizer_backend", "the library that encodes text"),
        ("convert", "transform", "the transform of the runs that will use the lengths, as for Cl"),
        ("convert", "processes", "number of worker processes, one per available core"),
        ("plan", "tokenizer", "name, folder or tokenizer.json of the tokenizer"),
        ("plan", "packing", "how documents fill rows"),
    ],
)
def test_an_argument_that_is_as_for_the_loader_has_the_help_of_the_loader_s_option(
    command: str, name: str, start: str
) -> None:
    assert str(options_of(command)[name].help).startswith(start)


@pytest.mark.parametrize("command", list_commands())
def test_no_help_only_names_another_declaration(command: str) -> None:
    helps = [str(each.help) for each in options_of(command).values()]
    assert not [each for each in helps if each.startswith("as for")]


def test_the_name_of_a_transform_becomes_the_function() -> None:
    given = {"transform": "json:loads", "transform_id": "a:b"}
    assert read_functions(given) == {"transform": json.loads, "transform_id": "a:b"}
    for unchanged in ({}, {"transform": None}, {"transform": json.dumps}):
        assert read_functions(dict(unchanged)) == unchanged
    with pytest.raises(ValueError, match="json"):
        read_functions({"transform": "json"})


@pytest.mark.parametrize("command", ["plan", "check", "state"])
def test_every_option_of_a_loader_is_an_option_of_the_commands_that_create_one(
    command: str,
) -> None:
    known = options_of(command)
    declared = {each.name for half in (RowsConfig, DeliveryConfig) for each in fields(half)}
    assert declared - NOT_FLAGS <= known.keys()


@pytest.mark.parametrize("command", ["rows", "trace", "where"])
def test_every_option_of_the_rows_is_an_option_of_the_commands_that_read_rows(command: str) -> None:
    assert {each.name for each in fields(RowsConfig)} - NOT_FLAGS <= options_of(command).keys()


def test_a_share_may_be_zero_and_a_fim_may_be_a_mapping() -> None:
    expected = {"fim": Fim(rate=0.9, spm_rate=0, prefix="<a>", middle=5, suffix="<c>")}
    text = "rate=0.9,spm_rate=0,prefix=<a>,middle=5,suffix=<c>"
    mapping = {"rate": 0.9, "spm_rate": 0, "prefix": "<a>", "middle": 5, "suffix": "<c>"}
    assert read_configs({"fim": text}) == read_configs({"fim": mapping}) == expected
    with pytest.raises(ValueError, match=r"fim is .*rate of Fim is 2"):
        read_configs({"fim": "rate=2"})
