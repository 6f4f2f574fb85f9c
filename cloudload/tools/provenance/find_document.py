"""Find the steps and rows that read a given document."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloudload.config import alone
from cloudload.errors import DatasetError
from cloudload.loading import Batch, CloudLoader
from cloudload.order import positions_of
from cloudload.rows import residue_spans, tables
from cloudload.run import Component, Position, Recipe, RunInputs, find_spans
from cloudload.tools.provenance.state_run import Run, open_lane

_ROWS_AT_ONCE = 16
_MARGIN_DOCUMENTS = 64


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

    def describe(self) -> Iterator[str]:
        """Yield the occurrence as a line of text."""
        yield (
            f"step {self.step:,}  row {self.row}  {self.stream}  epoch {self.epoch}  "
            f"sample {self.sample}  tokens {self.start}:{self.stop}"
        )


def find_samples(run: Run, identifier: str, **delivery: Any) -> list[tuple[int, int]]:
    """Return the (stream, sample) indices of every sample whose column `id` is `identifier`.

    Compares IDs as strings. Reads all shards. `delivery` takes options of `DeliveryConfig`. Raises
    `DatasetError` if no sample has this ID, and the errors of `Run.loader`.
    """
    with run.loader(**delivery, **alone()) as loader:
        found = loader.open_tracer().find_id(identifier)
    if not found:
        raise DatasetError(
            f"no sample has {identifier!r} in its column 'id'. Check the ID, or pass the sample's "
            "index (--sample)"
        )
    return found


def explain_absence(run: Run, stream: int, sample: int, **delivery: Any) -> str | None:
    """Return why no row of a run has a sample, or None if nothing leaves the sample out.

    `stream` and `sample` are indices, from 0. `delivery` takes options of `DeliveryConfig`. Raises
    `DatasetError` if the sample cannot be read, and the errors of `Run.loader`.
    """
    with run.loader(**delivery, **alone()) as loader:
        return loader.open_tracer().explain_absence(stream, sample)


def find_document(
    run: Run, stream: int, sample: int, last_step: int, *, quick: bool = False, **delivery: Any
) -> Iterator[Occurrence]:
    """Yield each occurrence of a sample after the state, up to and including `last_step`.

    With token lengths, this reads no data, unless the state is in the tail. Without them, it reads
    every row up to `last_step`. `stream` and `sample` are indices, from 0. `delivery` takes options
    of `DeliveryConfig`. Raises `ValueError` for a `last_step` that is not after the state, and for
    a stream or sample that does not exist. Also raises the errors of `Run.loader`.

    With `quick` and without lengths, in an endless run with at least one document per lane and
    epoch, it reads only the lanes that probably contain the sample, and yields epoch by epoch. It
    misses occurrences in lanes that advance by more than twice as many epochs as the fastest lane
    that it reads, plus 64 documents.
    """
    last_row = run.rows_of_step(last_step)[-1]
    with run.loader(**delivery, **alone(run.global_batch)) as loader:
        plan = loader.worker_plan()
        recipe, document = plan.recipe, (stream, sample)
        _check_sample(recipe, stream, sample)
        found = _find_by_lengths(run, plan.inputs, plan.position, document, last_row)
        if found is not None:
            yield from found
            return
        lanes = recipe.components[_component_of(recipe, stream)].lanes
        if quick and lanes.epochs is None and lanes.num_positions >= lanes.num_lanes:
            inputs, position = plan.inputs, plan.position
            yield from _find_in_lanes(run, inputs, position, document, last_row, delivery=delivery)
            return
        for batch in _batches_until(loader, last_row):
            yield from _occurrences(run, batch, document, last_row)


def _find_by_lengths(
    run: Run, inputs: RunInputs, position: Position, document: tuple[int, int], last_row: int
) -> Iterator[Occurrence] | None:
    """Return the occurrences of a document, (stream, sample), up to `last_row`.

    Returns None if token lengths do not determine them.
    """
    if inputs.lengths is None or position.is_in_tail:
        return None
    if position.table_rows < position.rows:
        return None
    recipe, (stream, sample) = inputs.recipe, document
    index = _component_of(recipe, stream)
    within = _sample_of_component(recipe, stream, sample)
    spans = find_spans(inputs.open_run_lengths(), position, index, within, last_row + 1)
    return (
        _occurrence_of(run, each.row, (stream, each.epoch, sample, each.start, each.stop))
        for each in spans
    )


def _occurrence_of(run: Run, row: int, span: Sequence[int]) -> Occurrence:
    """Return a span, as (stream, epoch, sample, start, stop), in a row of the run."""
    step, (stream, *place) = run.step_of_row(row), span
    return Occurrence(step, row - run.rows_of_step(step).start, run.labels[stream], *place)


def _find_in_lanes(
    run: Run,
    inputs: RunInputs,
    position: Position,
    document: tuple[int, int],
    last_row: int,
    *,
    delivery: Mapping[str, Any],
) -> Iterator[Occurrence]:
    """Yield a document's occurrences up to `last_row`, epoch by epoch; see `find_document`.

    `document` is (stream, sample). Each lane that may contain the document is read once.
    """
    index = _component_of(inputs.recipe, document[0])
    component = inputs.recipe.components[index]
    num_lanes, num_positions = component.lanes.num_lanes, component.lanes.num_positions
    epoch, starts = _current_epochs(component, position, index)
    last_epoch = max(starts)
    margin = 1 + _MARGIN_DOCUMENTS * num_lanes // num_positions
    ends: dict[int, int] = {}
    found: defaultdict[int, list[Occurrence]] = defaultdict(list)
    while epoch <= last_epoch:
        # in an epoch without the document, read one lane to find how far lanes advance
        for lane in _lanes_of(inputs, document, epoch) or [epoch % num_lanes]:
            if lane in ends:
                continue
            ends[lane] = starts[lane]
            with open_lane(run, lane, _ROWS_AT_ONCE, delivery) as loader:
                for batch in _batches_until(loader, last_row):
                    ends[lane] = max(ends[lane], _last_epoch(batch, component.streams))
                    for occurrence in _occurrences(run, batch, document, last_row):
                        found[occurrence.epoch].append(occurrence)
        yield from sorted(found.pop(epoch, []), key=lambda each: (each.step, each.row))
        advance = max(end - starts[lane] for lane, end in ends.items())
        # lanes that were not read may advance further than those read, so allow twice as much
        last_epoch = max(starts) + 2 * advance + margin
        if len(ends) == num_lanes:
            last_epoch = max(ends.values())
        epoch += 1


def _batches_until(loader: CloudLoader, last_row: int) -> Iterator[Batch]:
    """Yield the batches of a loader, up to the one that reaches `last_row`."""
    for batch in loader:
        yield batch
        if batch.rows[-1] >= last_row:
            return


def _occurrences(
    run: Run, batch: Batch, document: tuple[int, int], last_row: int
) -> Iterator[Occurrence]:
    """Yield each occurrence of a document, (stream, sample), in a batch's rows up to `last_row`."""
    rows, spans = batch.rows, batch.spans
    is_found = (spans[:, [tables.SPAN_STREAM, tables.SPAN_SAMPLE]] == document).all(1)
    for row, *span in spans[is_found].tolist():
        if rows[row] <= last_row:
            yield _occurrence_of(run, int(rows[row]), span)


