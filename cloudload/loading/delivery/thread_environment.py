"""Run ranks as threads of one process that exchange messages in memory, for tests.

rank 0 ─► post ─┐
rank 1 ─► post ─┴─► Hub: messages by turn ─► wait: the messages of all ranks, or StoppedError
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from cloudload.config.delivery import DeliveryConfig
from cloudload.data.cache.counters import WorkerCounts
from cloudload.errors import RanksDisagreeError
from cloudload.loading.delivery.environment import Environment
from cloudload.loading.delivery.exchange import Exchange
from cloudload.loading.delivery.world import World
from cloudload.loading.workers.block_sources import Blocks, inline_blocks
from cloudload.loading.workers.plan import Plan
from cloudload.system.arrays import Ints


class StoppedError(RanksDisagreeError):
    """A rank waits for a message from a rank that has stopped."""


class Hub:
    """Passes messages between ranks. Each rank posts one message per turn."""

    def __init__(self, num_ranks: int) -> None:
        self._messages: list[list[Ints]] = [[] for _ in range(num_ranks)]
        self._stopped: set[int] = set()
        self._changed = threading.Condition()

    def post(self, rank: int, message: Ints) -> int:
        """Add a rank's next message, and return the index of its turn."""
        with self._changed:
            self._messages[rank].append(message.copy())
            self._changed.notify_all()
            return len(self._messages[rank]) - 1

    def stop(self, rank: int) -> None:
        """Record that a rank will post no more messages, so that ranks do not wait for it."""
        with self._changed:
            self._stopped.add(rank)
            self._changed.notify_all()

    def wait(self, turn: int) -> list[Ints]:
        """Wait for all ranks' messages of a turn, and return them by rank.

        Raises `StoppedError` if a rank stopped before it posted its message.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._late(turn) <= self._stopped)
            if late := self._late(turn):
                raise StoppedError(f"ranks {sorted(late)} stopped before the others")
            return [messages[turn] for messages in self._messages]

    def _late(self, turn: int) -> set[int]:
        return {rank for rank, messages in enumerate(self._messages) if len(messages) <= turn}


class HubExchange(Exchange):
    """One rank's exchange with the other ranks of its hub."""

    is_alone = False

    def __init__(self, hub: Hub, rank: int) -> None:
        self._hub, self._rank = hub, rank

    def start(self, message: Ints) -> Callable[[], list[Ints]]:
        turn = self._hub.post(self._rank, message)
        return lambda: self._hub.wait(turn)


class ThreadEnvironment(Environment):
    """The environment of a rank that runs in a thread. Its workers run in the same thread."""

    def __init__(self, world: World, hub: Hub) -> None:
        self.world, self._hub = world, hub

    def move(self, other: ThreadEnvironment) -> None:
        """Take the rank, the world and the hub of another environment."""
        self.world, self._hub = other.world, other._hub

    def find_world(self, delivery: DeliveryConfig) -> World:
        return self.world

    def is_first_process(self, delivery: DeliveryConfig) -> bool:
        return self.world.rank == 0

    def open_exchange(self, delivery: DeliveryConfig) -> Exchange:
        return HubExchange(self._hub, self.world.rank)

    def open_blocks(self, plan: Plan, counts: WorkerCounts, closing: threading.Event) -> Blocks:
        return inline_blocks(plan, counts)
