"""Yield one block from each worker repeatedly, from workers in this process or in others.

worker 0    [batch 0] [batches 1 and 2] [batches 3 to 6] …
worker 1    [batch 0] [batches 1 and 2] [batches 3 to 6] …
items          first      second             third
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Sequence

from cloudload.data.cache.counters import WorkerCounts
from cloudload.loading.workers.block import Block, add_reports
from cloudload.loading.workers.plan import NextPhase, Plan
from cloudload.loading.workers.processes import WorkerProcess, running_workers
from cloudload.loading.workers.transport import unpack_block
from cloudload.loading.workers.worker import Worker
from cloudload.loading.workers.worker_main import Memory
from cloudload.stats import PACK
from cloudload.system.stage_times import stopwatch

Blocks = Generator[list[Block], NextPhase | None, None]
"""A generator that repeatedly yields one block from each worker.

Sending it a `NextPhase` ends the current phase and drops its remaining blocks. The generator then
yields the first blocks of the next phase."""


def inline_blocks(plan: Plan, counts: WorkerCounts) -> Blocks:
    """Yield blocks from workers that run in this process."""
    numbers = range(plan.num_workers)
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(contextlib.closing(Worker(plan, number, counts.of(number))))
            for number in numbers
        ]
        while True:
            streams, change = [worker.read_blocks(plan) for worker in workers], None
            while change is None:
                with stopwatch(counts.times(0), PACK):
                    blocks = [next(stream) for stream in streams]
                counts.tokens(0)[0] += sum(block.num_tokens for block in blocks)
                change = yield blocks
            plan = plan.enter(change)
            for number, worker in enumerate(workers):
                worker.receive(plan.part_of(change, number))


def process_blocks(plan: Plan, counts: WorkerCounts, closing: threading.Event) -> Blocks:
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
                for number, worker in enumerate(workers):
                    worker.enter(plan.part_of(change, number))


def _halt(workers: Sequence[WorkerProcess], memory: Memory) -> list[list[Block]]:
    """Wait until workers have halted. Return the dropped blocks of each worker."""
    for worker in workers:
        worker.ask_to_halt()
    return [
        [unpack_block(block, memory.blocks) for block in worker.await_halt()] for worker in workers
    ]