def _check_sample(recipe: Recipe, stream: int, sample: int) -> None:
    """Raise `ValueError` if the stream or the sample does not exist."""
    sizes = np.diff(recipe.corpus.stream_starts).tolist()
    if not 0 <= stream < len(sizes):
        raise ValueError(
            f"the run has no stream {stream}. Use a stream from 0 to {len(sizes) - 1} (--sample "
            "STREAM:N)"
        )
    if not 0 <= sample < sizes[stream]:
        raise ValueError(
            f"{recipe.labels[stream]} has no sample {sample}. Use a sample from 0 to "
            f"{sizes[stream] - 1} (--sample)"
        )


def _component_of(recipe: Recipe, stream: int) -> int:
    return next(
        index for index, component in enumerate(recipe.components) if stream in component.streams
    )


def _current_epochs(component: Component, position: Position, index: int) -> tuple[int, list[int]]:
    """Return the first epoch with a document that is not yet in a row, and each lane's epoch.

    `index` is the component's index.
    """
    lanes, ordinals = component.lanes, position.cursors[index, :, tables.CURSOR_ORDINAL].tolist()
    current = [lanes.epoch_position(lane, ordinal)[0] for lane, ordinal in enumerate(ordinals)]
    waiting = [
        lanes.epoch_position(lane, document)[0]
        for lane, ordinal in enumerate(ordinals)
        for document, _, _ in residue_spans(position.residue(index, lane), ordinal)
    ]
    return min(current + waiting), current


def _lanes_of(inputs: RunInputs, document: tuple[int, int], epoch: int) -> list[int]:
    """Return the lanes that read a document, (stream, sample), in an epoch with at least one
    document per lane."""
    recipe, (stream, sample) = inputs.recipe, document
    component = recipe.components[_component_of(recipe, stream)]
    within = _sample_of_component(recipe, stream, sample)
    positions = positions_of(component.orders(inputs.cache_root)(epoch), within)
    lanes: list[int] = np.flatnonzero(
        np.isin(component.lanes.first_positions, positions % recipe.num_lanes)
    ).tolist()
    return lanes


def _sample_of_component(recipe: Recipe, stream: int, sample: int) -> int:
    """Return the index of a stream's sample among the samples of its component."""
    first = recipe.components[_component_of(recipe, stream)].first_sample
    return int(recipe.corpus.stream_starts[stream]) + sample - first


def _last_epoch(batch: Batch, streams: range) -> int:
    """Return the latest epoch of the documents from `streams` in a batch; -1 if there are none."""
    is_own = np.isin(batch.spans[:, tables.SPAN_STREAM], streams)
    return int(batch.spans[is_own, tables.SPAN_EPOCH].max(initial=-1))
