"""The blocks of each batch, from worker processes or from this one.

worker 0    [block of batch 0] [blocks of batches 1 to 4] …        a list at a time, as long as every other worker's
worker 1    [block of batch 0] [blocks of batches 1 to 4] …
yielded     [block of worker 0, block of worker 1] for batch 0, then for batch 1, …
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.synchronize import Semaphore
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from cloudload.errors import CloudloadError, WorkerError
from cloudload.plan import Block, Plan
from cloudload.worker import read_blocks

logger = logging.getLogger(__name__)

_STARTS, _START_S = 3, 60.0
_Packed = tuple[torch.Tensor, list[Block]]


def inline_blocks(plan: Plan) -> Iterator[list[Block]]:
    """The blocks of each batch, made in this process."""
    workers = [read_blocks(plan, worker) for worker in range(plan.num_workers)]
    try:
        while True:
            yield from _by_batch([next(worker) for worker in workers])
    finally:
        for worker in workers:
            worker.close()  # type: ignore[attr-defined]


def process_blocks(plan: Plan) -> Iterator[list[Block]]:
    """The blocks of each batch, from worker processes that run ahead."""
    context = multiprocessing.get_context(plan.delivery.start_method)
    started = context.Semaphore(0)
    loader: DataLoader[Any] = DataLoader(
        _BlockDataset(plan, started),
        batch_size=None,
        num_workers=plan.num_workers,
        prefetch_factor=max(2, -(-plan.delivery.prefetch_batches // plan.batches_at_once)),
        multiprocessing_context=context,
        # of its own: the model's dropout must not depend on when workers start
        generator=torch.Generator(),
    )
    received = _start(loader, started)
    try:
        while True:
            yield from _by_batch([_unpack(*_receive(received)) for _ in range(plan.num_workers)])
    finally:
        # not left to the collector: the next iteration must not fork beside these
        getattr(received, "_shutdown_workers", lambda: None)()


def _start(loader: DataLoader[Any], started: Semaphore) -> Iterator[Any]:
    """Worker processes that run.

    A fork is a child of one thread with the locks of all: now and then CPython's, or a library's, is held at that moment, and the
    child waits for it for ever (python/cpython#84559). Such a child has not said that it started; all are then started again.
    """
    for _ in range(_STARTS):
        others = set(multiprocessing.active_children())
        received = iter(loader)
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


def explain(error: Exception) -> Exception:
    """The error to show for `error`: torch tells of a killed worker by a signal handler, wherever this process then is."""
    return _worker_error(error) if isinstance(error, RuntimeError) and "DataLoader worker" in str(error) else error


def _worker_error(error: Exception) -> WorkerError:
    return WorkerError(f"a worker process failed: {error}. Resume from the last state")


def _by_batch(by_worker: list[list[Block]]) -> Iterator[list[Block]]:
    return map(list, zip(*by_worker, strict=True))


def _receive(received: Iterator[_Packed | CloudloadError]) -> _Packed:
    try:
        item = next(received)
    except Exception as error:
        raise _worker_error(error) from error
    if isinstance(item, CloudloadError):
        raise item
    return item


def _pack(blocks: list[Block]) -> _Packed:
    """The tokens go through shared memory, all else through the pipe, in which it is little enough to go at once: a worker that
    is killed must not leave half a block there. A tensor for each array would cost more in descriptors than in bytes."""
    tokens = np.concatenate([block.tokens for block in blocks])
    return torch.from_numpy(tokens), [replace(block, tokens=block.tokens[:, :0]) for block in blocks]


def _unpack(tokens: torch.Tensor, blocks: list[Block]) -> list[Block]:
    ends = np.cumsum([len(block.tokens) for block in blocks])
    parts = np.split(tokens.numpy(), ends[:-1])
    return [replace(block, tokens=part) for block, part in zip(blocks, parts, strict=True)]


class _BlockDataset(IterableDataset[Any]):
    def __init__(self, plan: Plan, started: Semaphore) -> None:
        self._plan, self._started = plan, started

    def __iter__(self) -> Iterator[_Packed | CloudloadError]:
        self._started.release()
        info = get_worker_info()
        # one thread a worker: workers are how the work is spread
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        try:
            yield from map(_pack, read_blocks(self._plan, info.id if info else 0))
        except CloudloadError as error:
            # as a value: raised here, it would arrive with a traceback for its message
            yield type(error)(str(error))
