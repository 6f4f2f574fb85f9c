"""A map-style dataset of a run's rows, for samplers, trainers and loops over indices.

    rows[17] ─► reader of this process ─► {"input_ids": …, "labels": …}

Row `g` is the row that `CloudLoader` delivers as row `g` of the run. Every thread and process that
reads rows at the same time, such as a worker of a `DataLoader`, has its own reader.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from cloudload.config.checks import as_integer
from cloudload.config.choices import OFF, REQUIRE
from cloudload.config.stream import Stream
from cloudload.data.storage.redaction import redact
from cloudload.errors import DatasetError
from cloudload.loading.delivery.regular_reader import RegularReader
from cloudload.loading.loader import CloudLoader
from cloudload.loading.workers.plan import Plan
from cloudload.loading.workers.trace import TracedSpan, Tracer
from cloudload.run.lengths.run_lengths import RunLengths
from cloudload.run.state import State, build_state
from cloudload.segments import BATCH_ARRAYS
from cloudload.system.arrays import Ints
from cloudload.system.spares import Spares

Item = dict[str, torch.Tensor]
"""`input_ids` and `labels`, int64 [seq_len], and the tensors of `fields`."""

_OF_THE_TRAINING_LOOP = (
    *("batch_size", "num_workers", "prefetch_batches", "predownload", "start_method", "stop_every"),
    *("exchange_every", "exchange_timeout_s", "pin_memory", "tail"),
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
            **{"lengths": REQUIRE, **options},
            batch_size=1,
            num_workers=0,
            dp_rank=0,
            dp_world_size=1,
        )
        with loader:
            if state is not None:
                loader.load_state_dict(state)
            plan = loader.plan()
            if plan.lengths is None:
                raise _missing_lengths(plan)
            run = RunLengths(plan.recipe, plan.cache_root, plan.lengths)
            own = None if loader.is_endless else _find_end(loader, plan, run)
        if num_rows is not None:
            num_rows = as_integer("num_rows", num_rows, 1)
            if own is not None and num_rows > own:
                raise ValueError(
                    f"num_rows is {num_rows:,}, but the run has {own:,} rows. Use at most {own:,}, "
                    "or set more epochs"
                )
            if num_rows <= plan.position.rows:
                raise ValueError(
                    f"num_rows is {num_rows:,}, but the state is at row {plan.position.rows:,}. "
                    "num_rows counts from the start of the run, so it must be larger than "
                    f"{plan.position.rows:,}"
                )
        self._plan, self._num_rows = plan, own if num_rows is None else num_rows
        self._readers = Spares(partial(RegularReader, plan, run), RegularReader.close)
        self._run = run

    @property
    def first_row(self) -> int:
        """The first row of the dataset: the next row of the state, or 0 without a state."""
        return self._plan.position.rows

    def state_dict(self, row: int) -> State:
        """Return the state from which a `CloudLoader` continues at row `row`. Reads no documents.

        Raises `IndexError` for a row before `first_row` or after the end of the dataset.
        """
        if (row := _read_index(row)) != self._num_rows:
            [row] = self._check_rows([row]).tolist()
        plan = self._plan
        position = self._run.advance(plan.position, row)
        if position is None:
            raise DatasetError(
                f"the state at row {row:,} is unknown, because a lane has no tokens. Set an eos, "
                "or use more documents or a smaller num_lanes"
            )
        return build_state(plan.recipe, position, plan.backend.versions)

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
        tracer = Tracer(self._plan)
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
        return f"Rows({', '.join(self._plan.recipe.labels)}, {size})"


def _check(options: Mapping[str, Any]) -> None:
    for name in _OF_THE_TRAINING_LOOP:
        if name in options:
            raise ValueError(
                f"Rows has no option {name}, because the sampler, the DataLoader or the training "
                "loop controls it. Set it there instead"
            )
    of_batch = sorted(set(options.get("fields", ())) & set(BATCH_ARRAYS))
    if of_batch:
        raise ValueError(
            "Rows does not support fields that describe a whole batch, such as "
            f"{', '.join(of_batch)}. Use 'segment_ids' or 'position_ids', or use a CloudLoader"
        )


def _read_index(row: Any) -> int:
    """Return the index of a row. Raises `TypeError` if it is not an integer, as lists do."""
    try:
        return as_integer("row", row)
    except ValueError as error:
        raise TypeError(f"{error}") from None


def _missing_lengths(plan: Plan) -> Exception:
    asked = plan.delivery.lengths
    if asked == OFF:
        return ValueError("lengths is 'off', but Rows needs token lengths. Use lengths='require'")
    return DatasetError(
        f"lengths is {asked!r}, but Rows needs token lengths, and some of the data has none. Count "
        "the tokens of each stream, starting with the first. Run: cloudload count "
        f"{redact(plan.recipe.corpus.datasets[0].url)} --tokenizer NAME. It counts only shards "
        "without lengths, such as appended ones"
    )


def _find_end(loader: CloudLoader, plan: Plan, run: RunLengths) -> int:
    """Return the row at which a finite run ends, even if `seq_len` has changed."""
    if len(plan.recipe.components) > 1:
        return len(loader)
    return run.find_ending(plan.position).end
