"""The blocks of each batch, from worker processes or from this one.

worker 0    [block of batch 0] [block of batches 1 to 16] …        as many batches as every other worker's
worker 1    [block of batch 0] [block of batches 1 to 16] …
yielded     [block of worker 0, block of worker 1], the same two again for each of their batches

Blocks cross in a ring of shared memory; what is pickled is where they lie.
"""

from __future__ import annotations

import itertools
import logging
import math
import multiprocessing
import multiprocessing.process
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Semaphore
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils import signal_handling

from cloudload.errors import CloudloadError, WorkerError
from cloudload.lifeline import tie_to_parent
from cloudload.pack import SPAN_FIELDS, split_residues
from cloudload.plan import Block, Plan
from cloudload.pool import allow_descriptors
from cloudload.ring import Ring
from cloudload.stats import COUNTS
from cloudload.tokenizer import Tokens
from cloudload.worker import read_blocks

logger = logging.getLogger(__name__)

Workers = set[multiprocessing.process.BaseProcess]

_STARTS, _START_S, _END_S = 3, 60.0, 3.0
# beside the tokens of a row, in a slot: its spans, cursor, and residue
_EXTRA_BYTES_PER_ROW = 1024


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
    context = multiprocessing.get_context(plan.delivery.start_method)
    started = context.Semaphore(0)
    prefetch_factor = max(2, -(-plan.delivery.prefetch_batches // plan.batches_at_once))
    # a worker is asked for that many blocks beyond the one that is being read
    slots_each = prefetch_factor + 1
    ring = Ring(plan.num_workers * slots_each, _slot_bytes(plan))
    loader: DataLoader[Any] = DataLoader(
        _BlockDataset(plan, started, ring, slots_each),
        batch_size=None,
        num_workers=plan.num_workers,
        prefetch_factor=prefetch_factor,
        collate_fn=_as_it_is,
        multiprocessing_context=context,
        # of its own: the model's dropout must not depend on when workers start
        generator=torch.Generator(),
    )
    others = set(multiprocessing.active_children())
    received = _start(loader, started)
    workers = set(multiprocessing.active_children()) - others
    try:
        while True:
            yield from _by_batch([_unpack(_receive(received, workers), ring) for _ in range(plan.num_workers)])
    finally:
        # not left to the collector: the next iteration must not fork beside these
        _end(workers)
        getattr(received, "_shutdown_workers", lambda: None)()


def _end(workers: Workers) -> None:
    """End workers now: torch would wait, one after the other, until each looks for work, and who waits for the store does not."""
    for worker in workers:
        worker.terminate()
    deadline = time.monotonic() + _END_S
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
    for worker in workers:
        if worker.is_alive():
            worker.kill()


def _start(loader: DataLoader[Any], started: Semaphore) -> Iterator[Any]:
    """Worker processes that run.

    A fork is a child of one thread with the locks of all: now and then CPython's, or a library's, is held at that moment, and the
    child waits for it for ever (python/cpython#84559). Such a child has not said that it started; all are then started again.
    """
    for _ in range(_STARTS):
        others = set(multiprocessing.active_children())
        received = iter(loader)
        _keep_errors_in_place(received)
        if loader.multiprocessing_context.get_start_method() != "fork":
            return received
        if all(started.acquire(timeout=_START_S) for _ in range(loader.num_workers)):
            return received
        logger.warning("a worker process did not start within %d s; all are started again", _START_S)
        del received  # which first asks them to end, and no longer takes their death for an error
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()
        while started.acquire(block=False):
            pass
    raise WorkerError(f"worker processes did not start in {_STARTS} attempts. Use start_method='spawn', or fewer workers")


def _keep_errors_in_place(received: Any) -> None:
    """Learn of a worker's death where its block is asked for.

    torch tells of it by a signal handler, which raises wherever this process then is: in the midst of a training step.
    """
    signal_handling._remove_worker_pids(id(received))  # type: ignore[attr-defined]
    received._worker_pids_set = False


def _by_batch(blocks: list[Block]) -> Iterator[BatchParts]:
    return (BatchParts(blocks, number) for number in range(max(1, len(blocks[0].bounds) - 1)))


def _receive(received: Iterator[_Packed | CloudloadError], workers: Workers) -> _Packed:
    try:
        item = next(received)
    except Exception as error:
        what = str(error).strip()
        if "exited unexpectedly" in what:
            what = "; ".join(_describe_end(worker) for worker in workers if worker.exitcode is not None) or what
        raise WorkerError(f"a worker process failed: {what}. Resume from the last state") from error
    if isinstance(item, CloudloadError):
        raise item
    return item


def _describe_end(worker: multiprocessing.process.BaseProcess) -> str:
    code = worker.exitcode or 0
    if code >= 0:
        return f"process {worker.pid} has ended with status {code}"
    cause = f"process {worker.pid} was ended by {signal.Signals(-code).name}"
    if code == -signal.SIGKILL:
        cause += " (if nobody killed it, the machine ran out of memory: see its kernel log, and use fewer workers)"
    return cause


# ---------------------------------------------------------------- blocks in slots


@dataclass(frozen=True)
class _Packed:
    """Where a block lies: tokens at the start of a slot, and all else behind them. What did not fit comes along."""

    slot: int
    shape: tuple[int, int]
    size: int
    """Bytes of all else."""
    tokens: bytes | None = None
    rest: bytes | None = None


def _slot_bytes(plan: Plan) -> int:
    rows = plan.delivery.batch_size * plan.batches_at_once
    own = min(rows, -(-rows // plan.num_workers) * 5 // 4 + 1)
    return own * (4 * plan.recipe.config.seq_len + _EXTRA_BYTES_PER_ROW) + (1 << 14)


def _as_it_is(item: Any) -> Any:
    return item


class _Slots:
    """The slots of one worker, `first` and those after it."""

    def __init__(self, ring: Ring, first: int, count: int) -> None:
        self._ring, self._slots, self._number = ring, itertools.cycle(range(first, first + count)), first

    def new_tokens(self, num_rows: int, seq_len: int) -> Tokens:
        """The tokens of the next block: in the next slot, where they fit."""
        self._number = next(self._slots)
        if 4 * num_rows * seq_len > self._ring.slot_bytes:
            return np.empty((num_rows, seq_len), np.int32)
        return self._ring.array(self._number, np.int32, (num_rows, seq_len))

    def pack(self, block: Block) -> _Packed:
        """Put all else of the block behind its tokens."""
        sizes = np.array([len(residue) for residue in block.residues], np.int64)
        head = [len(block.bounds), len(block.lengths), len(block.cursors), len(block.spans), block.counts.shape[1], len(sizes)]
        arrays = [block.bounds, block.lengths, block.cursors, block.spans, block.counts, sizes]
        numbers = np.concatenate([np.array([*head, block.first_dry], np.int64), *(array.ravel() for array in arrays)])
        rest = b"".join([numbers.tobytes(), *block.residues])
        packed = _Packed(self._number, (block.tokens.shape[0], block.tokens.shape[1]), len(rest))
        used = block.tokens.nbytes
        if used > self._ring.slot_bytes:
            return replace(packed, tokens=block.tokens.tobytes(), rest=rest)
        if used + len(rest) > self._ring.slot_bytes:
            return replace(packed, rest=rest)
        self._ring.slot(self._number)[used : used + len(rest)] = rest
        return packed


_HEAD = 7


def _unpack(packed: _Packed, ring: Ring) -> Block:
    """The block; its tokens are the slot's, and good until the next block of the worker is asked for."""
    rows, seq_len = packed.shape
    rest = packed.rest
    if rest is None:
        used = 4 * rows * seq_len
        rest = bytes(ring.slot(packed.slot)[used : used + packed.size])
    if packed.tokens is None:
        tokens = ring.array(packed.slot, np.int32, packed.shape)
    else:
        tokens = np.frombuffer(packed.tokens, np.int32).reshape(packed.shape)
    num_bounds, num_lengths, num_cursors, num_spans, num_streams, num_sizes, first_dry = np.frombuffer(
        rest, np.int64, _HEAD
    ).tolist()
    counts_shape = (num_bounds - 1, num_streams, len(COUNTS))
    numbers = [num_bounds, num_lengths, 2 * num_cursors, num_spans * len(SPAN_FIELDS), math.prod(counts_shape), num_sizes]
    stops = list(itertools.accumulate(numbers, initial=_HEAD))
    body = np.frombuffer(rest, np.int64, stops[-1])
    bounds, lengths, cursors, spans, counts, sizes = (body[start:stop] for start, stop in itertools.pairwise(stops))
    return Block(
        bounds=bounds,
        tokens=tokens,
        lengths=lengths,
        cursors=cursors.reshape(-1, 2),
        residues=split_residues(rest[8 * stops[-1] :], sizes.tolist()),
        spans=spans.reshape(-1, len(SPAN_FIELDS)),
        counts=counts.reshape(counts_shape),
        first_dry=first_dry,
    )


class _BlockDataset(IterableDataset[Any]):
    def __init__(self, plan: Plan, started: Semaphore, ring: Ring, slots_each: int) -> None:
        self._plan, self._started, self._ring, self._slots_each = plan, started, ring, slots_each

    def __iter__(self) -> Iterator[_Packed | CloudloadError]:
        tie_to_parent()
        self._started.release()
        info = get_worker_info()
        worker = info.id if info else 0
        # one thread a worker: workers are how the work is spread
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        allow_descriptors()  # for as many mapped shards as the lanes are in
        slots = _Slots(self._ring, worker * self._slots_each, self._slots_each)
        try:
            yield from map(slots.pack, read_blocks(self._plan, worker, slots.new_tokens))
        except CloudloadError as error:
            # as a value: raised here, it would arrive with a traceback for its message
            yield type(error)(str(error))
