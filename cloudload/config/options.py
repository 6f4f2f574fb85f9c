"""Checks that involve both configs of a loader, and its streams."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from cloudload.config import choices
from cloudload.config.delivery import DeliveryConfig
from cloudload.config.rows import RowsConfig
from cloudload.config.stream import Stream
from cloudload.system import machine

_BATCH_BYTES_PER_TOKEN = 16  # input_ids and labels are int64
_BLOCK_BYTES_PER_TOKEN = 4  # token IDs are int32


def settle_together(rows: RowsConfig, delivery: DeliveryConfig) -> DeliveryConfig:
    """Return the delivery options that suit the options of the rows.

    `exchange_every` becomes 1 if a pass can end with the data or an epoch, because the ranks must
    then agree on the last batch before they deliver it. Raises `ValueError` if an option of one
    config contradicts one of the other.
    """
    _check_memory(rows, delivery)
    if delivery.stop_every == choices.EPOCH and rows.is_mixed:
        raise ValueError(
            f"stop_every is {choices.EPOCH!r}, but streams that are mixed by proportion each have "
            "their own epochs. Set stop_every to a number of batches"
        )
    if rows.has_ends or delivery.stop_every == choices.EPOCH:
        return replace(delivery, exchange_every=1)
    return delivery


def _check_memory(rows: RowsConfig, delivery: DeliveryConfig) -> None:
    """Raise `ValueError` if batches would not fit in memory, before any batch is allocated."""
    tokens = delivery.batch_size * rows.seq_len
    ahead = delivery.prefetch_batches if delivery.has_worker_processes else 1
    needed = tokens * (_BATCH_BYTES_PER_TOKEN + ahead * _BLOCK_BYTES_PER_TOKEN)
    if needed > (total := machine.total_memory_bytes()):
        raise ValueError(
            f"a batch of {delivery.batch_size:,} rows of {rows.seq_len:,} tokens, and {ahead:,} "
            f"read ahead, need at least {needed / 2**30:,.1f} GiB of memory, but this machine has "
            f"{total / 2**30:,.1f} GiB. Use a smaller seq_len, batch_size, or prefetch_batches"
        )


def as_streams(data: Any) -> tuple[Stream, ...]:
    """Convert a loader's `data` to streams. Raises `ValueError` if it has an unsupported type."""
    items: list[Any] = list(data) if isinstance(data, list | tuple) else [data]
    if wrong := [item for item in items if not isinstance(item, str | os.PathLike | Stream)]:
        if type(wrong[0]).__module__.partition(".")[0] == "datasets":
            raise ValueError(
                f"data is a datasets.{type(wrong[0]).__name__}. Convert it with "
                "cloudload.convert_to_mds(data, 'corpus-mds'), and pass 'corpus-mds'"
            )
        raise ValueError(
            f"data is {wrong[0]!r}. Pass the URL or folder of an MDS dataset, a Stream, or a "
            "list of them"
        )
    return tuple(item if isinstance(item, Stream) else Stream(os.fspath(item)) for item in items)
