"""Run a Ray cluster on this machine. It has two nodes, each of which is a raylet with two cores."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from testkit.processes import children_of

_NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 100 << 20, "dashboard_port": None}
_HEALTH = {"RAY_health_check_period_ms": "500", "RAY_health_check_timeout_ms": "3000"}


class Cluster:
    """A Ray cluster that runs during a `with` block, with `environment` as its environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**environment, **_HEALTH}

    def __enter__(self) -> Cluster:
        from ray.cluster_utils import Cluster as RayCluster

        with _environment(self._environment):
            self._cluster = RayCluster(
                initialize_head=True, head_node_args=_NODE | {"include_dashboard": False}
            )
        self.address: str = self._cluster.address
        self._second = self._add_node()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._cluster.shutdown()

    def workers(self) -> list[int]:
        """Return the PIDs of the Ray worker processes that are running a task."""
        found = []
        for node in (self._cluster.head_node, self._second):
            for pid in children_of(_raylet_of(node)):
                with contextlib.suppress(OSError):
                    if b"ray::_call" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found.append(pid)
        return sorted(found)

    def replace_node(self) -> None:
        """Kill the raylet of the second node, and add another node."""
        os.kill(_raylet_of(self._second), signal.SIGKILL)
        self._second = self._add_node()

    def _add_node(self) -> Any:
        with _environment(self._environment):
            return self._cluster.add_node(**_NODE)


def _raylet_of(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables in a `with` block, so that Ray's processes inherit them."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
