"""Statistics of a run so far: exact, and the same on every rank and for every world size.

A token is counted with its row, and a document with the row that completes it. Only
`Stats.delivery` differs: it covers one rank and one loader, and is not exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

COUNTS = ("tokens", "documents", "filtered", "empty", "truncated", "padding")
TOKENS, DOCUMENTS, FILTERED, EMPTY, TRUNCATED, PADDING = range(len(COUNTS))
READ = (DOCUMENTS, FILTERED, EMPTY)
"""Indices of the counts whose sum is the number of documents read."""
_NOT_NUMBERS = ("streams", "delivery", "tokenizer_backend", "tokenizer_backend_reason")


@dataclass(frozen=True)
class StreamStats:
    """Statistics of one stream."""

    tokens: int
    """Number of tokens in rows."""
    documents: int
    """Number of documents read completely, over all epochs."""
    filtered: int
    """Number of documents filtered out by the transform or `min_tokens`."""
    empty: int
    """Number of documents without tokens."""
    truncated: int
    """Number of tokens cut off by `one_per_row`."""
    epoch: float
    """Progress in epochs: 1.5 is halfway through the second epoch of the stream's order."""
    share: float
    """The stream's share of the run's tokens, from 0 to 1; 0 before the first token."""


class Traffic(NamedTuple):
    """Statistics of a shard cache over some interval."""

    hits: int = 0
    """Number of shards that were in the cache when they were first needed."""
    misses: int = 0
    """Number of shards that had to be fetched, or were being fetched by another process."""
    bytes_downloaded: int = 0
    """Number of stored bytes of the fetched shards, without failed downloads."""

    def __add__(self, other: Traffic) -> Traffic:  # type: ignore[override]
        return Traffic(self[0] + other[0], self[1] + other[1], self[2] + other[2])


@dataclass(frozen=True)
class DeliveryStats:
    """Statistics of the delivery of batches to this rank, since its loader was created.

    They are not in the state, so a resumed run counts from 0. They are not exact: workers report
    with each block, so their work after the last block in use is not included.
    """

    stall_s: float
    """Seconds that the training loop waited in `next()` or `skip` for workers, including their
    start, and for other ranks."""
    cache_hits: int
    """Number of shards that were in the node's cache when a worker first needed them. Shards that
    are mapped in place are not counted."""
    cache_misses: int
    """Number of shards that a worker had to fetch, or that another process was fetching."""
    bytes_downloaded: int
    """Number of stored bytes of the shards that workers fetched, without failed downloads."""


class DeliveryMeter:
    """Adds up the delivery statistics of one loader, over all its workers."""

    def __init__(self) -> None:
        self.stall_s, self.traffic = 0.0, Traffic()

    def stats(self) -> DeliveryStats:
        """The statistics so far."""
        return DeliveryStats(self.stall_s, *self.traffic)


@dataclass(frozen=True)
class Stats:
    """Statistics of a run, up to the last batch handed out.

    Counts without a description are sums over the streams; see `StreamStats`.
    """

    rows: int
    """Number of rows handed out, by all ranks together."""
    tokens: int
    documents: int
    filtered: int
    empty: int
    truncated: int
    padding: int
    """Number of positions in rows that hold no token."""
    skipped_rows: int
    """Number of rows skipped by `skip`."""
    dropped: int
    """Number of tokens left over at the end of a finite run with tail="drop"."""
    streams: Mapping[str, StreamStats]
    delivery: DeliveryStats = field(compare=False)
    """Statistics of this rank and this loader, not of the run. Not compared by `==`."""
    tokenizer_backend: str
    """The tokenizer backend of this process and its workers: `hf` or `fastokens`."""
    tokenizer_backend_reason: str | None
    """Why tokenizer_backend="auto" did not choose fastokens; None if it did, or was not used."""

    def as_dict(self, prefix: str = "") -> dict[str, Any]:
        """Statistics as a flat dict of numbers for a logger; every key starts with `prefix`.

        Nested statistics are named `streams/<name>/<count>` and `delivery/<count>`. Omits the
        tokenizer backend, which is not a number.
        """
        numbers = {name: value for name, value in asdict(self).items() if name not in _NOT_NUMBERS}
        for stream, stats in self.streams.items():
            numbers.update(
                {f"streams/{stream}/{name}": value for name, value in asdict(stats).items()}
            )
        numbers.update({f"delivery/{name}": value for name, value in asdict(self.delivery).items()})
        return {f"{prefix}{name}": value for name, value in numbers.items()}
