"""What a run has read so far: exact, the same on every rank, and whatever the world.

A token is counted with the row that has it, a document with the row after which nothing of it is left to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

COUNTS = ("tokens", "documents", "filtered", "empty", "truncated", "padding")
TOKENS, DOCUMENTS, FILTERED, EMPTY, TRUNCATED, PADDING = range(len(COUNTS))
_NOT_NUMBERS = ("streams", "tokenizer_backend", "tokenizer_backend_reason")


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
    tokenizer_backend: str
    """What encodes in this process and its workers: `hf` or `fastokens`."""
    tokenizer_backend_reason: str | None
    """Why tokenizer_backend="auto" did not take fastokens; None where it did, or was not asked."""

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for a logger, those of streams under `streams/<name>/<count>`; the backend is none."""
        numbers = {name: value for name, value in asdict(self).items() if name not in _NOT_NUMBERS}
        for stream, stats in self.streams.items():
            numbers.update({f"streams/{stream}/{name}": value for name, value in asdict(stats).items()})
        return numbers
