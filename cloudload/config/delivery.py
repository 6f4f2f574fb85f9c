"""The options that control how rows are delivered. They may change on every resume.

`settle_together` checks them against the options of the rows.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from cloudload.config import checks, choices
from cloudload.config.checks import Count, within
from cloudload.config.choices import StartMethod, TailMode, TokenizerBackend, Verification
from cloudload.config.rows import RowsConfig
from cloudload.data import Retry, check_seconds
from cloudload.segments import FIELDS
from cloudload.system import machine, option_help

_BATCH_BYTES_PER_TOKEN = 16  # input_ids and labels are int64
_BLOCK_BYTES_PER_TOKEN = 4  # token IDs are int32


def _as_fields(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, Sequence | Set):
        raise ValueError(f"{name} is {value!r}. Use a list with any of {', '.join(FIELDS)}")
    given = (value,) if isinstance(value, str) else tuple(value)
    return tuple(checks.as_choice(name, each, tuple(FIELDS)) for each in given)


def _as_folder(name: str, value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise ValueError(f"{name} is {value!r}. Use the path of a folder")
    return os.fspath(value)


def _as_size(name: str, value: Any) -> int | str:
    try:
        checks.parse_bytes(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    size: int | str = value
    return size


def _as_lengths(name: str, value: Any) -> str:
    location = os.fspath(value) if isinstance(value, str | os.PathLike) else ""
    if location == "learn":
        raise ValueError(
            f"{name} is 'learn', but a run does not write token lengths. Run cloudload count, and "
            f"use {name}='auto'"
        )
    is_named = location in (choices.AUTO, choices.REQUIRE, choices.OFF)
    if not is_named and "/" not in location and not os.path.isdir(location):
        raise ValueError(
            f"{name} is {value!r}. Use 'auto', 'require', 'off', or the URL or folder of token "
            "lengths"
        )
    return location


def _as_retry(name: str, value: Any) -> Retry:
    if not isinstance(value, Retry):
        raise ValueError(f"{name} is {value!r}. Pass cloudload.Retry(timeout_s=…, deadline_s=…)")
    return value


def _as_stop(name: str, value: Any) -> int | str:
    if not isinstance(value, str):
        return checks.as_integer(name, value, 1)
    if value != choices.EPOCH:
        raise ValueError(f"{name} is {value!r}. Use a number of batches, or {choices.EPOCH!r}")
    return value


def _as_seconds(name: str, value: Any) -> float:
    check_seconds(name, value)
    seconds: float = value
    return seconds


@option_help.explained
@dataclass(frozen=True)
class DeliveryConfig:
    """The options that control how rows are delivered. They may change on every resume.

    Raises `ValueError` if an option is invalid, except for a `dp_rank` outside the world, which the
    loader refuses.
    """

    batch_size: Count | None = None
    """Rows per rank and step, or None with `global_batch_size`. The global batch is `batch_size`
    times the number of data-parallel ranks."""
    global_batch_size: Count | None = None
    """Rows per step, across all ranks, so that steps are the same on any number of ranks. By
    default, `batch_size` times the number of ranks. If the number of ranks does not divide it,
    ranks with fewer rows get masked filler rows, so the loss must be a sum over the trained tokens
    of all ranks."""
    micro_batch_size: Count | None = None
    """Maximum number of rows per batch, if a step has several batches per rank. The rank's rows of
    a step are divided evenly among them, and masked filler rows make all equally large. By default,
    a step is one batch per rank."""
    balance: Literal["attention"] | None = None
    """What to balance by moving the rows of a step between the ranks of each machine:
    `attention`, if documents are kept apart. The work of a row is then the sum of the squares of
    its documents' lengths, which needs token lengths. The rows of a step and the states stay the
    same, but which rank has a row depends on the data."""
    tail: TailMode = "pad"
    """What to do with the last global batch of a finite run if it is not full: `pad` it with masked
    rows, or `drop` it."""
    fields: Annotated[Sequence[str], _as_fields] = ()
    """Tensors to add to each batch besides input_ids and labels: `position_ids`, `segment_ids`,
    `stream_ids`, `document_ids`, `cu_seqlens` (with `max_seqlen`), and `flash_attention` (what
    Hugging Face models take to keep documents apart: `position_ids`, `seq_idx`, `cu_seq_lens_q`,
    `cu_seq_lens_k`, `max_length_q` and `max_length_k`)."""
    pad_id: Annotated[int, within(0)] = 0
    """Token ID of padding in `input_ids`, such as the tokenizer's pad token, for code that finds
    padding by its ID. The labels of padding are -100 with any ID."""
    mask_edges: bool = False
    """Whether to mask the label of a document's first token in each row, because any tokens before
    it belong to other documents."""
    local: Annotated[str | os.PathLike[str], _as_folder] | None = None
    """Folder of the node's cache for shards, epoch orders and tokenizer checks. By default
    `$CLOUDLOAD_CACHE`, else `cloudload` in `$XDG_CACHE_HOME` or `~/.cache`."""
    tokenizer_backend: TokenizerBackend = "auto"
    """The library that encodes text: `hf`, `fastokens`, or `auto`. Before fastokens is used,
    checks compare its token IDs with hf's. If a check fails, `fastokens` raises an error, and
    `auto` uses hf, which is many times slower, and logs a warning."""
    num_workers: Annotated[int, within(0)] | None = None
    """Number of worker processes per loader. A loader uses at most one for each lane of its rank.
    With 0, the training process does the work. The default is 1 if there is no transform and the
    data is token IDs or fastokens encodes it, because one worker then produces tens of millions of
    tokens per second. Otherwise, the default is 4, or the number of cores per rank if that is
    lower."""
    prefetch_batches: Count = 4
    """Number of batches that worker processes read ahead of the training loop. They may read more,
    because they read whole blocks of batches, and at least two blocks."""
    predownload: Count | None = None
    """Approximate number of documents whose shards each worker fetches ahead of time, at least one
    per lane. By default, the workers of all ranks together look ahead by about two shards in each
    canonical node."""
    download_threads: Count = 4
    """Number of threads with which each worker fetches shards ahead of time."""
    cache_limit: Annotated[int | str, _as_size] | None = None
    """Maximum size of the node's shard cache, in bytes or as text such as `200gb`. None means no
    limit."""
    lengths: Annotated[str | os.PathLike[str], _as_lengths] = "auto"
    """Token lengths to use: `auto`, `require`, `off`, or their URL or folder. `cloudload count`
    writes them. They save work, such as reading when the loader seeks, and never change a row.
    `auto`: use them if all streams have them. `require`: raise an error if a stream has none.
    `off`: do not use them. A URL or folder: use the lengths there instead of those in the folder
    `lengths` of each dataset."""
    verify: Verification = "once"
    """When to check a shard against its hash in the index. `once`: when it is downloaded, and again
    only if its file was modified. `always`: also whenever a process maps it, even from a local
    dataset. `off`: never. Sizes and headers are always checked. A shard that has no hash in
    the index must not be newer than its cache folder, except with `off`."""
    retry: Annotated[Retry, _as_retry] = field(default_factory=Retry)
    """How long to retry requests to stores. By default `Retry()`."""
    stop_every: Annotated[int | Literal["epoch"], _as_stop] | None = None
    """When a pass over the loader ends. A number N: after every N batches, counted from the start
    of the run. `epoch`: at the end of each epoch of the data. None: only at the end of the run."""
    exchange_every: Count = 1
    """Number of batches between exchanges of cursors among the ranks, or, with token lengths,
    between checks that the ranks are in step. On resume, at most exchange_every - 1 batches are
    read again, unless there are token lengths. Always 1 with `epochs`, `max_epochs` of a stream, or
    stop_every="epoch"."""
    exchange_timeout_s: Annotated[float, _as_seconds] = 1800.0
    """Seconds that a rank waits for the other ranks in an exchange before it raises an error."""
    start_method: StartMethod | None = None
    """How workers start: `fork`, `spawn` or `forkserver`. None means Python's default."""
    pin_memory: bool = False
    """Whether to place batches in page-locked memory, if CUDA is available."""
    dp_rank: int | None = None
    """Data-parallel rank of this process. None means its rank in torch.distributed, else the
    environment variable `RANK`, else 0."""
    dp_world_size: int | None = None
    """Number of data-parallel ranks. None means the world size of torch.distributed, else the
    environment variable `WORLD_SIZE`, else 1."""
    has_mesh: bool = False
    """Whether `dp_rank` and `dp_world_size` are from a `device_mesh`."""

    def __post_init__(self) -> None:
        checks.check_fields(self)
        if (self.batch_size is None) == (self.global_batch_size is None):
            raise ValueError(
                f"batch_size is {self.batch_size}, but global_batch_size is "
                f"{self.global_batch_size}. Set one of them: batch_size to the rows per rank, or "
                "global_batch_size to the rows of all ranks"
            )
        if (self.dp_rank is None) != (self.dp_world_size is None):
            raise ValueError(
                f"dp_rank is {self.dp_rank}, but dp_world_size is {self.dp_world_size}. Set both "
                "or neither"
            )

    @property
    def has_worker_processes(self) -> bool:
        """Whether worker processes make the rows, not this process."""
        return self.num_workers != 0

    @property
    def shares_tokenizer(self) -> bool:
        """Whether rows are made with the tokenizer that this process loads.

        This is the case if workers are forked, or if this process makes the rows.
        """
        # a plain `get_start_method()` would fix the start method of the user's program
        method = multiprocessing.get_start_method(allow_none=True)
        default = method or multiprocessing.get_all_start_methods()[0]
        return self.num_workers == 0 or (self.start_method or default) == "fork"

    def global_batch(self, world_size: int) -> int:
        """The number of rows per step, across all ranks."""
        if self.batch_size is not None:
            return self.batch_size * world_size
        assert self.global_batch_size is not None, "one of both is set"
        return self.global_batch_size

    def cache_limit_bytes(self) -> int | None:
        """The cache limit in bytes, or None."""
        return None if self.cache_limit is None else checks.parse_bytes(self.cache_limit)


