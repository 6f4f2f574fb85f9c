"""Sum the losses of a training loop by document and source, and write them to a log.

    token losses   .2 .9 .4 | .1 .3        of a row, on the device
    documents       a  a  a |  b  b
    records        a: 3 tokens, 1.5        b: 2 tokens, 0.4

The sums are float64. A step does not wait for the device, because the number of records is known
from the batch's spans, and records stay on the device until `flush`.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cloudload.config import checks
from cloudload.data import urls
from cloudload.errors import RanksDisagreeError
from cloudload.loading import Batch, CloudLoader
from cloudload.rows import tables
from cloudload.segments import IGNORED_LABEL, add_lead, pad_lengths
from cloudload.system import Ints
from cloudload.tools.losses import log_file


class _Part(NamedTuple):
    """The records of one call to `add`."""

    table: Ints
    """The table of records, int64 [records, 8]. Its token counts are 0 until `flush`."""
    numbers: Tensor
    """float64 [2, records], on the device: the sums of losses, and the token counts."""
    time: int
    """The time when the records were added, in μs since 1970."""


class _Share(NamedTuple):
    """The records of some rows of the current batch, which a later call may replace."""

    rows: Ints
    """The row of each record, as an index in the batch: int64 [records]."""
    streams: Ints
    numbers: Tensor
    """float64 [2, records], as in `_Part`."""

    def without(self, start: int, stop: int) -> _Share:
        """Return the records except those of rows [start, stop)."""
        kept = np.flatnonzero((self.rows < start) | (self.rows >= stop))
        if len(kept) == len(self.rows):
            return self
        numbers = self.numbers[:, _to_device(kept, self.numbers.device)]
        return _Share(self.rows[kept], self.streams[kept], numbers)


class _Means(NamedTuple):
    """The losses since the last `take_means`. Replaced as a whole, so that none is lost or counted
    twice after an exception."""

    totals: Tensor | None = None
    """float64 [2, streams], on the device: the sums and token counts of earlier batches."""
    rows: Ints = np.empty(0, np.int64)
    """The rows of the current batch."""
    shares: tuple[_Share, ...] = ()
    """The records of the current batch."""

    def sum(self, num_streams: int) -> Tensor | None:
        """Return the totals of all batches: float64 [2, streams], or None without records."""
        totals = self.totals
        for _, streams, numbers in self.shares:
            if totals is None:
                totals = torch.zeros((2, num_streams), dtype=torch.float64, device=numbers.device)
            totals = totals.index_add(1, _to_device(streams, numbers.device), numbers)
        return totals


class _File(NamedTuple):
    """The file of a log, and what it lacks. Replaced as a whole after each write."""

    num_bytes: int = 0
    """The size of the file after the last complete write."""
    parts: tuple[_Part, ...] = ()
    """The records that are not written yet."""


class LossLog:
    """Sums the losses of this rank by document and source.

    Create one on each rank, after the loader, and call `add` for each batch. Each rank writes its
    own file in `folder` each time the run starts. Without a folder, you can only use `take_means`.
    If a row is trained again, after a restart, `set_world` or `load_state_dict`, its records
    replace the earlier ones, even those of another rank. The machines' clocks decide which
    records are later. Call `flush` whenever you save a checkpoint, so that the log of a killed run
    has every step up to its checkpoint. The log also flushes itself after every `flush_every` calls
    to `add`.

    Raises `ValueError` if `flush_every` is below 1.
    """

    def __init__(
        self,
        loader: CloudLoader,
        folder: str | os.PathLike[str] | None = None,
        *,
        flush_every: int = 100,
    ) -> None:
        self._loader, self._flush_every = loader, checks.as_integer("flush_every", flush_every, 1)
        self._path: Path | None = None
        if folder is not None:
            name = f"{time.time_ns():020}-{uuid.uuid4().hex[:8]}{log_file.SUFFIX}"
            self._path = urls.expand_home(folder) / name
        self._state = self._find_state()
        self._time, self._file, self._means = 0, _File(), _Means()

    def add(
        self,
        batch: Batch,
        token_losses: Tensor,
        *,
        labels: Tensor | None = None,
        at_row: int = 0,
    ) -> None:
        """Add the losses of a batch, or of some of its rows.

        `batch` is a batch from the loader, or the result of its `to`. `token_losses` is
        [rows, seq_len - 1], on any device: column t has the loss of token t + 1, computed from
        `logits[:, :-1]` and `labels[:, 1:]`. An additional last column, as from shifted labels, is
        ignored. For a microbatch, `at_row` is the index of its first row in the batch. Losses with
        the label -100 are ignored; `labels`, int64 [rows, seq_len], default to those of the batch.
        If rows of the current batch are added again, their new losses replace the earlier ones.

        Raises `ValueError` if the shapes do not match, for a copy of a batch's tensors, or for the
        result of `flatten`.
        """
        spans, losses = batch.spans, token_losses.detach()
        seq_len = batch["input_ids"].shape[1]
        if losses.dim() != 2 or not seq_len - 1 <= losses.shape[1] <= seq_len:
            raise ValueError(
                f"token_losses has the shape {tuple(losses.shape)}. Pass a loss for each token, "
                f"[rows, {seq_len - 1}] or [rows, {seq_len}], as from cross_entropy with "
                "reduction='none'"
            )
        if len(batch["input_ids"]) != len(batch.rows):
            raise ValueError(
                f"the batch has {len(batch.rows)} rows, but its tensors have "
                f"{len(batch['input_ids'])}. Pass the batch before flatten(), and reshape "
                "token_losses to its rows"
            )
        num_rows, stop_row = len(losses), at_row + len(losses)
        if labels is None:
            labels = batch["labels"][at_row:stop_row]
        if labels.shape != (num_rows, seq_len) or stop_row > len(batch.rows):
            raise ValueError(
                f"token_losses has {num_rows} rows, starting at row {at_row} of the batch, which "
                f"do not match labels of shape {tuple(labels.shape)} in a batch of "
                f"{len(batch.rows)} rows. Pass at_row and the labels for the same rows"
            )
        low, high = np.searchsorted(spans[:, tables.SPAN_ROW], [at_row, stop_row])
        spans = spans[low:high]
        rows = spans[:, tables.SPAN_ROW] - at_row
        lengths = spans[:, tables.SPAN_STOP] - spans[:, tables.SPAN_START]
        lengths = add_lead(rows, lengths, batch.num_lead)
        sums = _sum_by_span(losses, labels, pad_lengths(rows, lengths, (num_rows, seq_len)), rows)
        means = self._means
        if not np.array_equal(batch.rows, means.rows):
            means = _Means(means.sum(len(self._loader.stream_names)), batch.rows)
        share = _Share(spans[:, tables.SPAN_ROW], spans[:, tables.SPAN_STREAM], sums)
        others = (each.without(at_row, stop_row) for each in means.shares)
        self._means = means._replace(shares=(*others, share))
        if self._path is not None:
            # times ascend, even if the clock is set back
            self._time = max(self._time + 1, time.time_ns() // 1000)
            part = _Part(self._describe(batch, spans), sums, self._time)
            self._file = self._file._replace(parts=(*self._file.parts, part))
            if len(self._file.parts) >= self._flush_every:
                self.flush()

    def _describe(self, batch: Batch, spans: Ints) -> Ints:
        """Return the table of records, in which token counts are 0: int64 [records, 8]."""
        rows = batch.rows[spans[:, tables.SPAN_ROW]]
        steps = self._loader.steps_of(rows)
        return np.column_stack([steps, rows, spans[:, 1:], np.zeros_like(rows)])

    def take_means(self, group: Any = None) -> dict[str, log_file.MeanLoss]:
        """Return the mean loss of each source since the last call, over all ranks, by stream name.

        With several ranks, call it on every rank at the same step. `group` is a process group of
        the data-parallel ranks; by default, all ranks. This waits for the device.
        """
        names = self._loader.stream_names
        totals = self._means.sum(len(names))
        if totals is None:
            totals = torch.zeros((2, len(names)), dtype=torch.float64)
        if self._loader.world_size > 1 and torch.distributed.is_initialized():
            totals = _to_backend(totals, group)
            torch.distributed.all_reduce(totals, group=group)
        sums, tokens = totals.tolist()
        self._means = _Means(rows=self._means.rows)
        return {
            name: log_file.MeanLoss(round(count), total)
            for name, count, total in zip(names, tokens, sums, strict=True)
        }

    def flush(self) -> None:
        """Write the records so far to the file. This waits for the device.

        After an error, such as a full disk, the next call writes them.
        """
        size, parts = self._file
        if not parts or self._path is None:
            return
        numbers = torch.cat([part.numbers for part in parts], dim=1).cpu().numpy()
        table = np.concatenate([part.table for part in parts])
        table[:, log_file.TOKENS] = numbers[1]
        times = np.repeat([part.time for part in parts], [len(part.table) for part in parts])
        kept = log_file.find_last(table[:, log_file.ROW], times)
        kept &= table[:, log_file.TOKENS] > 0
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            if file.tell() < size:
                size = 0  # the file was removed
            file.truncate(size)  # remove what an earlier call wrote in part
            if not size:
                log_file.start_file(file, self._make_header())
            log_file.write_records(
                file, log_file.Records(table[kept], numbers[0][kept]), times[kept]
            )
            file.flush()
            self._file = _File(file.tell())

    def _find_state(self) -> Mapping[str, Any] | None:
        """Return the loader's state, with which `cloudload blame` finds the data, or None."""
        with suppress(RanksDisagreeError):  # raised if ranks that cannot communicate have read rows
            return self._loader.state_dict()
        return None

    def _make_header(self) -> Mapping[str, Any]:
        state = self._find_state() or self._state
        return {"streams": self._loader.stream_names, "columns": log_file.COLUMNS, "state": state}

    def close(self) -> None:
        """Write the remaining records."""
        self.flush()

    def __enter__(self) -> LossLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of all tokens but each row's first: float32 or float64 [rows, seq_len - 1].

    `logits` is [rows, seq_len, vocabulary], and `labels` is int64 [rows, seq_len], not shifted.
    Use it with models that return only a mean loss. It costs as much as computing that loss.
    """
    with torch.no_grad():
        kept = logits.detach()[:, :-1].flatten(0, 1)
        if kept.dtype != torch.float64:
            kept = kept.float()
        losses = torch.nn.functional.cross_entropy(
            kept, labels[:, 1:].flatten(), ignore_index=IGNORED_LABEL, reduction="none"
        )
        return losses.view(len(labels), -1)


def _sum_by_span(losses: Tensor, labels: Tensor, padded: Ints, rows: Ints) -> Tensor:
    """Return the sum of each span's losses, and its number of tokens: float64 [2, spans].

    `padded` is the result of `pad_lengths`: the lengths of the batch's segments.
    """
    device, (num_rows, seq_len) = losses.device, labels.shape
    # padding has the index after the last span
    of_segments = np.full(len(padded), len(rows), np.int64)
    of_segments[np.arange(len(rows)) + rows] = np.arange(len(rows))
    numbers, repeats = _to_device(np.stack([of_segments, padded]), device)
    index = torch.repeat_interleave(numbers, repeats, output_size=num_rows * seq_len)
    index = index.view(num_rows, seq_len)[:, 1:].reshape(-1)
    is_kept = labels[:, 1:] != IGNORED_LABEL
    if is_kept.device != device:
        is_kept = _pin(is_kept, device).to(device, non_blocking=True)
    # `where` instead of a product, because ignored losses may be NaN
    kept = torch.where(is_kept, losses[:, : seq_len - 1], 0).double()
    sums = torch.zeros((2, len(rows) + 1), dtype=torch.float64, device=device)
    sums.index_add_(1, index, torch.stack([kept.reshape(-1), is_kept.reshape(-1).double()]))
    return sums[:, :-1]


def _to_device(array: Ints, device: torch.device) -> Tensor:
    return _pin(torch.from_numpy(array), device).to(device, non_blocking=True)


def _pin(tensor: Tensor, device: torch.device) -> Tensor:
    """Pin memory for a copy to a GPU, because the copy would otherwise wait for the GPU."""
    return tensor.pin_memory() if device.type == "cuda" else tensor


def _to_backend(totals: Tensor, group: Any) -> Tensor:
    """Move a tensor to a device that a process group's backend can reduce."""
    backend = torch.distributed.get_backend(group)
    if backend == "nccl" and totals.device.type == "cpu":
        return totals.cuda()
    return totals.cpu() if backend == "gloo" else totals
