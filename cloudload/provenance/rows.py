"""List the documents in given steps, or in one row of each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cloudload.batch import Batch
from cloudload.loader import CloudLoader
from cloudload.provenance.state_run import Run, open_lane
from cloudload.workers.trace import TracedSpan


def trace_steps(
    run: Run, steps: range, row: int | None = None, **delivery: Any
) -> Iterator[tuple[int, list[TracedSpan]]]:
    """Yield (step, spans) for each of `steps`, or fewer if the data ends first.

    `steps` must be consecutive. With `row` (from 0), yields only the spans in that row of the
    global batch. In an endless run, this reads one lane per step. `delivery` are options of
    `DeliveryConfig`. Raises `ValueError` for a row that a step does not have, and for a step that
    is not after the state. Also raises the errors of `Run.loader`.
    """
    for step, loader, batch, place in read_steps(run, steps, row, delivery):
        yield step, loader.trace(batch, place)


def read_steps(
    run: Run, steps: range, row: int | None, delivery: Mapping[str, Any]
) -> Iterator[tuple[int, CloudLoader, Batch, int | None]]:
    """Yield (step, loader, batch, row within the batch) for each of `steps`, as `trace_steps` does.

    The row is None if `row` is. Each batch is valid until the next one is requested.
    """
    if row is not None and not 0 <= row < run.global_batch:
        raise ValueError(f"row is {row}. Use 0 to {run.global_batch - 1}, the rows of a step")
    if row is None or run.arguments["epochs"] is not None:
        yield from _read_in_turn(run, steps, row, delivery)
        return
    for step in steps:
        number = run.rows_of_step(step)[row]
        with open_lane(run, number % run.saved.layout.num_lanes, 1, delivery) as loader:
            loader.seek(number)
            yield step, loader, next(iter(loader)), 0


def _read_in_turn(
    run: Run, steps: range, row: int | None, delivery: Mapping[str, Any]
) -> Iterator[tuple[int, CloudLoader, Batch, int | None]]:
    if not steps:
        return
    first = run.rows_of_step(steps[0]).start
    with run.loader(batch_size=run.global_batch, dp_rank=0, dp_world_size=1, **delivery) as loader:
        loader.seek(first)
        for step, batch in zip(steps, loader, strict=False):
            yield step, loader, batch, row
