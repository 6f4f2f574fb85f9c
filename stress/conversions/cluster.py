"""Run a Ray cluster on this machine. It has two nodes, each of which is a raylet with two cores."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

from testkit.processes import children_of, command_of

_NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 100 << 20, "dashboard_port": None}
_HEALTH = {"RAY_health_check_period_ms": "500", "RAY_health_check_timeout_ms": "3000"}


class Cluster:
    """A Ray cluster whose processes inherit `variables`. It runs until `shutdown` is called."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        self._variables = {**variables, **_HEALTH}
        head = _NODE | {"include_dashboard": False}
        with patch.dict(os.environ, self._variables):
            self._cluster = RayCluster(initialize_head=True, head_node_args=head)
        self.shutdown = self._cluster.shutdown
        self.address: str = self._cluster.address
        self._second = self._add_node()

    def workers(self) -> list[int]:
        """Return the PIDs of the Ray worker processes that are running a task."""
        raylets = map(_raylet_of, (self._cluster.head_node, self._second))
        pids = {pid for raylet in raylets for pid in children_of(raylet)}
        return sorted(pid for pid in pids if b"ray::_call" in command_of(pid))

    def replace_node(self) -> None:
        """Kill the raylet of the second node, and add another node."""
        os.kill(_raylet_of(self._second), signal.SIGKILL)
        self._second = self._add_node()

    def _add_node(self) -> Any:
        with patch.dict(os.environ, self._variables):
            return self._cluster.add_node(**_NODE)


def _raylet_of(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)
