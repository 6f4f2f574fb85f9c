"""Find the steps that read a given document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloudload.batch import Batch
from cloudload.errors import DatasetError
from cloudload.loader import CloudLoader
from cloudload.order.canonical import positions_of
from cloudload.packing.tables import CURSOR_ORDINAL, SPAN_EPOCH, SPAN_ROW, SPAN_STREAM
from cloudload.provenance.state_run import Run, open_lane
from cloudload.workers.plan import Plan
from cloudload.workers.trace import Tracer

_ROWS_AT_ONCE = 16
_MISSED_EPOCHS = 3


@dataclass(frozen=True)
class Occurrence:
    """Tokens [start, stop) of a document in a row of a step."""

    step: int
    """The step, from 1."""
    row: int
    """The index of the row within the global batch, from 0."""
    stream: str
    """The name of the stream."""
    epoch: int
    """The epoch, from 0."""
    sample: int
    """The index of the sample within its stream, from 0."""
    start: int
    """The index of the first token within the document."""
    stop: int
    """One past the index of the last token."""


def find_samples(run: Run, identifier: str, **delivery: Any) -> list[tuple[int, int]]:
    """Return the (stream, sample) indices of every sample whose column `id` is `identifier`.

    Compares ids as strings. Reads all shards. `delivery` are options of `DeliveryConfig`. Raises
    `DatasetError` if no sample has this id, and the errors of `Run.loader`.
    """
    with run.loader(batch_size=1, dp_rank=0, dp_world_size=1, **delivery) as loader:
        tracer = Tracer(loader.plan())
        found = tracer.find_id(identifier)
        tracer.close()
    if not found:
        raise DatasetError(
            f"no sample has {identifier!r} in its column 'id'. Check the id, or pass the sample's "
            "index (--sample)"
        )
    return found


def find_document(
    run: Run, stream: int, sample: int, last_step: int, **delivery: Any
) -> Iterator[Occurrence]:
    """Yield each occurrence of a sample after the state, up to and including `last_step`.

    An endless run is searched epoch by epoch, until 3 epochs in a row have no occurrence. `stream`
    and `sample` are indices, from 0. `delivery` are options of `DeliveryConfig`. Raises
    `ValueError` for a `last_step` that is not after the state, and for a stream or sample that does
    not exist. Also raises the errors of `Run.loader`.
    """
    last_row = run.rows_of_step(last_step)[-1]
    with run.loader(batch_size=run.global_batch, dp_rank=0, dp_world_size=1, **delivery) as loader:
        plan = loader.plan()
        _check_sample(plan, stream, sample)
        if run.saved.fields["epochs"] is not None:
            yield from _occurrences(run, loader, (stream, sample), None, last_row)
            return
        # a residue may still hold documents of the previous epoch
        epoch, missed = max(0, _first_epoch(plan, stream) - 1), 0
        # lanes are rarely one epoch apart, and two only if there are fewer documents than lanes, so
        # if every epoch reads the document, 3 in a row without an occurrence are past `last_row`
        while missed < _MISSED_EPOCHS:
            found: list[Occurrence] = []
            for lane in _lanes_of(plan, stream, sample, epoch):
                with open_lane(run, lane, _ROWS_AT_ONCE, delivery) as of_lane:
                    found += _occurrences(run, of_lane, (stream, sample), epoch, last_row)
            yield from sorted(found, key=lambda occurrence: (occurrence.step, occurrence.row))
            missed = 0 if found else missed + 1
            epoch += 1


def _occurrences(
    run: Run, loader: CloudLoader, document: tuple[int, int], epoch: int | None, last_row: int
) -> Iterator[Occurrence]:
    """Yield each occurrence of a document in rows up to `last_row`.

    `document` is (stream, sample). Yields occurrences in all epochs if `epoch` is None.
    """
    for batch in loader:
        rows = batch.rows[batch.spans[:, SPAN_ROW]]
        for (_, stream, of_epoch, sample, start, stop), row in zip(
            batch.spans.tolist(), rows.tolist(), strict=True
        ):
            if (stream, sample) == document and row <= last_row and epoch in (None, of_epoch):
                step = run.step_of_row(row)
                place = row - run.rows_of_step(step).start
                yield Occurrence(step, place, run.labels[stream], of_epoch, sample, start, stop)
        if batch.first_row > last_row or (
            epoch is not None and _is_past(batch, document[0], epoch)
        ):
            return


def _check_sample(plan: Plan, stream: int, sample: int) -> None:
    """Raise `ValueError` if the stream or the sample does not exist."""
    sizes = np.diff(plan.recipe.corpus.stream_starts).tolist()
    if not 0 <= stream < len(sizes):
        raise ValueError(f"there is no stream {stream}: the run has streams 0 to {len(sizes) - 1}")
    if not 0 <= sample < sizes[stream]:
        raise ValueError(
            f"there is no sample {sample}: {plan.recipe.labels[stream]} has samples 0 to "
            f"{sizes[stream] - 1}"
        )


def _component_of(plan: Plan, stream: int) -> int:
    return next(
        place
        for place, component in enumerate(plan.recipe.components)
        if stream in component.streams
    )


def _first_epoch(plan: Plan, stream: int) -> int:
    """The earliest current epoch among the lanes of a stream's component."""
    place = _component_of(plan, stream)
    lanes = plan.recipe.components[place].lanes
    return min(
        lanes.epoch_position(lane, ordinal)[0]
        for lane, ordinal in enumerate(plan.position.cursors[place, :, CURSOR_ORDINAL].tolist())
    )


def _lanes_of(plan: Plan, stream: int, sample: int, epoch: int) -> list[int]:
    """The indices of the lanes that read a sample of a stream in an epoch."""
    component = plan.recipe.components[_component_of(plan, stream)]
    within = int(plan.recipe.corpus.stream_starts[stream]) + sample - component.first_sample
    positions = positions_of(component.orders(plan.cache_root)(epoch), within)
    first_positions = (epoch * component.lanes.stride + positions) % plan.num_lanes
    lanes: list[int] = np.flatnonzero(
        np.isin(component.lanes.first_positions, first_positions)
    ).tolist()
    return lanes


def _is_past(batch: Batch, stream: int, epoch: int) -> bool:
    """Whether a lane's batch has spans of the stream, all of them from epochs after `epoch`."""
    of_stream = batch.spans[batch.spans[:, SPAN_STREAM] == stream]
    return len(of_stream) > 0 and bool((of_stream[:, SPAN_EPOCH] > epoch).all())
