"""The options that say where a command's units of work run: on this machine or on a Ray cluster."""

from __future__ import annotations

import argparse
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudload.cli.command import CommandParser


def add_engine(parser: CommandParser | argparse.ArgumentParser, units: str) -> None:
    """Add the options of an engine. `units` names what it runs, such as `segments`."""
    where = f"run the {units} in processes of this machine or on a Ray cluster (default: local)"
    parser.add_argument("--engine", default="local", choices=["local", "ray"], help=where)
    cluster = "the Ray cluster: auto, or ray://HOST:PORT (default: one on this machine)"
    parser.add_argument("--address", metavar="URL", help=cluster)
    resources = (
        f"resources of each of the {units} on Ray, such as cpus=1,memory=2g (default: cpus=1)"
    )
    parser.add_argument("--task-resources", metavar="NAME=N,...", help=resources)


def open_engine(options: argparse.Namespace) -> AbstractContextManager[Executor | None]:
    """The executor that the options ask for, None for processes of this machine.

    Raises `ValueError` for options that do not go together, and `WorkerError` if Ray is not
    installed or cannot be reached.
    """
    if options.engine != "ray":
        if options.address or options.task_resources:
            raise ValueError("--address and --task-resources need --engine ray")
        return nullcontext()
    from cloudload.engines.ray import RayExecutor, parse_resources

    resources = parse_resources(options.task_resources) if options.task_resources else {}
    return RayExecutor(options.address, **resources)
