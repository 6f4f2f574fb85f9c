"""Run a worker process: receive its work, then make the blocks of one phase after another.

    trainer    plan          free  free  halt                next phase        free …
    worker        block  block  block  block     halted                   block  block …

When a worker halts, it discards the rows it has made, but keeps its shards, orders, and tokenizer.
A process that was not forked receives its work, and with it the plan, over the socket:

    trainer ─► pickle: functions by name ─► socket ─► import the names, unpickle ─► worker
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final

from cloudload.data import WorkerCounts
from cloudload.errors import CloudloadError, WorkerError
from cloudload.loading.workers.block import limit_batches, limit_blocks_ahead
from cloudload.loading.workers.transport import Slots, measure_slot
from cloudload.loading.workers.worker import Worker
from cloudload.loading.workers.worker_plan import WorkerPlan
from cloudload.stats import IDLE, PACK
from cloudload.system import (
    SharedMemoryRing,
    activity,
    child_processes,
    freeze_objects,
    machine,
    stage,
    stopwatch,
)

FREE: Final = b"free"
"""The trainer's message that a slot is free again."""
HALT: Final = b"halt"
"""The trainer's message that the current phase ends."""
HALTED: Final = "halted"
"""The worker's answer to `HALT`, after which it receives a `NextPhase`."""
_ACTIVITY_BYTES = 1 << 11

_ADVICE = (
    "Workers that are not forked import the transform by its name. Define the transform at the top "
    "level of a module (not as a lambda, in a notebook, or under `if __name__ == '__main__':`), or "
    "pass start_method='fork'"
)


@dataclass(frozen=True)
class Memory:
    """The memory that a rank's workers and the training process share."""

    blocks: SharedMemoryRing
    """`slots_each` slots per worker, for its blocks."""
    slots_each: int
    activities: SharedMemoryRing
    """One slot per worker, for a description of its current activity."""
    counts: WorkerCounts

    @staticmethod
    def of(plan: WorkerPlan, counts: WorkerCounts) -> Memory:
        # the extra slot is for the block that the training process uses
        share, recipe = plan.share, plan.recipe
        num_workers, most_batches = share.num_workers, limit_batches(plan.inputs, share)
        slots_each = 1 + limit_blocks_ahead(plan.delivery.prefetch_batches, most_batches)
        rows = share.shape.rank_rows * most_batches
        slot_bytes = measure_slot(rows, num_workers, recipe.packing.seq_len)
        blocks = SharedMemoryRing(num_workers * slots_each, slot_bytes)
        activities = SharedMemoryRing(num_workers, _ACTIVITY_BYTES)
        return Memory(blocks, slots_each, activities, counts)

    def slots(self, worker: int, await_free: Callable[[], object]) -> Slots:
        """Return the slots for one worker's blocks."""
        return Slots(self.blocks, worker * self.slots_each, self.slots_each, await_free)


def work(index: int, memory: Memory, connection: Connection, plan: WorkerPlan | None) -> None:
    """Make and send a worker's blocks. This is the main function of a worker process.

    If `plan` is None, the process receives it over `connection`.
    """
    import torch

    child_processes.exit_with_parent()
    freeze_objects()
    # one thread per worker: work is parallel across workers
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    machine.raise_open_file_limit()  # lanes keep many shards mapped at once
    try:
        connection.send("started")
        plan = receive_work(connection) if plan is None else plan
        with (
            activity.published(
                partial(memory.activities.write_text, index), "making its next rows"
            ),
            stopwatch(memory.counts.times(index), PACK),
        ):
            _make_phases(index, memory, connection, plan)
    except (EOFError, ConnectionError):
        pass  # the training process has exited
    except CloudloadError as error:
        # pickling drops the traceback, because frames cannot be sent to another process
        connection.send(error)
    except Exception:
        connection.send(
            WorkerError(
                "a worker process failed with an unexpected error. Fix the cause of the error, and "
                f"resume from the last state\n\n{traceback.format_exc()}"
            )
        )


def _make_phases(index: int, memory: Memory, connection: Connection, plan: WorkerPlan) -> None:
    """Make the blocks of a plan and of all its later phases, until the connection closes."""
    inbox, counts = _Inbox(connection), memory.counts
    slots = memory.slots(index, inbox.await_free)
    worker = Worker(plan, index, counts.of(index), slots.new_tokens)
    with contextlib.closing(worker):
        while True:
            with contextlib.suppress(_HaltedError):
                for block in worker.read_blocks(plan):
                    packed = slots.pack(block)
                    counts.blocks(index)[0] += 1
                    counts.tokens(index)[0] += block.num_tokens
                    connection.send(packed)
                    inbox.look()
                inbox.await_halt()
            inbox.num_free, counts.blocks(index)[0] = 0, 0
            slots.reset()
            connection.send(HALTED)
            change = receive_work(connection)
            plan = plan.enter(change)
            worker.receive(change)


class _HaltedError(Exception):
    """Raised in a worker when the trainer has asked it to halt."""


class _Inbox:
    """Reads the trainer's messages to a worker about its blocks."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self.num_free = connection, 0
        """Number of free slots that `await_free` has not claimed."""

    def look(self) -> None:
        """Read the messages that have arrived. Raises `_HaltedError` if one is `HALT`."""
        while self._connection.poll():
            self._read()

    def await_free(self) -> None:
        """Wait until a slot is free, and claim it. Raises `_HaltedError` on `HALT`."""
        with stage(IDLE):
            while not self.num_free:
                self._read()
        self.num_free -= 1

    def await_halt(self) -> None:
        """Wait for `HALT`, and raise `_HaltedError`."""
        with stage(IDLE):
            while True:
                self._read()

    def _read(self) -> None:
        if self._connection.recv_bytes() == HALT:
            raise _HaltedError
        self.num_free += 1


def send_work(connection: Connection, work: Any) -> None:
    """Send work. Raises `WorkerError` if the work cannot be pickled, and any `CloudloadError` from
    values that are computed during pickling, such as the position of lanes."""
    try:
        child_processes.send(connection, work)
    except (OSError, CloudloadError):  # these are not pickling errors
        raise
    except Exception as error:
        raise WorkerError(f"cannot send work to a worker: {error}. {_ADVICE}") from error


def receive_work(connection: Connection) -> Any:
    """Receive work. Raises `WorkerError` if this process cannot unpickle it, for example because it
    cannot import a name."""
    try:
        return connection.recv()
    except (EOFError, OSError):  # these are errors of the connection, not of unpickling
        raise
    except Exception as error:
        raise WorkerError(f"a worker cannot load its work: {error}. {_ADVICE}") from error
