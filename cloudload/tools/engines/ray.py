"""Run units on a Ray cluster. Each unit is a Ray task, which Ray retries if its process dies.

RayExecutor(address="auto")                        the cluster of this node
RayExecutor(address="ray://head:10001", num_cpus=2, memory=4 << 30, resources={"disk": 1})
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from cloudload.config import checks
from cloudload.errors import WorkerError

_RETRIES = 20


class RayExecutor(Executor):
    """Runs each unit as a task of a Ray cluster. Every node must have cloudload installed.

    `address` is `auto`, a URL such as `ray://head:10001`, or None to start a cluster on this
    machine. `options` are options of `ray.remote`, such as `num_cpus`, `memory` in bytes,
    `resources` and `runtime_env`. A task whose process or node dies runs again, up to 20 times
    unless `max_retries` is given. If this process is already connected to a cluster, that
    connection is used, and `shutdown` does not close it.

    Raises `WorkerError` if Ray is not installed or the cluster cannot be reached.
    """

    def __init__(self, address: str | None = None, **options: Any) -> None:
        try:
            import ray
        except ImportError:
            raise WorkerError(
                "the Ray engine requires the ray package. Run: pip install ray"
            ) from None
        self._ray, self._is_ours = ray, not ray.is_initialized()
        if self._is_ours:
            try:
                ray.init(address=address, logging_level="warning", log_to_driver=False)
            except Exception as error:
                raise WorkerError(
                    f"cannot connect to the Ray cluster at {address!r}: {error}. Start a cluster "
                    "with 'ray start --head', or correct the address"
                ) from error
        self._task = ray.remote(**{"max_retries": _RETRIES, "num_cpus": 1} | options)(_call)
        self._stored: tuple[Any, Any] = (None, None)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        # store the function once, because thousands of tasks share it, and it may contain megabytes
        if self._stored[0] is not function:
            self._stored = function, self._ray.put(function)
        reference = self._task.remote(self._stored[1], args, kwargs)
        future: Future[Any] = reference.future()
        future.add_done_callback(partial(self._cancel_task, reference))
        return future

    def _cancel_task(self, reference: Any, future: Future[Any]) -> None:
        if future.cancelled():
            with contextlib.suppress(Exception):
                self._ray.cancel(reference, force=True)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Disconnect from the cluster if this executor opened the connection."""
        if self._is_ours:
            self._ray.shutdown()


def parse_resources(text: str) -> dict[str, Any]:
    """Parse the resources of a task, such as `cpus=2,memory=4g,disk=0.5`, to options of Ray.

    Any name other than `cpus` and `memory` is a custom resource. Raises `ValueError` if an item is
    not NAME=NUMBER.
    """
    options: dict[str, Any] = {}
    for item in text.split(","):
        name, _, value = item.partition("=")
        try:
            if name == "memory":
                options[name] = checks.parse_bytes(value)
            elif name == "cpus":
                options["num_cpus"] = float(value)
            else:
                options.setdefault("resources", {})[name] = float(value)
        except ValueError:
            raise ValueError(
                f"the resource {item!r} does not have the form NAME=NUMBER. Use a list such as "
                "cpus=2,memory=4g,disk=1"
            ) from None
    return options


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)
