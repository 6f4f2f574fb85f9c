"""Options of commands that start a run: the arguments of a CloudLoader, from flags and files.

    --yaml train.yaml        an llm-foundry training YAML
    --config run.yaml        a YAML or JSON file, or a Python file with `config = dict(...)`
    --data, --tokenizer      flags
    --option NAME=VALUE      any argument

Later entries of this list override earlier ones.
"""

from __future__ import annotations

import argparse
import inspect
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloudload.data import explain
from cloudload.tools.cli import command

CHECK = "check"
"""The section of a config that only `cloudload check` reads."""


def add_loader_options(parser: argparse.ArgumentParser) -> None:
    """Add `--yaml`, `--config` and `--option`."""
    add = parser.add_argument
    yaml = "use the run described by this llm-foundry training YAML, instead of a state"
    add("--yaml", metavar="FILE", type=command.path_argument, help=yaml)
    config = "use a run with the CloudLoader arguments in a YAML or JSON file, or in the dict "
    config += "`config` of a Python file, which is executed"
    add("--config", metavar="FILE", type=command.path_argument, help=config)
    option = (
        "a CloudLoader argument, if no state is given; VALUE is parsed as YAML; may be repeated"
    )
    add("--option", action="append", default=[], metavar="NAME=VALUE", help=option)


def add_world_options(parser: argparse.ArgumentParser) -> None:
    """Add `--nodes` and `--ranks-per-node`."""
    add = parser.add_argument
    nodes = "number of machines (default: 1)"
    add("--nodes", type=command.whole_number(), default=1, metavar="N", help=nodes)
    ranks = "data-parallel ranks on each machine (default: 1)"
    add("--ranks-per-node", type=command.whole_number(), default=1, metavar="N", help=ranks)


def read_loader_options(options: argparse.Namespace, *known: str) -> dict[str, Any]:
    """Return the CloudLoader arguments given on the command line.

    `known` names other arguments that a config may have. Raises `ValueError` for an unknown
    argument, and if `data` or `seq_len` is missing.
    """
    arguments: dict[str, Any] = {}
    if options.yaml:
        from cloudload.run import config_from_yaml

        arguments |= config_from_yaml(options.yaml)
    if options.config:
        arguments |= _read_config(options.config)
    for name in ("data", "tokenizer", "transform", "local", "lengths"):
        if getattr(options, name, None) is not None:
            arguments[name] = getattr(options, name)
    if isinstance(arguments.get("transform"), str):
        from cloudload.tools.provenance.state_run import import_transform

        arguments["transform"] = import_transform(arguments["transform"])
    arguments |= dict(map(_parse_option, options.option))
    if CHECK not in known:
        arguments.pop(CHECK, None)
    if arguments.get("lengths") is False:
        arguments["lengths"] = "off"  # YAML parses `off` as False
    _check_names(arguments, known)
    for name, flag in (("data", "--data"), ("seq_len", "--option seq_len=2048")):
        if name not in arguments:
            raise ValueError(
                f"{name} is missing, and no state was given. Pass {flag}, or pass a state if "
                "the command takes one"
            )
    return arguments


def _read_config(path: Path) -> dict[str, Any]:
    found = _run_config(path) if path.suffix == ".py" else _parse_config(path)
    if not isinstance(found, Mapping):
        what = "a dict `config`" if path.suffix == ".py" else "CloudLoader arguments by name"
        raise ValueError(
            f"--config {path} does not contain {what}. Add the arguments of the loader"
        )
    return dict(found)


def _run_config(path: Path) -> Any:
    try:
        return runpy.run_path(str(path)).get("config")
    except (Exception, SystemExit) as error:
        if isinstance(error, OSError) and error.filename == str(path):
            raise  # the file itself cannot be read
        raise ValueError(
            f"--config {path} raised {explain(error)} when it was executed. Correct the file"
        ) from error


def _parse_config(path: Path) -> Any:
    import yaml

    from cloudload.run import explain_yaml_error

    try:
        return yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(
            f"--config {path}: {explain_yaml_error(error)}. Correct the file"
        ) from error


def _check_names(arguments: Mapping[str, Any], others: tuple[str, ...]) -> None:
    from cloudload.loading import CloudLoader
    from cloudload.system import option_help

    known = [*inspect.signature(CloudLoader).parameters, *others]
    if unknown := [name for name in arguments if name not in known]:
        raise ValueError(f"--option: {option_help.explain_unknown('CloudLoader', unknown, known)}")


def _parse_option(text: str) -> tuple[str, Any]:
    import yaml

    from cloudload.run import explain_yaml_error

    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(f"--option is {text!r}. Use NAME=VALUE, such as seq_len=2048")
    try:
        return name, yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(
            f"--option {name}: {explain_yaml_error(error)}. Quote or correct the value, {value!r}"
        ) from None
