"""The options that choose where the units of a command run: `--engine`, `--address`, and others."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext


def add_engine_options(add: Callable[..., object], units: str) -> None:
    """Add the options to a command. `units` names the units of its work, such as `segments`."""
    engine = f"process the {units} on this machine or on a Ray cluster (default: local)"
    add("--engine", default="local", choices=["local", "ray"], help=engine)
    cluster = "the Ray cluster: auto, or ray://HOST:PORT (default: start one on this machine)"
    add("--address", metavar="URL", help=cluster)
    resources = "resources for each Ray task, such as cpus=1,memory=2g (default: cpus=1)"
    add("--task-resources", metavar="NAME=N,...", help=resources)


def open_engine(options: argparse.Namespace) -> AbstractContextManager[Executor | None]:
    """Return a context with the executor that the options name, or None for local processes.

    Raises `ValueError` for options that need `--engine ray`, and the errors of `RayExecutor`.
    """
    if options.engine != "ray":
        if options.address or options.task_resources:
            raise ValueError(
                "--address and --task-resources require --engine ray. Add it, or omit these options"
            )
        return nullcontext()
    from cloudload.tools.engines.ray import RayExecutor, parse_resources

    resources = parse_resources(options.task_resources) if options.task_resources else {}
    return RayExecutor(options.address, **resources)
