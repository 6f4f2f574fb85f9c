"""Types that all storage backends share: the retry policy, a listed object, and the protocol.

    client's error─Backend.failure_kind─► FailureKind ─objects─► retried, or raised with advice

A backend inspects its client's errors in `failure_kind` only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from cloudload.errors import FailureKind
from cloudload.option_docs import explained

CHUNK_BYTES = 1 << 16  # small, so that a slow body still meets the deadline


@explained
@dataclass(frozen=True)
class Retry:
    """How long to retry a request to a store, in seconds.

    Transient errors are retried with exponential backoff and jitter.

    Raises `ValueError` if a value is not a number above 0.
    """

    timeout_s: float = 20.0
    """Limit for one attempt to connect or to read."""
    deadline_s: float = 120.0
    """Limit for all attempts together, including pauses and DNS."""
    pause_s: float = 0.2
    """Pause before the second attempt. It roughly doubles with each further attempt, up to 10 s."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_seconds(name, value)


def check_seconds(name: str, value: Any) -> None:
    """Raise `ValueError`, which names the option, unless `value` is a number above 0."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ValueError(f"{name} is {value!r}; use a number of seconds above 0")


@dataclass(frozen=True)
class StoredObject:
    """One object of a listing: its URL and its size in bytes."""

    url: str
    bytes: int


class Backend(Protocol):
    """One kind of store.

    Methods take full URLs, make one attempt, and raise their client's own errors: `objects` retries
    and adds advice. Turn off the client's retries, and limit each of its requests to
    `retry.timeout_s`; the deadline is not the backend's business. Threads call one instance at the
    same time.
    """

    def open(self, url: str, retry: Retry) -> BinaryIO:
        """A buffered stream of the object's stored bytes, without decompression.

        A body that is shorter than the store announced must raise: see `LengthCheckedReader`.
        """
        ...

    def upload(self, path: Path, url: str, retry: Retry) -> None:
        """Create or replace the object; readers see the old bytes or the new, never a part."""
        ...

    def delete(self, url: str, retry: Retry) -> None:
        """Remove the object. If there is none, do nothing, or raise a `MISSING_OBJECT` failure."""
        ...

    def list(self, url: str, retry: Retry) -> Iterator[StoredObject]:
        """Yield every object below the folder `url`, at any depth and across pages.

        `s3://b/a` does not list `s3://b/ab`: see `urls.is_below`.
        """
        ...

    def failure_kind(self, error: BaseException) -> FailureKind:
        """The kind of an error that another method raised; decides whether it is retried."""
        ...
