"""What a run has read so far: exact, the same on every rank, and whatever the world.

A token is counted with its row, a document with the row after which nothing of it is left to read.
`Stats.delivery` is the exception: it is about one rank and one loader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

COUNTS = ("tokens", "documents", "filtered", "empty", "truncated", "padding")
TOKENS, DOCUMENTS, FILTERED, EMPTY, TRUNCATED, PADDING = range(len(COUNTS))
READ = (DOCUMENTS, FILTERED, EMPTY)
"""The counts that add up to the documents that were read."""
_NOT_NUMBERS = ("streams", "delivery", "tokenizer_backend", "tokenizer_backend_reason")


@dataclass(frozen=True)
class StreamStats:
    """What the run has read of one stream."""

    tokens: int
    """Tokens in rows."""
    documents: int
    """Documents read to their end, over all epochs."""
    filtered: int
    """Documents filtered out by the transform or `min_tokens`."""
    empty: int
    """Documents without a token."""
    truncated: int
    """Tokens cut off by `one_per_row`."""
    epoch: float
    """How far the stream's order has been read: 1.5 is halfway through its second epoch."""
    share: float
    """Its share of the run's tokens; 0 before the first token."""


class Traffic(NamedTuple):
    """What a shard cache did in some interval."""

    hits: int = 0
    """Shards that were in the cache when they were first looked for."""
    misses: int = 0
    """Shards that had to be fetched, or waited for while another process fetched them."""
    bytes_downloaded: int = 0
    """Bytes of shards from the store, as stored; a download that broke off does not count."""

    def __add__(self, other: Traffic) -> Traffic:  # type: ignore[override]
        return Traffic(self[0] + other[0], self[1] + other[1], self[2] + other[2])


@dataclass(frozen=True)
class DeliveryStats:
    """How batches arrived at this rank, since its loader was made.

    Not in the state: a resumed run counts from 0. Not exact either: workers report with their
    blocks, and their work after the last block that was used is not reported.
    """

    stall_s: float
    """Seconds that the training loop waited in `next()` or `skip`: for workers, from their start,
    and for other ranks."""
    cache_hits: int
    """Shards that were in the node's cache when a worker first looked for them, without those that
    are mapped in place."""
    cache_misses: int
    """Shards that a worker had to fetch, or to wait for while another process fetched them."""
    bytes_downloaded: int
    """Bytes of shards that workers fetched from the store, compressed as they are stored."""


class DeliveryMeter:
    """Adds up how the batches of one loader arrive, over all its workers."""

    def __init__(self) -> None:
        self.stall_s, self.traffic = 0.0, Traffic()

    def stats(self) -> DeliveryStats:
        """The sums so far."""
        return DeliveryStats(self.stall_s, *self.traffic)


@dataclass(frozen=True)
class Stats:
    """What a run has read, up to the last batch handed out."""

    rows: int
    tokens: int
    documents: int
    filtered: int
    empty: int
    truncated: int
    padding: int
    """Positions of rows that hold no token."""
    skipped_rows: int
    """Rows skipped by `skip`."""
    dropped: int
    """Tokens left over at the end of a finite run with tail="drop"."""
    streams: Mapping[str, StreamStats]
    delivery: DeliveryStats = field(compare=False)
    """About this rank and this loader, not about the run: equal runs may differ here."""
    tokenizer_backend: str
    """The backend that encodes in this process and its workers: `hf` or `fastokens`."""
    tokenizer_backend_reason: str | None
    """Why tokenizer_backend="auto" did not choose fastokens; None if it did, or was not asked."""

    def as_dict(self, prefix: str = "") -> dict[str, Any]:
        """Plain numbers for a logger, named `streams/<name>/<count>` and `delivery/<count>` where
        nested; the backend is left out."""
        numbers = {name: value for name, value in asdict(self).items() if name not in _NOT_NUMBERS}
        for stream, stats in self.streams.items():
            numbers.update(
                {f"streams/{stream}/{name}": value for name, value in asdict(stats).items()}
            )
        numbers.update({f"delivery/{name}": value for name, value in asdict(self.delivery).items()})
        return {f"{prefix}{name}": value for name, value in numbers.items()}