def alone(batch_size: int = 1) -> dict[str, Any]:
    """Return options with which a tool reads as the only rank, whatever options the run has.

    `batch_size` is the number of rows per step.
    """
    return {
        "batch_size": batch_size,
        "global_batch_size": None,
        "micro_batch_size": None,
        "balance": None,
        "dp_rank": 0,
        "dp_world_size": 1,
        "device_mesh": None,
    }


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
    name, step_rows = "batch_size", delivery.batch_size
    if step_rows is None:
        name = "global_batch_size"
        step_rows = delivery.global_batch(1) // (delivery.dp_world_size or 1 << 10)
    tokens = step_rows * rows.seq_len  # all micro-batches of a step are allocated together
    ahead = delivery.prefetch_batches if delivery.has_worker_processes else 1
    needed = tokens * (_BATCH_BYTES_PER_TOKEN + ahead * _BLOCK_BYTES_PER_TOKEN)
    if needed > (total := machine.total_memory_bytes()):
        raise ValueError(
            f"a batch of {step_rows:,} rows of {rows.seq_len:,} tokens, and {ahead:,} "
            f"read ahead, need at least {needed / 2**30:,.1f} GiB of memory, but this machine has "
            f"{total / 2**30:,.1f} GiB. Use a smaller seq_len, {name}, or prefetch_batches"
        )
