"""The blocks of each batch, from worker processes or from this one.

worker 0    [block of batch 0] [block of batches 1 to 16] …        as many batches as every other worker's
worker 1    [block of batch 0] [block of batches 1 to 16] …
yielded     [block of worker 0, block of worker 1], the same two again for each of their batches
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cloudload.plan import Block, Plan
from cloudload.slots import slot_bytes, unpack_block
from cloudload.system.shared_memory import Ring
from cloudload.worker import read_blocks
from cloudload.worker_processes import WorkerProcess, end_workers


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
    ring = Ring(plan.num_workers * slots_each, slot_bytes(plan))
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
