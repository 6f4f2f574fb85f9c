"""Rows and documents of a run, from one of its states and the data alone.

    trace_steps      state ─► loader ─► row 41,574,400 ─► its spans ─► ids, shards, text
    find_document    state ─► the lane that reads it ─► its rows ─► the steps that use them

A step counts global batches from the run's start: the first is step 1. The world that the run had
does not matter. Questions about a single lane read that lane alone, as the rank that would own it
in a world of one rank a lane.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cloudload.batch import Batch
from cloudload.config.stream import Stream
from cloudload.config.transform import Transform
from cloudload.errors import DatasetError, StreamChangedError
from cloudload.loader import CloudLoader
from cloudload.order.canonical import positions_of
from cloudload.packing.tables import CURSOR_ORDINAL, SPAN_EPOCH, SPAN_ROW, SPAN_STREAM
from cloudload.run.recipe import HELD_CONFIG_FIELDS
from cloudload.run.state import Saved, read_state
from cloudload.workers.plan import Plan
from cloudload.workers.trace import TracedSpan, Tracer

_ROWS_AT_ONCE = 16
_MISSED_EPOCHS = 3


@dataclass(frozen=True)
class Run:
    """A run, as a state describes it, and the arguments that make its loader."""

    state: Mapping[str, Any]
    arguments: Mapping[str, Any]
    global_batch: int

    @property
    def labels(self) -> list[str]:
        """The names of its streams."""
        return [stream.label for stream in self.arguments["data"]]

    @property
    def saved(self) -> Saved:
        """The state, read."""
        return read_state(self.state)

    def loader(self, **delivery: Any) -> CloudLoader:
        """A loader at the position of the state; `delivery` are options of `DeliveryConfig`."""
        loader = CloudLoader(**self.arguments, **delivery)
        loader.load_state_dict(self.state)
        return loader

    def rows_of_step(self, step: int) -> range:
        """The rows of the run in a step after the state's. Raises `ValueError` for an earlier
        one."""
        position = self.saved.position
        if step <= position.batches:
            raise ValueError(
                f"step {step:,} is before the state, which was saved after step "
                f"{position.batches:,}. Take an earlier one"
            )
        start = position.rows + (step - 1 - position.batches) * self.global_batch
        return range(start, start + self.global_batch)

    def step_of_row(self, row: int) -> int:
        """The step that has a row of the run."""
        position = self.saved.position
        return position.batches + 1 + (row - position.rows) // self.global_batch


@dataclass(frozen=True)
class Occurrence:
    """Tokens [start, stop) of a document in a row of a step."""

    step: int
    row: int
    """Counts within the global batch."""
    stream: str
    epoch: int
    sample: int
    start: int
    stop: int


def load_state(path: str | Path) -> dict[str, Any]:
    """The cloudload state in a file, JSON or written by `torch.save`, at any depth.

    Unpickles nothing. Raises `StreamChangedError` for a file that holds none.
    """
    try:
        content = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError):
        content = _load_checkpoint(path)
    found = _find_state(content)
    if found is None:
        raise StreamChangedError(f"{path} holds no cloudload state. Save loader.state_dict() in it")
    return found


def _load_checkpoint(path: str | Path) -> Any:
    import torch

    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        [reason, *_] = [*str(error).splitlines(), type(error).__name__]
        raise StreamChangedError(
            f"{path} is neither JSON nor a torch checkpoint that loads with weights_only "
            f"({reason[:200]})"
        ) from error


def _find_state(content: Any) -> dict[str, Any] | None:
    """The first state in nested mappings and lists, however deep, and though some may hold
    themselves."""
    stack, seen = [content], set()
    while stack:
        found = stack.pop()
        if id(found) in seen or not isinstance(found, Mapping | list | tuple):
            continue
        seen.add(id(found))
        if isinstance(found, Mapping) and {"cursors", "table_rows", "version"} <= found.keys():
            return dict(found)
        stack += reversed(list(found.values()) if isinstance(found, Mapping) else found)
    return None


def open_run(
    state: Mapping[str, Any],
    *,
    data: list[str] | None = None,
    tokenizer: Any = None,
    transform: Transform | str | None = None,
    global_batch: int | None = None,
) -> Run:
    """The run of a state.

    Give `data` (a URL for each stream) and `tokenizer` if they have moved, `transform` (a function
    or `module:function`) if the run had one, and `global_batch` (rows) if the state is from before
    the first batch. Raises `StreamChangedError` for a damaged state, and `ValueError` for what is
    missing.
    """
    saved = read_state(state)
    try:
        sources = json.loads(state["sources"])
        streams = [Stream(**stream) for stream in sources["streams"]]
        tokenizer = tokenizer or sources["tokenizer"]
        bos, eos, is_mixed = sources["bos"], sources["eos"], sources["is_mixed"]
    except (TypeError, KeyError, ValueError, AttributeError, RecursionError) as error:
        raise StreamChangedError(f"sources: {error!r:.200}. The state is damaged") from error
    if tokenizer is None:
        raise StreamChangedError("sources: the state does not say where the tokenizer was. Name it")
    if data is not None:
        if len(data) != len(streams):
            raise ValueError(
                f"{len(data)} locations for the {len(streams)} streams of the state. Name as many"
            )
        streams = [
            replace(stream, remote=url, split=None)
            for stream, url in zip(streams, data, strict=True)
        ]
    if isinstance(transform, str):
        transform = _import(transform)
    if transform is None and state["transform"] is not None:
        raise ValueError(f"the run had the transform {state['transform']!r}: name it")
    mixture = saved.mixture
    schedule = [
        (row, dict(zip(mixture.names, weights, strict=True))) for row, weights in mixture.schedule
    ]
    arguments = {
        **{name: state[name] for name in HELD_CONFIG_FIELDS},
        "data": streams,
        "tokenizer": tokenizer,
        "transform": transform,
        "seq_len": saved.seq_len,
        "bos": bos,
        "eos": eos,
        "schedule": schedule if is_mixed else None,
    }
    global_batch = global_batch or saved.position.global_batch
    if not global_batch:
        raise ValueError(
            "the state was saved before the first batch, so it does not say how many rows a step "
            "has. Name it"
        )
    return Run(state, arguments, global_batch)


def _import(path: str) -> Transform:
    module, _, name = path.partition(":")
    try:
        transform: Transform = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"transform {path!r} cannot be imported ({error}). Write module:function, with its "
            "folder in PYTHONPATH"
        ) from error
    return transform


def trace_steps(
    run: Run, steps: range, row: int | None = None, **delivery: Any
) -> Iterator[tuple[int, list[TracedSpan]]]:
    """(step, its spans) for each of `steps`, or the spans of one row (0 is the first) of each;
    `delivery` is the loader's."""
    if row is not None and not 0 <= row < run.global_batch:
        raise ValueError(f"row is {row}, but a step has rows 0 to {run.global_batch - 1}")
    if row is None or run.saved.fields["epochs"] is not None:
        yield from _trace_in_turn(run, steps, row, delivery)
        return
    for step in steps:
        number = run.rows_of_step(step)[row]
        with _lane_loader(run, number % run.saved.layout.num_lanes, 1, delivery) as loader:
            loader.seek(number)
            yield step, loader.trace(next(iter(loader)))


