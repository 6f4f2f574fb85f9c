"""A map-style dataset of a run's rows, for samplers, trainers and loops over indices.

    rows[17] ─► reader of this process ─► {"input_ids": …, "labels": …}

Row `g` is the row that `CloudLoader` delivers as row `g` of the run. Every thread and process that
reads rows at the same time, such as a worker of a `DataLoader`, has its own reader. A reader reads
ahead if the rows are requested in regular steps:

    rows 17, 18 ─► their pieces, from token lengths ─► documents ─► input_ids, labels, fields
                          ▲
    regular steps ─► rows of the next steps, read together
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from cloudload.config import DeliveryConfig, Stream, checks, choices
from cloudload.errors import CloudloadError, DatasetError
from cloudload.loading.delivery.collate import compute_fields, label_rows
from cloudload.loading.loader import CloudLoader
from cloudload.loading.workers.block import limit_batches
from cloudload.loading.workers.documents import open_cache, open_documents
from cloudload.loading.workers.held_documents import HeldDocuments
from cloudload.loading.workers.hooked_rows import change_rows
from cloudload.loading.workers.piece_reader import PieceReader
from cloudload.loading.workers.trace import TracedSpan, Tracer
from cloudload.rows import fill_rows, list_spans, tables
from cloudload.run import (
    Position,
    Recipe,
    RowFinder,
    RunInputs,
    RunLengths,
    State,
    build_state,
)
from cloudload.segments import BATCH_FIELDS, Array
from cloudload.system import Ints, Spares

Item = dict[str, torch.Tensor]
"""`input_ids` and `labels`, int64 [seq_len], and the tensors of `fields`."""

_OF_THE_TRAINING_LOOP = (
    *("batch_size", "num_workers", "prefetch_batches", "predownload", "start_method", "stop_every"),
    *("exchange_every", "exchange_timeout_s", "pin_memory", "tail", "balance"),
    *("dp_rank", "dp_world_size", "device_mesh"),
)


class Rows(torch.utils.data.Dataset[Item]):
    """A map-style dataset of a run's rows, by index.

    `rows[g]` is row g of the run that a `CloudLoader` with the same arguments reads, as a dict of
    `input_ids` and `labels` (int64 [seq_len]) and the `fields`. Any sampler and `DataLoader` can
    read the dataset, in any order, with any number of ranks and workers. The data needs token
    lengths, which `cloudload count` writes. If rows are requested at regular intervals, as by a
    sequential or distributed sampler, later rows are prefetched. Threads may share the dataset, and
    read in parallel.

    Args:
        data: as for `CloudLoader`.
        num_rows: the number of rows, counted from the start of the run, after which the dataset
            ends. Set it if the run is endless, but a sampler needs `len()`. By default, the whole
            run.
        state: a state of a `CloudLoader`. The dataset then has the rows that its run reads after
            the state, with the state's weights and changes of `seq_len`. The first of these rows is
            `rows[rows.first_row]`, because indices still count from the start of the run.
        options: the other options of `CloudLoader`, except those that the sampler and the
            `DataLoader` decide, such as `batch_size` and `num_workers`.

    Raises:
        ValueError: if an argument is invalid.
        StreamChangedError: if the state is damaged or does not match the arguments.
        DatasetError: if the data has no token lengths.
        CloudloadError: if the data, the tokenizer or a store cannot be used.
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | Stream | Sequence[str | Stream],
        *,
        num_rows: int | None = None,
        state: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        _check(options)
        loader = CloudLoader(
            data,
            **{"lengths": choices.REQUIRE, **options},
            batch_size=1,
            num_workers=0,
            dp_rank=0,
            dp_world_size=1,
        )
        with loader:
            if state is not None:
                loader.load_state_dict(state)
            plan = loader.worker_plan()
            inputs, delivery, position = plan.inputs, plan.delivery, plan.position
            if inputs.lengths is None:
                raise _missing_lengths(inputs.recipe, delivery)
            run, most_rows = inputs.open_run_lengths(), limit_batches(inputs, plan.share)
            own = None if loader.is_endless else _find_end(loader, position, run)
        if num_rows is not None:
            num_rows = checks.as_integer("num_rows", num_rows, 1)
            if own is not None and num_rows > own:
                raise ValueError(
                    f"num_rows is {num_rows:,}, but the run has {own:,} rows. Use at most {own:,}, "
                    "or set more epochs"
                )
            if num_rows <= position.rows:
                raise ValueError(
                    f"num_rows is {num_rows:,}, but the state is at row {position.rows:,}. "
                    "num_rows counts from the start of the run, so it must be larger than "
                    f"{position.rows:,}"
                )
        self._inputs, self._delivery, self._position = inputs, delivery, position
        self._run, self._num_rows = run, own if num_rows is None else num_rows
        self._readers = Spares(
            partial(RegularReader, inputs, delivery, run, position, most_rows),
            RegularReader.close,
        )

    @property
    def first_row(self) -> int:
        """The first row of the dataset: the next row of the state, or 0 without a state."""
        return self._position.rows

    def state_dict(self, row: int) -> State:
        """Return the state from which a `CloudLoader` continues at row `row`. Reads no documents.

        Raises `IndexError` for a row before `first_row` or after the end of the dataset.
        """
        if (row := _read_index(row)) != self._num_rows:
            [row] = self._check_rows([row]).tolist()
        position = self._run.advance(self._position, row)
        if position is None:
            raise DatasetError(
                f"the state at row {row:,} is unknown, because a lane has no tokens. Set an eos, "
                "or use more documents or a smaller num_lanes"
            )
        return build_state(self._inputs.recipe, position, self._inputs.backend.versions)

    def __len__(self) -> int:
        """The number of rows from the start of the run to the dataset's end, even with a state.

        Raises `TypeError` for an endless run without `num_rows`.
        """
        if self._num_rows is None:
            raise TypeError("the run is endless, so it has no length. Pass epochs=N or num_rows=N")
        return self._num_rows

    def __getitem__(self, row: int) -> Item:
        """Return row `row` of the run.

        Raises `IndexError` for a row that the run does not have, and `CloudloadError` if a document
        cannot be read, or if its length differs from the counted one.
        """
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Item]:
        """Return several rows, in the order of `rows`. A `DataLoader` calls this once per batch.

        Raises the errors of `__getitem__`.
        """
        indices = self._check_rows(rows)
        if not len(indices):
            return []
        with self._readers.lend() as reader:
            found = reader.read(indices, self._num_rows)
        return [{name: torch.from_numpy(array) for name, array in row.items()} for row in found]

    def __iter__(self) -> Iterator[Item]:
        """Yield all rows in order. Never stops for an endless run without `num_rows`."""
        first, end = self.first_row, self._num_rows
        indices = itertools.count(first) if end is None else range(first, end)
        return map(self.__getitem__, indices)

    def trace(self, row: int) -> list[TracedSpan]:
        """Find the documents of a row in the data, in their order in the row.

        Raises the errors of `__getitem__`.
        """
        indices = self._check_rows([row])
        with self._readers.lend() as reader:
            spans = reader.read_spans(indices)
        tracer = Tracer(self._inputs, self._delivery)
        try:
            return tracer.trace(spans, indices)
        finally:
            tracer.close()

    def _check_rows(self, rows: Sequence[int]) -> Ints:
        """Return valid row indices: int64 [rows]. Negative ones count from the end, as in lists."""
        indices = np.array([_read_index(row) for row in rows], np.int64)
        if self._num_rows is not None:
            indices = np.where(indices < 0, indices + self._num_rows, indices)
        end = np.iinfo(np.int64).max if self._num_rows is None else self._num_rows
        if len(wrong := np.flatnonzero((indices < 0) | (indices >= end))):
            size = "is endless" if self._num_rows is None else f"has {self._num_rows:,} rows"
            raise IndexError(f"row {rows[wrong[0]]} is out of range, because the dataset {size}")
        if indices.min(initial=end) < self.first_row:
            raise IndexError(
                f"row {indices.min():,} is before the state, which is at row {self.first_row:,}. "
                "Use an earlier state, or no state"
            )
        return indices

    def close(self) -> None:
        """Stop fetching and unmap the shards. The next access opens them again."""
        self._readers.close()

    def __repr__(self) -> str:
        size = "endless" if self._num_rows is None else f"{self._num_rows:,} rows"
        return f"Rows({', '.join(self._inputs.recipe.labels)}, {size})"


