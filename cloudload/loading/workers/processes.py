"""Start worker processes, yield a block from each in turn, and stop them.

    trainer ◄── started, the slot of each block, halted, an error ── worker
            ─────── the plan, a slot is free again, halt ──────────►

    worker 0    [batch 0] [batches 1 and 2] [batches 3 to 6] …
    worker 1    [batch 0] [batches 1 and 2] [batches 3 to 6] …
    items          first      second             third

`inline_blocks` yields the same blocks from workers in this process. Each worker process has its own
socket pair, which needs no lock. The trainer notices the death of a worker when the socket closes,
or when it checks the process, so it never waits for a dead worker. If the worker is not forked, the
trainer also sends the plan over the socket. `multiprocessing` would write the plan to a pipe and
keep both ends open, and would wait forever if the worker died before it read the plan.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
import weakref
from collections.abc import Generator, Iterator, Sequence
from multiprocessing import process
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from cloudload.data import WorkerCounts, cache_folder
from cloudload.errors import CloudloadError, WorkerError
from cloudload.loading.workers.block import Block, add_reports
from cloudload.loading.workers.transport import PackedBlock, unpack_block
from cloudload.loading.workers.worker import Worker
from cloudload.loading.workers.worker_main import (
    FREE,
    HALT,
    HALTED,
    Memory,
    send_work,
    work,
)
from cloudload.loading.workers.worker_plan import NextPhase, WorkerPlan
from cloudload.rows import preload
from cloudload.stats import PACK
from cloudload.system import activity, child_processes, machine, stopwatch, temp_files

logger = logging.getLogger("cloudload.workers")
Blocks = Generator[list[Block], NextPhase | None, None]
"""A generator that repeatedly yields one block from each worker.

