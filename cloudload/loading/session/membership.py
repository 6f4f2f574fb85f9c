"""This process's place in the data-parallel world, which `set_world` replaces.

Membership ── world     rank, size, ranks per node
           ── delivery  the options, with the rank and the batch size of this world
           ── exchange  the connection to the other ranks, opened by the first iteration
"""

from __future__ import annotations

from dataclasses import replace

from cloudload.config.checks import as_integer
from cloudload.config.delivery import DeliveryConfig
from cloudload.loading.delivery.environment import Environment
from cloudload.loading.delivery.exchange import Exchange
from cloudload.loading.delivery.world import World


class Membership:
    """One process's rank, batch size, and connection. `ranks_per_node` is None for the default."""

    def __init__(
        self, environment: Environment, delivery: DeliveryConfig, ranks_per_node: int | None = None
    ) -> None:
        self.environment, self.delivery = environment, delivery
        self._ranks_per_node = ranks_per_node
        self.is_first = environment.is_first_process(delivery)
        """Whether this process logs on behalf of all processes."""
        self._exchange: Exchange | None = None

    @property
    def world(self) -> World:
        """The current world, which may change when torch.distributed is initialized."""
        world = self.environment.find_world(self.delivery)
        if self._ranks_per_node is None:
            return world
        return replace(world, ranks_per_node=min(self._ranks_per_node, world.size))

    @property
    def global_batch(self) -> int:
        """Number of rows per step, across all ranks."""
        return self.delivery.batch_size * self.world.size

    def moved(
        self, rank: int, size: int, batch_size: int | None, ranks_per_node: int | None
    ) -> Membership:
        """Return the membership in another world. Raises `ValueError` for an invalid number."""
        if batch_size is None:
            batch_size = self.delivery.batch_size
        rank, size = as_integer("rank", rank), as_integer("size", size)
        delivery = replace(self.delivery, dp_rank=rank, dp_world_size=size, batch_size=batch_size)
        if ranks_per_node is not None:
            ranks_per_node = as_integer("ranks_per_node", ranks_per_node, 1)
        World(rank, size, 1)
        return Membership(self.environment, delivery, ranks_per_node)

    def connect(self) -> Exchange:
        """Return the connection. The first call opens it, and all ranks must make it together."""
        if self._exchange is None:
            self._exchange = self.environment.open_exchange(self.delivery)
        return self._exchange

    def disconnect(self) -> None:
        """Close the connection. The next call of `connect` opens a new one."""
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
