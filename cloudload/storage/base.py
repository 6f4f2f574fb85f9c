"""What every kind of store shares: how long to try, what is stored, and what a trouble means.

    error of a client ──Backend.trouble──► Trouble ──store.py──► asked again, or told with what to do about it

A client's errors are looked at in one place of each backend, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import BinaryIO, Protocol

from cloudload.option_docs import explained

CHUNK_BYTES = 1 << 16  # small, so that a body that trickles meets the deadline


@explained
@dataclass(frozen=True)
class Retry:
    """How long to retry the object store."""

    timeout_s: float = 20.0
    """Seconds for one request."""
    deadline_s: float = 120.0
    """Seconds in all."""
    pause_s: float = 0.2
    """Seconds before the second attempt; each further pause is about twice as long."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
                raise ValueError(f"{name} is {value!r}; it must be a number of seconds above 0")


@dataclass(frozen=True)
class StoredObject:
    """One object of a listing: its location and its size in bytes."""

    url: str
    bytes: int


class Trouble(Enum):
    """What an error of a store's client means."""

    MISSING_OBJECT = auto()
    MISSING_BUCKET = auto()
    DENIED = auto()
    NO_CREDENTIALS = auto()
    BAD_CREDENTIALS = auto()
    EXPIRED_CREDENTIALS = auto()
    WRONG_CLOCK = auto()
    WRONG_REGION = auto()
    UNTRUSTED = auto()
    BUSY = auto()
    UNREACHABLE = auto()
    OTHER = auto()

    @property
    def is_missing(self) -> bool:
        """Whether there is no such thing."""
        return self in (Trouble.MISSING_OBJECT, Trouble.MISSING_BUCKET)

    @property
    def is_passing(self) -> bool:
        """Whether the same request may do better later."""
        return self in (Trouble.BUSY, Trouble.UNREACHABLE)


class Backend(Protocol):
    """What a kind of store must do; every method takes whole locations and raises its client's own
    errors."""

    def open(self, url: str, retry: Retry) -> BinaryIO: ...
    def upload(self, path: Path, url: str, retry: Retry) -> None: ...
    def delete(self, url: str, retry: Retry) -> None: ...
    def list(self, url: str, retry: Retry) -> Iterator[StoredObject]: ...
    def trouble(self, error: BaseException) -> Trouble: ...