def _check(options: Mapping[str, Any]) -> None:
    for name in _OF_THE_TRAINING_LOOP:
        if name in options:
            raise ValueError(
                f"Rows has no option {name}, because the sampler, the DataLoader or the training "
                "loop controls it. Set it there instead"
            )
    of_batch = sorted(set(options.get("fields", ())) & set(BATCH_FIELDS))
    if of_batch:
        raise ValueError(
            "Rows does not support fields that describe a whole batch, such as "
            f"{', '.join(of_batch)}. Use 'segment_ids' or 'position_ids', or use a CloudLoader"
        )


def _read_index(row: Any) -> int:
    """Return the index of a row. Raises `TypeError` if it is not an integer, as lists do."""
    try:
        return checks.as_integer("row", row)
    except ValueError as error:
        raise TypeError(f"{error}") from None


def _missing_lengths(recipe: Recipe, delivery: DeliveryConfig) -> Exception:
    asked = delivery.lengths
    if asked == choices.OFF:
        return ValueError("lengths is 'off', but Rows needs token lengths. Use lengths='require'")
    return DatasetError(
        f"lengths is {asked!r}, but Rows needs token lengths, and some of the data has none. Count "
        "the tokens of each stream, starting with the first. Run: cloudload count "
        f"{recipe.corpus.datasets[0].location} --tokenizer NAME. It counts only shards "
        "without lengths, such as appended ones"
    )


def _find_end(loader: CloudLoader, position: Position, run: RunLengths) -> int:
    """Return the row at which a finite run ends, even if `seq_len` has changed."""
    if len(run.recipe.components) > 1:
        return len(loader)
    return run.find_tails(position).ending.end


