"""Worker processes: started, listened to, ended.

    trainer ◄── started, where each block lies, an error ── worker
            ──────────── a slot is free again ────────────►

Each worker has a pair of connected sockets of its own and shares no lock with anybody: whatever
moment one is killed at, the trainer reads the end of its stream, and nobody waits for it.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from cloudload.errors import CloudloadError, WorkerError
from cloudload.system.open_files import raise_open_file_limit
from cloudload.system.parent_watch import SIGTERM_STATUS, exit_with_parent
from cloudload.system.shared_memory import SharedMemoryRing
from cloudload.workers.block import Block
from cloudload.workers.plan import Plan
from cloudload.workers.transport import PackedBlock, Slots, slot_bytes, unpack_block
from cloudload.workers.worker import read_blocks

logger = logging.getLogger(__name__)
_STARTS, _START_S, _END_S, _LOOK_EVERY_S = 3, 60.0, 3.0, 1.0


@dataclass(frozen=True)
class _Failed:
    """An error that is none of ours, as its traceback."""

    traceback: str


class WorkerProcess:
    """One worker of a plan, and the slots that its blocks come in."""

    def __init__(self, plan: Plan, number: int, ring: SharedMemoryRing, slots_each: int) -> None:
        self._arguments = (plan, number, ring, slots_each)
        self._context: Any = multiprocessing.get_context(plan.delivery.start_method)
        self._has_block, self._owner = False, os.getpid()
        self._begin()

    @property
    def is_own(self) -> bool:
        """Whether this process started it."""
        return os.getpid() == self._owner

    def _begin(self) -> None:
        self._connection, theirs = self._context.Pipe()
        self._process = self._context.Process(
            target=_work, args=(*self._arguments, theirs), daemon=True
        )
        self._process.start()
        # the worker has the only other end: its death ends the stream
        theirs.close()

    def await_start(self) -> None:
        """Wait until the process runs.

        A fork is a child of one thread with the locks of all: now and then CPython's, or a
        library's, is held at that moment, and the child waits for it for ever
        (python/cpython#84559). Such a child has not said that it started, and is replaced.
        """
        for _ in range(_STARTS):
            if self._context.get_start_method() != "fork" or self._connection.poll(_START_S):
                self._receive()
                return
            logger.warning(
                "worker process %s did not start within %d s; another is started",
                self._process.pid,
                _START_S,
            )
            end_workers([self])
            self._begin()
        raise WorkerError(
            f"a worker process did not start in {_STARTS} attempts. Use start_method='spawn', or "
            "fewer workers"
        )

    def receive(self) -> PackedBlock | None:
        """The next block, or None after the last; the one before it is no longer needed.

        Raises the worker's own error, or `WorkerError` where it has died.
        """
        if self._has_block:
            with contextlib.suppress(OSError):  # it has ended, and may have sent all that there is
                self._connection.send_bytes(b"free")
        item = self._receive()
        if isinstance(item, CloudloadError):
            raise item
        if isinstance(item, _Failed):
            raise WorkerError(
                f"a worker process failed. Resume from the last state\n\n{item.traceback}"
            )
        self._has_block = True
        assert item is None or isinstance(item, PackedBlock)
        return item

    def _receive(self) -> Any:
        try:
            # a child of the worker's own may hold its end of the stream open
            while not self._connection.poll(_LOOK_EVERY_S) and self._process.is_alive():
                pass
            return self._connection.recv() if self._connection.poll() else self._raise_end()
        except (EOFError, OSError):
            return self._raise_end()

    def _raise_end(self) -> None:
        self._process.join(_END_S)
        code = self._process.exitcode
        what = f"has ended with status {code}"
        if code is not None and code < 0:
            named = {int(each): each.name for each in signal.Signals}
            what = f"was ended by {named.get(-code, f'signal {-code}')}"
        if code in (
            -signal.SIGSEGV,
            -signal.SIGBUS,
            -signal.SIGABRT,
            -signal.SIGILL,
            -signal.SIGFPE,
        ):
            what += (
                " (native code failed, of a transform or the tokenizer: "
                "tokenizer_backend='hf' "
                "and num_workers=0 may tell which)"
            )
        if code == SIGTERM_STATUS:
            what = "was told to end by SIGTERM"
        if code == -signal.SIGKILL:
            what += (
                " (if nobody killed it, the machine ran out of memory: "
                "see its kernel log, and "
                "use fewer workers)"
            )
        raise WorkerError(
            f"a worker process failed: process {self._process.pid} "
            f"{what}. Resume from the last state"
        ) from None

    def ask_to_end(self) -> None:
        """Have it end; returns at once."""
        self._process.terminate()

    def end(self, deadline: float) -> None:
        """Wait for its end until `deadline` (of `time.monotonic`), then kill it."""
        self._process.join(max(0.0, deadline - time.monotonic()))
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._connection.close()


def end_workers(workers: Sequence[WorkerProcess]) -> None:
    """End workers, all at once, whatever they wait for; those of another process, which forked this
    one, are left alone."""
    workers = [worker for worker in workers if worker.is_own]
    for worker in workers:
        worker.ask_to_end()
    deadline = time.monotonic() + _END_S
    for worker in workers:
        worker.end(deadline)


def _work(
    plan: Plan, number: int, ring: SharedMemoryRing, slots_each: int, connection: Connection
) -> None:
    """What runs in the process."""
    import torch

    exit_with_parent()
    connection.send("started")
    # one thread a worker: workers are how the work is spread
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    raise_open_file_limit()  # for as many mapped shards as the lanes are in
    slots = Slots(ring, number * slots_each, slots_each, connection.recv_bytes)
    try:
        for packed in map(slots.pack, read_blocks(plan, number, slots.new_tokens)):
            connection.send(packed)
        connection.send(None)
    except (EOFError, ConnectionError):
        pass  # nobody is there to read on
    except CloudloadError as error:
        connection.send(error)  # without its traceback and cause, which pickle leaves out
    except Exception:
        connection.send(_Failed(traceback.format_exc()))


class BatchParts(NamedTuple):
    """The workers' blocks that have a batch, and which of their batches it is."""

    blocks: list[Block]
    number: int


def inline_blocks(plan: Plan) -> Iterator[BatchParts]:
    """The blocks of each batch, made in this process."""
    workers = [read_blocks(plan, worker) for worker in range(plan.num_workers)]
    try:
        while True:
            yield from _by_batch([next(worker) for worker in workers])
    finally:
        for worker in workers:
            worker.close()  # type: ignore[attr-defined]


def process_blocks(plan: Plan) -> Iterator[BatchParts]:
    """The blocks of each batch, from worker processes that run ahead."""
    # the block that is being read, and at least two beyond it
    slots_each = 1 + max(2, -(-plan.delivery.prefetch_batches // plan.batches_at_once))
    ring = SharedMemoryRing(plan.num_workers * slots_each, slot_bytes(plan))
    workers: list[WorkerProcess] = []
    try:
        for number in range(plan.num_workers):
            workers.append(WorkerProcess(plan, number, ring, slots_each))
        for worker in workers:
            worker.await_start()
        while True:
            packed = [block for worker in workers if (block := worker.receive()) is not None]
            if len(packed) < len(workers):
                return
            yield from _by_batch([unpack_block(block, ring) for block in packed])
    finally:
        # not left to the collector: the next iteration must not fork beside these
        end_workers(workers)


def _by_batch(blocks: list[Block]) -> Iterator[BatchParts]:
    return (BatchParts(blocks, number) for number in range(max(1, len(blocks[0].bounds) - 1)))
