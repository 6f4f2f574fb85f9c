"""List the documents in given steps, in some rows of each step, or in given spans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cloudload.errors import DatasetError
from cloudload.loading.batch import Batch
from cloudload.loading.loader import CloudLoader
from cloudload.loading.workers.trace import TracedSpan
from cloudload.rows.packing.tables import SPAN_ROW, SPAN_SAMPLE, SPAN_STREAM
from cloudload.system.arrays import Ints
from cloudload.tools.provenance.state_run import Run, open_lane


def trace_steps(
    run: Run, steps: range, row: int | Sequence[int] | None = None, **delivery: Any
) -> Iterator[tuple[int, list[TracedSpan]]]:
    """Yield (step, spans) for each of `steps`, or fewer if the data ends first.

    `steps` must be consecutive. With `row` (from 0), yields only the spans in that row, or in these
    rows, of the global batch. In an endless run, tracing a single row reads only one lane per step.
    `delivery` takes options of `DeliveryConfig`. Raises `ValueError` for a row that a step does not
    have, and for a step that is not after the state. Also raises the errors of `Run.loader`.
    """
    rows = [row] if isinstance(row, int) else row
    only = check_rows(run, rows)
    for step, loader, batch, place in read_steps(run, steps, only, delivery):
        spans = batch.spans
        if place is not None:
            spans = spans[spans[:, SPAN_ROW] == place]
        elif rows is not None:
            spans = spans[np.isin(spans[:, SPAN_ROW], list(rows))]
        yield step, loader.open_tracer().trace(spans, batch.rows)


def check_rows(run: Run, rows: Sequence[int] | None) -> int | None:
    """Return the only row in `rows`, or None if `rows` does not have exactly one row.

    Raises `ValueError` for a row that a global batch does not have.
    """
    for row in rows or ():
        if not 0 <= row < run.global_batch:
            raise ValueError(
                f"row is {row}. Use a row of the step, from 0 to {run.global_batch - 1}"
            )
    return rows[0] if rows is not None and len(rows) == 1 else None


def read_steps(
    run: Run, steps: range, row: int | None, delivery: Mapping[str, Any]
) -> Iterator[tuple[int, CloudLoader, Batch, int | None]]:
    """Yield (step, loader, batch, row within the batch) for each of `steps`, as `trace_steps` does.

    The yielded row is None if `row` is None. Each batch is valid until the next one is requested.
    """
    if row is None or run.can_end:
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


def trace_documents(run: Run, spans: Ints, rows: Ints, **delivery: Any) -> list[TracedSpan]:
    """Read the documents of spans in any rows of a run, as `loader.trace` does for one batch.

    `spans` is int64 [spans, 6], with the columns of `Batch.spans`, and `rows`, int64 [rows], maps
    their rows to rows of the run. `delivery` takes options of `DeliveryConfig`. Raises
    `DatasetError` for a stream or sample that does not exist, and the errors of `Run.loader`.
    """
    with run.loader(batch_size=1, dp_rank=0, dp_world_size=1, **delivery) as loader:
        starts = loader.recipe.corpus.stream_starts
        streams = np.minimum(spans[:, SPAN_STREAM], len(starts) - 2)
        is_known = streams == spans[:, SPAN_STREAM]
        is_known &= spans[:, SPAN_SAMPLE] < np.diff(starts)[streams]
        if not is_known.all():
            stream, sample = spans[~is_known][0, [SPAN_STREAM, SPAN_SAMPLE]].tolist()
            raise DatasetError(
                f"the data has no sample {sample:,} in stream {stream}. Either this is not the "
                "data of the run, or shards are missing. Pass the data that the run read (--data)"
            )
        return loader.open_tracer().trace(spans, rows)
