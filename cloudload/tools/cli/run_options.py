"""Options that name a run: checkpoints of it, or the arguments of its loader.

    STATE                     a checkpoint of the run, which has the options of its rows
    --yaml train.yaml         an llm-foundry training YAML
    --config run.yaml         a YAML or JSON file, or a Python file with `config = dict(...)`
    --data, --tokenizer       where they are
    --seq-len, --local, …     any argument of a CloudLoader: a field of one of its configs
    --option NAME=VALUE       the same, with a value in YAML

Later entries of this list override earlier ones. With a state, only options that say where the data
is and how to read it apply.
"""

from __future__ import annotations

import argparse
import inspect
import logging
import runpy
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudload.data import explain
from cloudload.tools.cli import command
from cloudload.tools.cli.declared_options import (
    add_declared,
    list_given,
    parse_yaml,
    read_configs,
    read_functions,
)

if TYPE_CHECKING:
    from cloudload.tools.provenance.state_run import Run

STATE = "a checkpoint that contains a loader state: a JSON file, a torch file, or a folder"
"""The help of an argument that is a state."""
CHECK = "check"
"""The section of a config that only `cloudload check` reads."""
READING = (
    "local tokenizer_backend num_workers prefetch_batches predownload download_threads cache_limit "
    "verify start_method pad_id mask_edges"
)
"""The options of `DeliveryConfig` that apply to the rows of a checkpoint."""
_NOT_OPTIONS = ("streams", "retry", "dp_rank", "dp_world_size", "has_mesh")
_FUNCTIONS = ("transform", "encode")
"""The options of the rows that a state does not store, because their values are functions."""
_NUM_WORKERS, _ROWS_PER_STEP = 2, 8
_WORKERS = {"num_workers": {"flags": ("--num-workers", "--workers")}}
_START_LOGGERS = tuple(f"cloudload.{name}" for name in ("start", "wait", "tokenizer", "lengths"))


def add_run_options(parser: command.CommandParser) -> None:
    """Add the states, and the options of a run."""
    state = f"{STATE}; also pass later checkpoints of the run if its options changed"
    add = parser.add_argument
    add("states", metavar="STATE", type=command.path_argument, nargs="*", help=state)
    batch = "rows per global batch (default: as in the state; 8 without a state)"
    add("--global-batch", type=command.whole_number(), metavar="ROWS", help=batch)
    add_loader_options(parser, delivery=f"lengths {READING}")


def add_loader_options(parser: command.CommandParser, *, delivery: str = "") -> None:
    """Add options for all arguments of a loader that the parser does not have yet.

    `delivery` names the options of `DeliveryConfig`; by default, all that a run may choose.
    """
    from cloudload.config import DeliveryConfig, RowsConfig

    taken = {each.dest for each in parser._actions} | {*_NOT_OPTIONS}
    add = parser.add_argument_group("the run").add_argument
    _add_locations(add, taken)
    config = "the loader's arguments in a YAML or JSON file, or in the dict `config` of a Python "
    config += "file, which is executed"
    add("--config", metavar="FILE", type=command.path_argument, help=config)
    yaml = "the loader's arguments in an llm-foundry training YAML"
    add("--yaml", metavar="FILE", type=command.path_argument, help=yaml)
    option = "an argument of CloudLoader, with a value in YAML; may be repeated"
    add("--option", action="append", default=[], metavar="NAME=VALUE", help=option)
    rows = " ".join(each.name for each in fields(RowsConfig) if each.name not in taken)
    add = parser.add_argument_group("rows: which tokens, in which order").add_argument
    add_declared(add, RowsConfig, rows)
    names = delivery.split() or [each.name for each in fields(DeliveryConfig)]
    add = parser.add_argument_group("delivery: how rows are read and delivered").add_argument
    free = " ".join(name for name in names if name not in taken)
    add_declared(add, DeliveryConfig, free, **(_WORKERS if delivery else {}))


def add_data_options(add: Callable[..., Any], delivery: str = "lengths local") -> None:
    """Add the options that locate and read the data and tokenizer of a saved run."""
    from cloudload.config import DeliveryConfig, RowsConfig

    _add_locations(add, ())
    add_declared(add, RowsConfig, " ".join(_FUNCTIONS))
    add_declared(add, DeliveryConfig, delivery, **_WORKERS)


def _add_locations(add: Callable[..., Any], taken: Collection[str]) -> None:
    data = "location of the data, or its new location if it moved; repeat for each stream, in order"
    add("--data", action="append", metavar="URL", help=data)
    if "tokenizer" not in taken:
        tokenizer = "name, folder or tokenizer.json of the tokenizer, or its new location"
        add("--tokenizer", metavar="NAME", help=tokenizer)


def add_row_options(add: Callable[..., Any]) -> None:
    """Add the steps of a run to read, and the rows of each step."""
    steps = "steps from A up to, but not including, B; or a single step"
    add("--steps", type=parse_steps, required=True, metavar="A:B", help=steps)
    row = "only rows A up to, but not including, B of each global batch, from 0; or a single row"
    add("--row", type=_parse_rows, metavar="A:B", help=row)


