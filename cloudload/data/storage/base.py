"""Types that all storage backends share: the retry policy, listed objects, and the base class.

    client's error─Backend.failure_kind─► FailureKind ─locations─► retried, or raised with advice

A backend classifies its client's errors only in `failure_kind`.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloudload.data.storage.versions import UNKNOWN, Version
from cloudload.errors import FailureKind
from cloudload.system import option_help

CHUNK_BYTES = 1 << 16  # small, so that even a slow connection delivers a chunk within `timeout_s`


@option_help.suggests_fields
@option_help.explained
@dataclass(frozen=True)
class Retry:
    """How long to retry a request to a store, in seconds.

    Transient errors are retried with exponential backoff and jitter.

    Raises `ValueError` if a value is not a number above 0.
    """

    timeout_s: float = 20.0
    """Limit for connecting (at most 10 s for S3), and for each read of data."""
    deadline_s: float = 120.0
    """Limit for all attempts together, including pauses and DNS. For an upload, it limits only when
    a new attempt may start. google-cloud-storage also uses it as the socket timeout of uploads."""
    pause_s: float = 0.2
    """The first pause between attempts is a random 1 to 2 times this value. Each later pause is 1
    to 2 times the previous one. If that could be more than 10 s, the pause is a random 5 to 10 s.
    """

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_seconds(name, value)


def check_seconds(name: str, value: Any) -> None:
    """Raise a `ValueError` that names the option `name` unless `value` is a number above 0."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ValueError(f"{name} is {value!r}. Use a number of seconds above 0")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in a listing: its URL and its size in bytes."""

    url: str
    bytes: int
    tag: str = field(default="", compare=False)
    """A value that changes with the object: the ETag, the generation on GCS, or the modification
    time and size of a local file. Empty if the listing has none."""


Wanted = Callable[[str], bool]
"""Whether a listing needs a file, or what is in a folder, whose URL then ends in `/`."""


class ObjectStream(io.BufferedReader):
    """A buffered stream of an object's stored bytes, and the object's version."""

    def __init__(self, body: io.RawIOBase, version: Version = UNKNOWN) -> None:
        super().__init__(body, CHUNK_BYTES)
        self.version = version


class Backend(ABC):
    """The base class of the backend of each kind of store, such as S3.

    A process opens a backend once for each `timeout_s`. A subclass may omit the last three methods.
    Each method that sends a request makes one attempt. It raises the client's errors unchanged, and
    `Location` then retries or adds advice. It may also raise a complete `StoreError`, which is not
    retried. An implementation must disable the client's retries, and limit connecting and each read
    to `timeout_s`. `Location` enforces the deadline, except on uploads and local files. Methods
    must be thread-safe.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    @abstractmethod
    def open(
        self, url: str, start: int = 0, tag: str = "", stop: int | None = None
    ) -> ObjectStream:
        """Open a stream of the object's stored bytes, without decompressing them.

        The stream's version comes from the response to this request. The stream has the bytes from
        `start` to before `stop`, or to the end. A backend that cannot request a `stop` may ignore
        it, because the caller reads no further. If `tag`, the object's tag in a listing, is not
        empty and differs from the object's tag now, raise the error of `clients.check_tag`.

        If the Content-Length is known and the body is shorter, reading must raise an error. See
        `LengthCheckedReader`.
        """

    @abstractmethod
    def upload(self, path: Path, url: str, deadline_s: float) -> None:
        """Create or replace the object, atomically if the store supports it.

        A client that needs a time limit for a whole upload uses `deadline_s`.
        """

    @abstractmethod
    def create(self, path: Path, url: str, deadline_s: float) -> None:
        """Create the object, unless it already exists.

        If a store cannot do this atomically, check for the object first, then upload it.
        """

    @abstractmethod
    def delete(self, url: str) -> None:
        """Delete the object.

        If it does not exist, do nothing, or raise an error whose kind `is_missing`.
        """

    @abstractmethod
    def list(self, url: str) -> Iterator[StoredObject]:
        """Yield every object below the folder `url`, at any depth, or the object `url` itself.

        Include all pages. Raise an error if a part cannot be listed. Listing `s3://b/a` must not
        yield `s3://b/ab`; see `urls.is_below`.
        """

    @abstractmethod
    def peek(self, url: str) -> Iterator[str]:
        """Yield the names of objects and folders directly in the folder `url`.

        The name of a folder ends in `/`. Send a request for each response as its names are needed.
        """

    @abstractmethod
    def failure_kind(self, error: BaseException) -> FailureKind:
        """Classify an error that another method, or a read from an open stream, has raised.

        `Location` retries transient kinds.
        """

    def pin(self, url: str) -> str:
        """The URL of what is at a URL now, if the store has immutable versions of whole folders."""
        return url

    def describe_endpoint(self, url: str) -> str:
        """Describe the endpoint of a URL and the setting it came from. Return "" if unknown.

        The text begins with the endpoint's URL, as in "http://127.0.0.1:9000 (from
        S3_ENDPOINT_URL)". This must neither raise an error nor use the network.
        """
        return ""

    def renew_credentials(self, since_s: float) -> bool:
        """Read the credentials again, after the store refused them.

        Returns whether they differ from those that requests used at `since_s`, in `time.monotonic`
        seconds. Must not raise an error.
        """
        return False

    def hint(self, url: str, error: BaseException, kind: FailureKind) -> str:
        """Return advice about an error that is special to this store, or "".

        It follows the advice for the kind of the failure, or replaces it if the kind is `OTHER`.
        """
        return ""
