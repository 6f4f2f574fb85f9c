"""The rows of a run by number: a map-style dataset for samplers, trainers and index loops.

    rows[17] ─► its pieces, from token lengths ─► documents ─► {"input_ids": …, "labels": …}
                          ▲
    regular steps ─► rows of the next steps, read together

Row `g` is the row that `CloudLoader` hands out as row `g` of the run. Every process that reads
rows, such as a worker of a `DataLoader`, has its own reader.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from operator import index
from typing import Any

import numpy as np
import torch

from cloudload.arrays import Ints
from cloudload.config.checks import check_positive
from cloudload.config.choices import OFF, REQUIRE
from cloudload.config.stream import Stream
from cloudload.delivery.collate import compute_fields, mask_after
from cloudload.errors import CloudloadError, DatasetError
from cloudload.lengths.row_finder import RowFinder
from cloudload.lengths.run_lengths import RunLengths
from cloudload.loader import CloudLoader
from cloudload.packing.rows import Framing, fill_rows, list_spans
from cloudload.run.state import State, build_state
from cloudload.segments import BATCH_ARRAYS, Array
from cloudload.storage.redaction import redact
from cloudload.workers.block import Pieces
from cloudload.workers.documents import open_cache, open_documents
from cloudload.workers.plan import Plan
from cloudload.workers.row_reader import RowReader
from cloudload.workers.trace import TracedSpan, Tracer

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
    read it, in any order, with any number of ranks and workers. It needs token lengths, which
    `cloudload count` writes. If rows are requested at regular intervals, as by a sequential or
    distributed sampler, later rows are prefetched.

    Args:
        data: as for `CloudLoader`.
        num_rows: the row at which the dataset ends, for an endless run, or for a part of one. By
            default, the end of the run.
        state: a state of a `CloudLoader`. The rows are those of its run after the state, with its
            weights and its changes of `seq_len`: `rows[rows.first_row]` is the first row that is
            not in the state. Indices are still those of the whole run.
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
            own = None if loader.is_endless else _find_end(loader, plan)
        if num_rows is not None:
            check_positive("num_rows", num_rows)
            if own is not None and num_rows > own:
                raise ValueError(
                    f"num_rows is {num_rows:,}, but the run has {own:,} rows. Use at most that, or "
                    "more epochs"
                )
            if num_rows <= plan.position.rows:
                raise ValueError(
                    f"num_rows is {num_rows:,}, but the state is at row {plan.position.rows:,}. "
                    "num_rows counts from the start of the run, so use more than that"
                )
        self._plan, self._num_rows = plan, own if num_rows is None else num_rows
        self._reader: _Reader | None = None

    @property
    def first_row(self) -> int:
        """The first row of the dataset: that of the state, or 0."""
        return self._plan.position.rows

    def state_dict(self, row: int) -> State:
        """Return the state from which a `CloudLoader` continues at row `row`. Reads no documents.

        Raises `IndexError` for a row before `first_row` or after the end of the dataset.
        """
        if row != self._num_rows:
            [row] = self._check_rows([row]).tolist()
        plan = self._plan
        position = self._open_reader().lengths.advance(plan.position, row)
        if position is None:
            raise DatasetError(
                f"the state at row {row:,} is unknown, because a lane has no tokens. Set an eos, "
                "or use more documents or a smaller num_lanes"
            )
        return build_state(plan.recipe, position, plan.backend.versions)

    def __len__(self) -> int:
        """The number of rows of the run, including those before a state, or `num_rows`.

        Raises `TypeError` for an endless run without `num_rows`.
        """
        if self._num_rows is None:
            raise TypeError(
                "the run is endless, so it has no number of rows. Pass epochs=N or num_rows=N"
            )
        return self._num_rows

    def __getitem__(self, row: int) -> Item:
        """Return row `row` of the run.

        Raises `IndexError` for a row that the run does not have, and `CloudloadError` if a document
        cannot be read, or does not have the length that was counted.
        """
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[Item]:
        """Return several rows, in the order of `rows`. A `DataLoader` requests a batch at a time.

        Raises the errors of `__getitem__`.
        """
        numbers = self._check_rows(rows)
        if not len(numbers):
            return []
        reader = self._open_reader()
        places = reader.read(numbers, self._num_rows)
        return [
            {name: torch.from_numpy(array[place].copy()) for name, array in reader.arrays.items()}
            for place in places
        ]

    def __iter__(self) -> Iterator[Item]:
        """Yield all rows in order; without end for an endless run without `num_rows`."""
        first, end = self.first_row, self._num_rows
        numbers = itertools.count(first) if end is None else range(first, end)
        return map(self.__getitem__, numbers)

    def trace(self, row: int) -> list[TracedSpan]:
        """Find the documents of a row in the data, in their order in the row.

        Raises the errors of `__getitem__`.
        """
        numbers = self._check_rows([row])
        tracer = Tracer(self._plan)
        try:
            return tracer.trace(self._open_reader().read_spans(numbers), numbers)
        finally:
            tracer.close()

    def _check_rows(self, rows: Sequence[int]) -> Ints:
        """Count negative rows from the end, as in a list: int64 [rows]."""
        numbers = np.array([index(row) for row in rows], np.int64)
        if self._num_rows is not None:
            numbers = np.where(numbers < 0, numbers + self._num_rows, numbers)
        end = np.iinfo(np.int64).max if self._num_rows is None else self._num_rows
        if len(wrong := np.flatnonzero((numbers < 0) | (numbers >= end))):
            size = "is endless" if self._num_rows is None else f"has {self._num_rows:,} rows"
            raise IndexError(f"row {rows[wrong[0]]} is asked for, but the dataset {size}")
        if numbers.min(initial=end) < self.first_row:
            raise IndexError(
                f"row {numbers.min():,} is before the state, which is at row {self.first_row:,}. "
                "Use an earlier state, or none"
            )
        return numbers

    def _open_reader(self) -> _Reader:
        if self._reader is None or self._reader.process != os.getpid():
            self._reader = _Reader(self._plan)  # threads and files do not survive a fork
        return self._reader

    def __getstate__(self) -> Mapping[str, Any]:
        return {**self.__dict__, "_reader": None}

    def close(self) -> None:
        """Stop fetching and unmap the shards. The next access opens them again."""
        if self._reader is not None and self._reader.process == os.getpid():
            self._reader.close()
        self._reader = None

    def __repr__(self) -> str:
        size = "endless" if self._num_rows is None else f"{self._num_rows:,} rows"
        return f"Rows({', '.join(self._plan.recipe.labels)}, {size})"


def _check(options: Mapping[str, Any]) -> None:
    for name in _OF_THE_TRAINING_LOOP:
        if name in options:
            raise ValueError(
                f"Rows has no option {name}, because the sampler, the DataLoader or the training "
                "loop decides it. Pass it there"
            )
    of_batch = sorted(set(options.get("fields", ())) & set(BATCH_ARRAYS))
    if of_batch:
        raise ValueError(
            f"fields has {', '.join(of_batch)}, which describes a whole batch. Use 'segment_ids' "
            "or 'position_ids', or a CloudLoader"
        )


def _missing_lengths(plan: Plan) -> Exception:
    asked = plan.delivery.lengths
    if asked == OFF:
        return ValueError("lengths is 'off', but Rows needs token lengths. Use 'require'")
    return DatasetError(
        f"lengths is {asked!r}, and not all data has token lengths, but Rows needs them. Run: "
        f"cloudload count {redact(plan.recipe.corpus.datasets[0].url)} --tokenizer NAME, also "
        "for every other stream"
    )


def _find_end(loader: CloudLoader, plan: Plan) -> int:
    """The row at which a finite run ends, also after changes of `seq_len`."""
    if len(plan.recipe.components) > 1:
        return len(loader)
    return _open_run(plan).find_ending(plan.position).end


def _open_run(plan: Plan) -> RunLengths:
    assert plan.lengths is not None
    return RunLengths(plan.recipe, plan.cache_root, plan.lengths)


class _Reader:
    """Reads rows for one process, and reads ahead if rows are requested in regular steps."""

    def __init__(self, plan: Plan) -> None:
        self.process = os.getpid()
        self._cache = open_cache(plan)
        self._reader = RowReader(
            open_documents(plan, self._cache), plan.position, cuts=plan.recipe.packing.cuts
        )
        self.lengths = _open_run(plan)
        self._finder = RowFinder(self.lengths, plan.position)
        self._delivery, self._most_rows = plan.delivery, plan.batches_at_once
        self._seq_len = plan.recipe.packing.seq_len
        self._framing = Framing.of(plan.recipe.tokenizer.frames)
        self.arrays: dict[str, Array] = {}
        """The tensors of the loaded rows, by name: [rows, …]."""
        self._places: dict[int, int] = {}
        """The index in `arrays` of each loaded row."""
        self._last: Ints = np.empty(0, np.int64)
        self._step, self._steps_ahead = 0, 0
        self._pieces_ahead: tuple[Ints, Ints] | None = None
        """The rows of the next read if the steps stay regular, and their pieces."""

    def read(self, rows: Ints, end: int | None) -> list[int]:
        """Load rows, and return the index in `arrays` of each one. The run ends at row `end`."""
        self._follow(rows)
        if not all(row in self._places for row in rows.tolist()):
            wanted = self._add_steps(rows, self._steps_ahead, end)
            try:
                self.arrays = self._make_arrays(wanted)
            except CloudloadError:
                if np.isin(wanted, rows).all():
                    raise
                wanted = rows  # the error may be in a row that is only read ahead
                self.arrays = self._make_arrays(wanted)
            self._places = {row: place for place, row in enumerate(wanted.tolist())}
            self._look_ahead(rows, end)
        return [self._places[row] for row in rows.tolist()]

    def read_spans(self, rows: Ints) -> Ints:
        """The spans of rows: int64 [spans, 6] with columns `tables.SPAN_COLUMNS`."""
        pieces = self._read(rows)
        return list_spans(pieces.table, pieces.pieces)

    def _read(self, rows: Ints) -> Pieces:
        ahead = self._pieces_ahead
        if ahead is not None and np.array_equal(ahead[0], rows):
            return self._reader.read(ahead[1])
        return self._reader.read(self._finder.find(rows))

    def _follow(self, rows: Ints) -> None:
        """Record whether the step between rows is the same as between the last two calls."""
        last, self._last = self._last, rows
        steps = rows - last if len(rows) == len(last) else np.empty(0, np.int64)
        step = int(steps[0]) if len(steps) and (steps == steps[0]).all() else 0
        if step <= 0 or step != self._step:
            self._steps_ahead = 0
        elif not self._steps_ahead:
            self._steps_ahead = 1
        self._step = step

    def _add_steps(self, rows: Ints, number: int, end: int | None) -> Ints:
        """The rows of this step and of the next `number`, without repeats or rows past the end."""
        steps = np.arange(number + 1)[:, None] * self._step
        wanted = np.unique((rows + steps).ravel()) if number else rows
        return wanted if end is None else wanted[wanted < end]

    def _look_ahead(self, rows: Ints, end: int | None) -> None:
        """Find the rows of the next read, twice as many as before, and fetch their shards."""
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
            return  # raised again if one of these rows is requested
        self._reader.prefetch(self._pieces_ahead[1])

    def _make_arrays(self, numbers: Ints) -> dict[str, Array]:
        """Make the tensors of rows, by name: [rows, …]."""
        pieces, tokens = self._read(numbers), np.empty((len(numbers), self._seq_len), np.int32)
        num_tokens = fill_rows(tokens, *pieces, self._framing)
        spans, ids = list_spans(pieces.table, pieces.pieces), tokens.astype(np.int64)
        labels = ids.copy()
        mask_after(labels, num_tokens)
        fields = compute_fields(labels, spans, self._delivery)
        return {"input_ids": ids, "labels": labels, **fields}

    def close(self) -> None:
        """Stop fetching and unmap the shards."""
        self._cache.close()
