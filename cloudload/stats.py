"""What a run has read so far: exact, the same on every rank, and whatever the world.

A token is counted with the row that has it, a document with the row after which nothing of it is
left to read. How the batches came is told beside it, of one rank and of one loader, and is none of
that.
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
    """Of one stream."""

    tokens: int
    """Tokens in rows."""
    documents: int
    """Documents read to their end, an epoch after another."""
    filtered: int
    """Documents left out by the transform or `min_tokens`."""
    empty: int
    """Documents without a token."""
    truncated: int
    """Tokens cut off by `one_per_row`."""
    epoch: float
    """How far the stream's order has been read: 1.5 is halfway through its second epoch."""
    share: float
    """Its part of the run's tokens; 0 where there are none."""


class Traffic(NamedTuple):
    """Counts of some stretch of reading."""

    hits: int = 0
    """Shards that lay in the cache when they were first looked for."""
    misses: int = 0
    """Shards that had to be fetched, or waited for while another process fetched them."""
    bytes_downloaded: int = 0
    """Bytes of shards from the store, as they are stored; none of a download that broke off."""

    def __add__(self, other: Traffic) -> Traffic:  # type: ignore[override]
        return Traffic(self[0] + other[0], self[1] + other[1], self[2] + other[2])


@dataclass(frozen=True)
class DeliveryStats:
    """How the batches came to this rank, since its loader was made.

    Not in the state: a resumed run counts from 0. Not exact either: workers report with their
    blocks, and what they did after the last that was used is in no report.
    """

    stall_s: float
    """Seconds that the training loop was kept in `next()`, or `skip`: by workers, from their start
    on, and by other ranks."""
    cache_hits: int
    """Shards that lay in the node's cache when a worker first looked for them; those mapped in
    place are not in it."""
    cache_misses: int
    """Shards that a worker had to fetch, or to wait for while another process fetched them."""
    bytes_downloaded: int
    """Bytes of shards that workers fetched from the store, compressed as they are there."""


class DeliveryMeter:
    """Adds up how the batches of one loader come, whichever workers bring them."""

    def __init__(self) -> None:
        self.stall_s, self.traffic = 0.0, Traffic()

    def stats(self) -> DeliveryStats:
        """What there is so far."""
        return DeliveryStats(self.stall_s, *self.traffic)


@dataclass(frozen=True)
class Stats:
    """Of a run up to the batch last handed out."""

    rows: int
    tokens: int
    documents: int
    filtered: int
    empty: int
    truncated: int
    padding: int
    """Positions of rows that hold no token."""
    skipped_rows: int
    """Rows passed over by `skip`."""
    dropped: int
    """Tokens left over at the end of a finite run with tail="drop"."""
    streams: Mapping[str, StreamStats]
    delivery: DeliveryStats = field(compare=False)
    """Not of the run, but of this rank and this loader; so it does not tell two runs apart."""
    tokenizer_backend: str
    """What encodes in this process and its workers: `hf` or `fastokens`."""
    tokenizer_backend_reason: str | None
    """Why tokenizer_backend="auto" did not take fastokens; None where it did, or was not asked."""

    def as_dict(self, prefix: str = "") -> dict[str, Any]:
        """Plain numbers for a logger, with `streams/<name>/<count>` and `delivery/<count>`; the
        backend is none."""
        numbers = {name: value for name, value in asdict(self).items() if name not in _NOT_NUMBERS}
        for stream, stats in self.streams.items():
            numbers.update(
                {f"streams/{stream}/{name}": value for name, value in asdict(stats).items()}
            )
        numbers.update({f"delivery/{name}": value for name, value in asdict(self.delivery).items()})
        return {f"{prefix}{name}": value for name, value in numbers.items()}
