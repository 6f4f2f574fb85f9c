"""What all storage backends share: how long to try, what a listing holds, and what a backend does.

    client's error─Backend.failure_kind─► FailureKind ─objects─► retried, or raised with advice

Each backend inspects its client's errors in this one method, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from cloudload.errors import FailureKind
from cloudload.option_docs import explained

CHUNK_BYTES = 1 << 16  # small, so that a body that trickles still meets the deadline


@explained
@dataclass(frozen=True)
class Retry:
    """How long to try a request to a store, in seconds. Transient errors are retried with
    exponential backoff and jitter."""

    timeout_s: float = 20.0
    """Limit of one attempt to connect or to read."""
    deadline_s: float = 120.0
    """Limit of all attempts together, pauses and DNS included."""
    pause_s: float = 0.2
    """Pause before the second attempt; it roughly doubles from attempt to attempt, up to 10 s."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
                raise ValueError(f"{name} is {value!r}; it must be a number of seconds above 0")


@dataclass(frozen=True)
class StoredObject:
    """One object of a listing: its URL and its size in bytes."""

    url: str
    bytes: int


class Backend(Protocol):
    """One kind of store. Methods take whole URLs and raise their client's own errors."""

    def open(self, url: str, retry: Retry) -> BinaryIO: ...
    def upload(self, path: Path, url: str, retry: Retry) -> None: ...
    def delete(self, url: str, retry: Retry) -> None: ...
    def list(self, url: str, retry: Retry) -> Iterator[StoredObject]: ...
    def failure_kind(self, error: BaseException) -> FailureKind: ...
