"""The environment of a loader: its world, the exchange between ranks, and its workers.

    Environment                     torch.distributed and worker processes
    ThreadEnvironment, for tests    ranks in threads of one process, workers inline

A loader uses the environment that is current when the loader is created.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from cloudload.config import DeliveryConfig
from cloudload.loading.delivery.exchange import DistributedExchange, Exchange
from cloudload.loading.delivery.world import find_world, is_first_process
from cloudload.order import World


class Environment:
    """Connects a loader to the processes of a job: the other ranks, and this rank's workers."""

    def find_world(self, delivery: DeliveryConfig) -> World:
        """Find the current world, which may change when torch.distributed is initialized.

        Raises `ValueError` as `world.find_world` does.
        """
        return find_world(delivery.dp_rank, delivery.dp_world_size)

    def is_first_process(self, delivery: DeliveryConfig) -> bool:
        """Whether this process logs on behalf of all processes.

        Raises `ValueError` as `world.is_first_process` does.
        """
        return is_first_process(delivery.dp_rank)

    def open_exchange(self, delivery: DeliveryConfig) -> Exchange:
        """Open the exchange with the other ranks. All processes must call it together.

        The exchange covers only this rank if there are no other ranks, or if torch.distributed is
        not initialized.
        """
        import torch.distributed as dist

        # with a mesh, all processes compare their configs, even if they share a single rank.
        # Without a mesh, dp_world_size=1 does not imply that the other processes have a loader
        has_others = delivery.has_mesh or self.find_world(delivery).size > 1
        is_ready = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        if has_others and is_ready:
            return DistributedExchange(delivery.exchange_timeout_s)
        return Exchange()

    def has_worker_processes(self, delivery: DeliveryConfig) -> bool:
        """Whether processes make the rows of this rank, not this process."""
        return delivery.has_worker_processes


_current: ContextVar[Environment | None] = ContextVar("cloudload_environment", default=None)


def current_environment() -> Environment:
    """Return the environment that a loader created now would use."""
    return _current.get() or Environment()


@contextlib.contextmanager
def use_environment(environment: Environment) -> Iterator[None]:
    """Make an environment current within a `with` block."""
    token = _current.set(environment)
    try:
        yield
    finally:
        _current.reset(token)