class RegularReader:
    """Reads rows for one caller at a time, and reads ahead if they are requested in regular steps.

    It begins at `position`, and reads ahead at most `most_rows` rows. Do not use it after an
    exception.
    """

    def __init__(
        self,
        inputs: RunInputs,
        delivery: DeliveryConfig,
        lengths: RunLengths,
        position: Position,
        most_rows: int,
    ) -> None:
        recipe, packing = inputs.recipe, inputs.recipe.packing
        self._recipe = recipe
        self._cache = open_cache(inputs, delivery)
        documents = open_documents(inputs, self._cache)
        self._reader = PieceReader(documents, HeldDocuments(packing), position)
        self._finder = RowFinder(lengths, position)
        self._delivery, self._most_rows, self._seq_len = delivery, most_rows, packing.seq_len
        self._framing = replace(recipe.framing, pad=delivery.pad_id)
        self._arrays: dict[str, Array] = {}
        """The arrays of the loaded rows, by field name: [rows, …]."""
        self._indices: dict[int, int] = {}
        """Maps each loaded row of the run to its index in `_arrays`."""
        self._last: Ints = np.empty(0, np.int64)
        self._step, self._steps_ahead = 0, 0
        self._pieces_ahead: tuple[Ints, Ints] | None = None
        """The rows of the next read, if the steps stay regular, and the pieces of these rows."""

    def read(self, rows: Ints, end: int | None) -> list[dict[str, Array]]:
        """Read rows, and return a copy of each one's arrays by field name. The run ends at row
        `end`."""
        self._follow(rows)
        if not all(row in self._indices for row in rows.tolist()):
            wanted = self._add_steps(rows, self._steps_ahead, end)
            try:
                self._arrays = self._make_arrays(wanted)
            except CloudloadError:
                if np.isin(wanted, rows).all():
                    raise
                wanted = rows  # the failed row may be one that is only read ahead
                self._arrays = self._make_arrays(wanted)
            self._indices = {row: index for index, row in enumerate(wanted.tolist())}
            self._look_ahead(rows, end)
        indices = [self._indices[row] for row in rows.tolist()]
        return [
            {name: array[index].copy() for name, array in self._arrays.items()} for index in indices
        ]

    def read_spans(self, rows: Ints) -> Ints:
        """Return the spans of rows: int64 [spans, 6] with columns `tables.SPAN_COLUMNS`."""
        return list_spans(self._read(rows))

    def _read(self, rows: Ints) -> tables.CutRows:
        ahead = self._pieces_ahead
        if ahead is not None and np.array_equal(ahead[0], rows):
            return self._reader.read(ahead[1])
        return self._reader.read(self._finder.find(rows))

    def _follow(self, rows: Ints) -> None:
        """Record the step from the previous call's rows, and read ahead if the step repeats."""
        last, self._last = self._last, rows
        steps = rows - last if len(rows) == len(last) else np.empty(0, np.int64)
        step = int(steps[0]) if len(steps) and (steps == steps[0]).all() else 0
        if step <= 0 or step != self._step:
            self._steps_ahead = 0
        elif not self._steps_ahead:
            self._steps_ahead = 1
        self._step = step

    def _add_steps(self, rows: Ints, number: int, end: int | None) -> Ints:
        """List the rows of this and the next `number` steps, without repeats, up to row `end`."""
        steps = np.arange(number + 1)[:, None] * self._step
        wanted = np.unique((rows + steps).ravel()) if number else rows
        return wanted if end is None else wanted[wanted < end]

    def _look_ahead(self, rows: Ints, end: int | None) -> None:
        """Choose the rows of the next read, about twice as many as before, and fetch their shards.

        `rows` are the rows of the current step.
        """
        if not self._steps_ahead:
            return
        first = rows + (self._steps_ahead + 1) * self._step
        self._steps_ahead = min(2 * self._steps_ahead + 1, max(1, self._most_rows // len(rows)) - 1)
        wanted = self._add_steps(first, self._steps_ahead, end)
        if not len(wanted):
            return
        try:
            self._pieces_ahead = wanted, self._finder.find(wanted)
        except CloudloadError:
            return  # if one of these rows is requested, the error is raised again
        self._reader.prefetch(self._pieces_ahead[1])

    def _make_arrays(self, indices: Ints) -> dict[str, Array]:
        """Build the arrays of rows, by field name: [rows, …]."""
        cut, tokens = self._read(indices), np.empty((len(indices), self._seq_len), np.int32)
        num_tokens = fill_rows(tokens, cut, self._framing)
        change_rows(self._recipe, tokens, num_tokens, indices)
        spans, lead = list_spans(cut), self._recipe.config.num_lead
        ids = np.pad(tokens.astype(np.int64), ((0, 0), (lead, 0)))
        labels = np.empty_like(ids)
        label_rows(self._recipe, ids, labels, num_tokens, self._delivery.pad_id)
        fields = compute_fields(labels, spans, self._delivery, lead)
        return {"input_ids": ids, "labels": labels, **fields}

    def close(self) -> None:
        """Stop fetching and unmap the shards."""
        self._cache.close()
