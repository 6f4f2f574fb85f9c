"""How rows arrive: the options that may change at every resume."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from cloudload.config.checks import check_choice, check_count, check_positive, parse_bytes
from cloudload.config.choices import (
    EPOCH,
    START_METHODS,
    TAILS,
    TOKENIZER_BACKENDS,
    VERIFICATIONS,
    StartMethod,
    TailMode,
    TokenizerBackend,
    Verification,
)
from cloudload.option_docs import explained
from cloudload.segments import FIELDS
from cloudload.storage.base import Retry


@explained
@dataclass(frozen=True)
class DeliveryConfig:
    """How rows arrive."""

    batch_size: int
    """Rows per rank and step. The global batch is this times the number of data-parallel ranks."""
    tail: TailMode = "pad"
    """The last global batch of a finite run: `pad` it with masked rows, or `drop` it if it is not
    full."""
    fields: Sequence[str] = ()
    """Tensors beside input_ids and labels: `position_ids`, `segment_ids`, `cu_seqlens` (with
    `max_seqlen`)."""
    mask_edges: bool = False
    """Whether to mask the label of each document's first token, which only the document before it
    could predict."""
    local: str | os.PathLike[str] | None = None
    """Folder of the node's shard cache. By default `$CLOUDLOAD_CACHE`, or `~/.cache/cloudload`."""
    tokenizer_backend: TokenizerBackend = "auto"
    """What encodes, to the same ids: `hf`, `fastokens`, or `auto`, which is fastokens if it is
    found to give hf's ids, and else hf."""
    num_workers: int = 4
    """Worker processes per rank, at most one for each of its lanes. 0 works in the training
    process."""
    prefetch_batches: int = 4
    """Batches that workers run ahead of the training loop, at least."""
    predownload: int | None = None
    """Documents of look-ahead per worker, whose shards are fetched. By default two shards for each
    canonical node."""
    download_threads: int = 4
    """Shards that one worker fetches at a time."""
    cache_limit: int | str | None = None
    """Upper bound of the node's shard cache: bytes, or text such as `200gb`. None is no limit."""
    verify: Verification = "once"
    """When a shard's hash in the index is checked: `once`, when it is fetched, and again only if
    its file was modified; `always`, also whenever a process first opens it; or `off`. Sizes and
    headers are always checked."""
    retry: Retry = field(default_factory=Retry)
    """How long to retry the object store."""
    stop_every: int | Literal["epoch"] | None = None
    """When a pass over the loader ends: after this many batches of the run, at each `epoch` of the
    data, or, with None, with the run."""
    exchange_every: int = 1
    """Batches between exchanges of cursors among the ranks; a resume replays at most one fewer.
    Always 1 with `epochs` or stop_every="epoch"."""
    exchange_timeout_s: float = 1800.0
    """Seconds that a rank waits for the others."""
    start_method: StartMethod | None = None
    """How workers start: `fork`, `spawn`, `forkserver`. None is Python's default."""
    pin_memory: bool = False
    """Whether batches are in page-locked memory, if there is CUDA."""
    dp_rank: int | None = None
    """Data-parallel rank, if it is not the rank of the process."""
    dp_world_size: int | None = None
    """Number of data-parallel ranks, if not every process is one."""
    has_mesh: bool = False
    """Whether `dp_rank` and `dp_world_size` are those of a `device_mesh`."""

    def __post_init__(self) -> None:
        given = (self.fields,) if isinstance(self.fields, str) else tuple(self.fields)
        object.__setattr__(self, "fields", given)
        if self.local is not None:
            object.__setattr__(self, "local", os.fspath(self.local))
        for name in ("batch_size", "prefetch_batches", "download_threads", "exchange_every"):
            check_positive(name, getattr(self, name))
        check_count("num_workers", self.num_workers)
        check_choice("tail", self.tail, TAILS)
        check_choice("mask_edges", self.mask_edges, (True, False))
        for name in self.fields:
            check_choice("fields", name, tuple(FIELDS))
        if self.predownload is not None:
            check_positive("predownload", self.predownload)
        if self.stop_every is not None and self.stop_every != EPOCH:
            if not isinstance(self.stop_every, int):
                raise ValueError(
                    f"stop_every is {self.stop_every!r}; give a number of batches, or {EPOCH!r}"
                )
            check_positive("stop_every", self.stop_every)
        if not isinstance(self.exchange_timeout_s, int | float) or self.exchange_timeout_s <= 0:
            raise ValueError(
                f"exchange_timeout_s is {self.exchange_timeout_s!r}; it must be a number of "
                "seconds above 0"
            )
        check_choice("tokenizer_backend", self.tokenizer_backend, TOKENIZER_BACKENDS)
        check_choice("verify", self.verify, VERIFICATIONS)
        check_choice("start_method", self.start_method, START_METHODS)
        if not isinstance(self.retry, Retry):
            raise ValueError(
                f"retry is {self.retry!r}; give a cloudload.Retry(timeout_s=…, deadline_s=…)"
            )
        if (self.dp_rank is None) != (self.dp_world_size is None):
            raise ValueError("dp_rank and dp_world_size belong together: give both or neither")
        self.cache_limit_bytes()

    def cache_limit_bytes(self) -> int | None:
        """The cache limit in bytes."""
        return None if self.cache_limit is None else parse_bytes(self.cache_limit)