Sending it a `NextPhase` ends the current phase and drops its remaining blocks. The generator then
yields the first blocks of the next phase."""

# starting an interpreter and importing torch takes several seconds
_START_GRACE_S = 25.0
_STARTS, START_S, END_S, _LOOK_EVERY_S, SWEEP_S = 3, 60.0, 8.0, 1.0, 1.0

_CRASHES = (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGILL, -signal.SIGFPE)


def inline_blocks(plan: WorkerPlan, counts: WorkerCounts) -> Blocks:
    """Yield blocks from workers that run in this process."""
    indices = range(plan.share.num_workers)
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(contextlib.closing(Worker(plan, index, counts.of(index))))
            for index in indices
        ]
        while True:
            streams, change = [worker.read_blocks(plan) for worker in workers], None
            while change is None:
                with stopwatch(counts.times(0), PACK):
                    blocks = [next(stream) for stream in streams]
                counts.tokens(0)[0] += sum(block.num_tokens for block in blocks)
                change = yield blocks
            plan = plan.enter(change)
            for index, worker in enumerate(workers):
                worker.receive(plan.part_of(change, index))


def process_blocks(plan: WorkerPlan, counts: WorkerCounts, closing: threading.Event) -> Blocks:
    """Yield blocks from worker processes, which run ahead of the training loop.

    The tokens of a block are valid until the next blocks are requested. Once another thread sets
    `closing`, a request that waits for blocks raises `WorkerError`.
    """
    memory = Memory.of(plan, counts)
    with running_workers(plan, memory, closing) as workers:
        dropped: list[list[Block]] = [[] for _ in workers]
        while True:
            received = [unpack_block(worker.receive(), memory.blocks) for worker in workers]
            change = yield list(map(add_reports, received, dropped))
            dropped = [[] for _ in workers]
            if change is not None:
                plan = plan.enter(change)
                dropped = _halt(workers, memory)
                for index, worker in enumerate(workers):
                    worker.enter(plan.part_of(change, index))


def _halt(workers: Sequence[WorkerProcess], memory: Memory) -> list[list[Block]]:
    """Wait until workers have halted. Return the dropped blocks of each worker."""
    for worker in workers:
        worker.ask_to_halt()
    return [
        [unpack_block(block, memory.blocks) for block in worker.await_halt()] for worker in workers
    ]


_processes = weakref.WeakSet[BaseProcess]()


def _disown() -> None:
    """Forget the parent's workers, which `multiprocessing` would terminate at this child's exit."""
    process._children.difference_update(_processes)  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_disown)


class WorkerProcess:
    """The training process's handle to one worker process.

    `index` is the worker's index in its rank. Once another thread sets `closing`, `receive` raises
    `WorkerError`.
    """

    def __init__(
        self, plan: WorkerPlan, index: int, memory: Memory, closing: threading.Event
    ) -> None:
        self._plan, self._index, self._activities = plan, index, memory.activities
        self._closing = closing
        self._arguments = (index, memory)
        self._context: Any = multiprocessing.get_context(plan.delivery.start_method)
        self._is_forked = self._context.get_start_method() == "fork"
        if not self._is_forked and (script := child_processes.find_missing_script()):
            raise WorkerError(
                "worker processes cannot start, because they cannot import the program from "
                f"{script}, which is not a file. Save the program as a file, use "
                "start_method='fork', or use num_workers=0"
            )
        self._has_block, self._owner = False, os.getpid()
        self._begin()

    @property
    def is_own(self) -> bool:
        """Whether this process started the worker."""
        return os.getpid() == self._owner

    def describe(self) -> str:
        """Describe the worker and its current activity, for a message."""
        pid, doing_now = self._process.pid, self._activities.read_text(self._index)
        now = "stopped (SIGSTOP)" if pid is not None and machine.is_stopped(pid) else doing_now
        return f"worker {self._index} (process {pid}) is {now}{self._describe_other(now)}"

    def _describe_other(self, now: str) -> str:
        """If this worker waits for another process, describe a downloading worker, if any."""
        if not now.startswith("waiting for another process") or "downloading" in now:
            return ""
        for index in range(self._activities.num_slots):
            if "downloading" in (text := self._activities.read_text(index)):
                return f"; worker {index} is {text}"
        return ""

    def _begin(self) -> None:
        self._activities.write_text(self._index, "starting")
        self._connection, theirs = self._context.Pipe()
        plan = self._plan if self._is_forked else None
        if plan and plan.recipe.tokenizes:
            preload(plan.recipe.tokenizer.json, plan.inputs.backend.name)
        self._process = self._context.Process(
            target=work, args=(*self._arguments, theirs, plan), daemon=True
        )
        _processes.add(self._process)
        try:
            child_processes.start_child(self._process)
        except OSError as error:
            raise WorkerError(
                f"cannot start a worker process: {error}. {child_processes.GUARD_ADVICE}"
            ) from error
        # after this, only the worker has the other end, so its death closes the connection
        theirs.close()

    def await_start(self) -> None:
        """Send the plan, unless the process is forked, and wait until it reports that it started.

        A forked child has one thread, but copies of the locks of all threads. If a lock was held
        during the fork, the child may wait for it forever (python/cpython#84559). A forked child
        that does not report within 60 s is therefore replaced. Raises `WorkerError` after three
        attempts, or if the process dies.
        """
        with activity.doing(self.describe, grace_s=_START_GRACE_S):
            self._await_start()

    def _await_start(self) -> None:
        if not self._is_forked:
            self._send_work(self._plan)
            self._receive(child_processes.GUARD_ADVICE)
            return
        for _ in range(_STARTS):
            if self._connection.poll(START_S):
                self._receive()
                return
            logger.warning(
                "worker process %s did not start within %d s, so another one is being started",
                self._process.pid,
                START_S,
            )
            end_workers([self], self._plan.inputs.cache_root)
            self._begin()
        raise WorkerError(
            f"a worker process did not start in {_STARTS} attempts of {START_S:.0f} s each. Use "
            "start_method='spawn', or fewer workers"
        )

    def receive(self) -> PackedBlock:
        """Receive the next block. This invalidates the previous block.

        Raises the `CloudloadError` that the worker raised, or `WorkerError` if it raised any other
        error or died.
        """
        if self._has_block:
            self._send_bytes(FREE)
        block = self._receive_block()
        assert block is not None, "it was not asked to halt"
        self._has_block = True
        return block

    def ask_to_halt(self) -> None:
        """Ask the worker to stop making blocks, and return immediately."""
        self._send_bytes(HALT)

    def await_halt(self) -> list[PackedBlock]:
        """Wait until the worker has halted. Return the blocks that were not received.

        These blocks are valid until `enter`. Raises the errors of `receive`.
        """
        self._has_block, dropped = False, []
        while (block := self._receive_block()) is not None:
            dropped.append(block)
        return dropped

    def enter(self, change: NextPhase) -> None:
        """Send a halted worker its part of the next phase, so that it continues.

        Raises the errors of `send_work`. If the worker dies, the next `receive` raises the error.
        """
        with activity.doing(self.describe):
            self._send_work(change)

    def _send_work(self, work: Any) -> None:
        """Send work, or return if the worker dies. Raises the errors of `send_work`."""
        errors: list[BaseException] = []

        def send() -> None:
            try:
                send_work(self._connection, work)
            except ConnectionError:
                pass
            except BaseException as error:
                errors.append(error)

        # send in a thread, because a dead worker's child may keep the socket open without reading
        thread = threading.Thread(target=send, name="cloudload-send", daemon=True)
        thread.start()
        while thread.is_alive() and self._process.is_alive():
            thread.join(_LOOK_EVERY_S)
        if errors:
            raise errors[0]

    def _send_bytes(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # the worker has exited, and `_receive` reports why
            self._connection.send_bytes(message)

    def _receive_block(self) -> PackedBlock | None:
        """Receive the next block, or None if the worker has halted."""
        item = self._receive()
        if isinstance(item, CloudloadError):
            raise item
        assert item == HALTED or isinstance(item, PackedBlock)
        return item if isinstance(item, PackedBlock) else None

    def _receive(self, advice: str = "Resume from the last state") -> Any:
        with contextlib.suppress(EOFError, OSError), activity.doing(self.describe):
            # a child of the worker may keep the stream open after the worker's death
            while not self._connection.poll(_LOOK_EVERY_S) and self._process.is_alive():
                if self._closing.is_set():
                    raise WorkerError("another thread closed the loader during this iteration")
            if self._connection.poll():
                return self._connection.recv()
        self._process.join(END_S)
        end = _describe_end(self._process.exitcode)
        raise WorkerError(f"a worker process failed: process {self._process.pid} {end}. {advice}")

    def ask_to_end(self) -> None:
        """Ask the worker to exit, and return immediately."""
        self._process.terminate()

    def end(self, deadline: float) -> bool:
        """Wait until `deadline` (`time.monotonic` seconds) for the worker to exit, then kill it.

        Returns True if a signal killed the worker. Its temporary files then remain.
        """
        self._process.join(max(0.0, deadline - time.monotonic()))
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._connection.close()
        return (self._process.exitcode or 0) < 0


@contextlib.contextmanager
def running_workers(
    plan: WorkerPlan, memory: Memory, closing: threading.Event
) -> Iterator[Sequence[WorkerProcess]]:
    """Start the workers of a plan, and stop them after the block.

    `closing` is as in `WorkerProcess`. Raises `WorkerError` if this process may have no children.
    """
    if multiprocessing.current_process().daemon:
        raise WorkerError(
            "this process cannot start worker processes, because it is a daemonic process itself, "
            "such as a worker of a DataLoader or a Pool. Use num_workers=0"
        )
    workers: list[WorkerProcess] = []
    try:
        with activity.doing("starting worker processes", grace_s=_START_GRACE_S):
            for index in range(plan.share.num_workers):
                workers.append(WorkerProcess(plan, index, memory, closing))
        for worker in workers:
            worker.await_start()
        yield workers
    finally:
        # stop the workers now, not when they are garbage collected, because the next iteration
        # must not fork while they run
        end_workers(workers, plan.inputs.cache_root)


def end_workers(workers: Sequence[WorkerProcess], cache_root: Path) -> None:
    """Stop workers in parallel. Workers that are still alive after 8 seconds are killed.

    Removes the temporary files of killed workers from the cache. If that takes more than a second,
    a thread continues it. Ignores workers that a parent of this process started.
    """
    workers = [worker for worker in workers if worker.is_own]
    for worker in workers:
        worker.ask_to_end()
    deadline = time.monotonic() + END_S
    were_killed = [worker.end(deadline) for worker in workers]
    if any(were_killed):
        thread = threading.Thread(
            target=_sweep, args=(cache_root,), name="cloudload-sweep", daemon=True
        )
        thread.start()
        thread.join(SWEEP_S)  # a large cache must not delay the error


def _sweep(cache_root: Path) -> None:
    with contextlib.suppress(OSError, temp_files.ProcessEndsError):
        cache_folder.sweep(cache_root)


def _describe_end(code: int | None) -> str:
    """Describe how a process with this exit code ended, with advice for a crash or SIGKILL."""
    if code == child_processes.SIGTERM_STATUS:
        return "was terminated by SIGTERM"
    if code is None:
        return f"closed its connection, but did not exit within {END_S:.0f} s"
    if code >= 0:
        return f"exited with status {code}"
    names = {int(each): each.name for each in signal.Signals}
    what = f"was killed by {names.get(-code, f'signal {-code}')}"
    if code in _CRASHES:
        what += (
            ", because native code crashed, perhaps in the transform or the tokenizer. To find the "
            "cause, use tokenizer_backend='hf', or num_workers=0 with python -X faulthandler"
        )
    if code == -signal.SIGKILL:
        what += (
            ", probably because the machine or container ran out of memory. Check the kernel log, "
            "and use fewer workers"
        )
    return what