def parse_steps(text: str) -> range:
    """Parse `A:B`, which excludes B, or a single step."""
    return _parse_range(text, "step")


def _parse_rows(text: str) -> range:
    return _parse_range(text, "row")


def _parse_range(text: str, noun: str) -> range:
    first, colon, stop = text.partition(":")
    try:
        found = range(int(first), int(stop) if colon else int(first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither A:B nor a single {noun}. Use 3:5 or 3, for example"
        ) from None
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} has no {noun}s. In A:B, use a B above A")
    return found


@contextmanager
def without_start_log() -> Iterator[None]:
    """Hide what loaders log when they start, except for warnings, to keep the output short."""
    loggers = [logging.getLogger(name) for name in _START_LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# ---------------------------------------------------------------- reading them


def open_runs_of(options: argparse.Namespace) -> tuple[list[Run], dict[str, Any]]:
    """Open the parts of the run that `options` name. Also return the loader's delivery options."""
    from cloudload.tools.provenance.state_run import open_runs, start_run

    if options.states:
        located = locate_run(options)
        runs = open_runs(load_states(options), **located, global_batch=options.global_batch)
        return runs, {"num_workers": _NUM_WORKERS, **list_reading(vars(options))}
    arguments = read_loader_options(options)
    runs = [start_run(options.global_batch or _ROWS_PER_STEP, **arguments)]
    return runs, {"num_workers": _NUM_WORKERS, **list_reading(arguments)}


def load_states(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Load the states. Raises `ValueError` if options of the rows were given, too."""
    from cloudload.config import RowsConfig
    from cloudload.tools.provenance.checkpoint import load_state

    names = [name for name in ("yaml", "config", "option") if getattr(options, name, None)]
    names += [name for name in list_given(options, RowsConfig) if name not in _FUNCTIONS]
    if names:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in names)
        raise ValueError(
            f"a state was given, so these options have no effect: {flags}. Omit them, or omit the "
            "state"
        )
    return [load_state(path) for path in options.states]


def check_one_state(options: argparse.Namespace, wanted: str) -> None:
    """Raise `ValueError` for several states. `wanted` says which one to pass."""
    if len(options.states) > 1:
        name = options.parser.prog.rpartition(" ")[2]
        raise ValueError(
            f"{len(options.states)} states were given, but {name} takes one. Pass {wanted}"
        )


def locate_run(options: argparse.Namespace) -> dict[str, Any]:
    """Return where the data and the tokenizer of a saved run are, as arguments of `open_run`."""
    names = ("data", "tokenizer", *_FUNCTIONS, "lengths")
    return {name: getattr(options, name, None) for name in names}


def list_reading(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that say how to read the rows of a checkpoint."""
    return {name: value for name, value in arguments.items() if name in READING.split()}


def names_loader(options: argparse.Namespace, besides: tuple[str, ...] = ()) -> bool:
    """Whether the options name arguments of a loader, besides its data, tokenizer, and others."""
    from cloudload.config import DeliveryConfig, RowsConfig

    fields_given = list_given(options, RowsConfig) | list_given(options, DeliveryConfig)
    return bool(
        options.yaml or options.config or options.option or fields_given.keys() - {*besides}
    )


def read_loader_options(
    options: argparse.Namespace, *known: str, required: str = "data seq_len"
) -> dict[str, Any]:
    """Return the CloudLoader arguments given on the command line.

    `known` names other arguments that a config may have. Raises `ValueError` for an unknown
    argument, and if a `required` one is missing.
    """
    from cloudload.config import DeliveryConfig, RowsConfig

    arguments: dict[str, Any] = {}
    if options.yaml:
        from cloudload.run import config_from_yaml

        arguments |= config_from_yaml(options.yaml)
    if options.config:
        arguments |= _read_config(options.config)
    for name in ("data", "tokenizer"):
        if getattr(options, name, None) is not None:
            arguments[name] = getattr(options, name)
    arguments |= list_given(options, RowsConfig) | list_given(options, DeliveryConfig)
    arguments |= dict(map(_parse_option, options.option))
    arguments = read_configs(read_functions(arguments))
    if CHECK not in known:
        arguments.pop(CHECK, None)
    if arguments.get("lengths") is False:
        arguments["lengths"] = "off"  # YAML parses `off` as False
    _check_names(arguments, known)
    examples = {"data": "--data URL", "seq_len": "--seq-len 2048"}
    for name in required.split():
        if name not in arguments:
            raise ValueError(
                f"{name} is missing, and no state was given. Pass {examples[name]}, or pass a "
                "state if the command takes one"
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
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(f"--option is {text!r}. Use NAME=VALUE, such as seed=4")
    try:
        return name, parse_yaml(value)
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"--option {name}: {error}") from None