def _trace_in_turn(
    run: Run, steps: range, row: int | None, delivery: Mapping[str, Any]
) -> Iterator[tuple[int, list[TracedSpan]]]:
    if not steps:
        return
    first = run.rows_of_step(steps[0]).start
    with run.loader(batch_size=run.global_batch, dp_rank=0, dp_world_size=1, **delivery) as loader:
        loader.seek(first)
        for step, batch in zip(steps, loader, strict=False):
            yield step, loader.trace(batch, row)


def _lane_loader(run: Run, lane: int, batch_size: int, delivery: Mapping[str, Any]) -> CloudLoader:
    """The loader of the rank that a lane would have in a world of a rank a lane."""
    options = {**delivery, "num_workers": 0}
    return run.loader(
        batch_size=batch_size, dp_rank=lane, dp_world_size=run.saved.layout.num_lanes, **options
    )


def find_samples(run: Run, identifier: str, **delivery: Any) -> list[tuple[int, int]]:
    """(stream, sample) of every sample with that id. Raises `DatasetError` where there is none."""
    with run.loader(batch_size=1, dp_rank=0, dp_world_size=1, **delivery) as loader:
        tracer = Tracer(loader.plan())
        found = tracer.find_id(identifier)
        tracer.close()
    if not found:
        raise DatasetError(
            f"no sample has {identifier!r} in its column 'id'. Name it by "
            "--sample, if its number is known"
        )
    return found


def find_document(
    run: Run, stream: int, sample: int, last_step: int, **delivery: Any
) -> Iterator[Occurrence]:
    """Where a sample of a stream lands, from the state's step up to `last_step`, that one
    included."""
    last_row = run.rows_of_step(last_step)[-1]
    if run.saved.fields["epochs"] is not None:
        with run.loader(
            batch_size=run.global_batch, dp_rank=0, dp_world_size=1, **delivery
        ) as loader:
            yield from _occurrences(run, loader, (stream, sample), None, last_row)
        return
    with run.loader(batch_size=1, dp_rank=0, dp_world_size=1, **delivery) as loader:
        plan = loader.plan()
        check_sample(plan, stream, sample)
        epoch, missed = max(0, _first_epoch(plan, stream) - 1), 0  # of which a residue may be
        # lanes are seldom an epoch apart, and two epochs only where there are fewer documents than
        # lanes
        while missed < _MISSED_EPOCHS:
            found: list[Occurrence] = []
            for lane in _lanes_of(plan, stream, sample, epoch):
                with _lane_loader(run, lane, _ROWS_AT_ONCE, delivery) as of_lane:
                    found += _occurrences(run, of_lane, (stream, sample), epoch, last_row)
            yield from sorted(found, key=lambda occurrence: (occurrence.step, occurrence.row))
            missed = 0 if found else missed + 1
            epoch += 1


def _occurrences(
    run: Run, loader: CloudLoader, document: tuple[int, int], epoch: int | None, last_row: int
) -> Iterator[Occurrence]:
    """Where a loader reads a document, in one epoch or in all, up to a row of the run."""
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


def check_sample(plan: Plan, stream: int, sample: int) -> None:
    """Raises `ValueError` where there is no such sample."""
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
    """The earliest epoch that a lane stands in, of the order that a stream is read in."""
    place = _component_of(plan, stream)
    lanes = plan.recipe.components[place].lanes
    return min(
        lanes.place(lane, ordinal)[0]
        for lane, ordinal in enumerate(plan.position.cursors[place, :, CURSOR_ORDINAL].tolist())
    )


def _lanes_of(plan: Plan, stream: int, sample: int, epoch: int) -> list[int]:
    """The lanes that read a sample of a stream in an epoch."""
    component = plan.recipe.components[_component_of(plan, stream)]
    within = int(plan.recipe.corpus.stream_starts[stream]) + sample - component.first_sample
    positions = positions_of(component.orders(plan.cache_root)(epoch), within)
    first_positions = (epoch * component.lanes.stride + positions) % plan.num_lanes
    lanes: list[int] = np.flatnonzero(
        np.isin(component.lanes.first_positions, first_positions)
    ).tolist()
    return lanes


def _is_past(batch: Batch, stream: int, epoch: int) -> bool:
    """Whether all that a lane's batch has of a stream is of later epochs."""
    of_stream = batch.spans[batch.spans[:, SPAN_STREAM] == stream]
    return len(of_stream) > 0 and bool((of_stream[:, SPAN_EPOCH] > epoch).all())
