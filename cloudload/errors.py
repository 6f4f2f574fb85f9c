"""Every error that cloudload raises on purpose.

    CloudloadError
    ├── StoreError           an object cannot be read, written, listed or deleted; `kind` says why
    ├── DatasetError         an index or a shard is invalid
    ├── CacheError           the shard cache cannot be used, or is too small for the run
    ├── TokenizerError       a tokenizer cannot be used, or a document cannot be tokenized
    ├── ConvertError         a raw corpus cannot be converted, or the output holds another dataset
    ├── StreamChangedError   a state does not belong to this loader's rows
    ├── RanksDisagreeError   ranks of one run differ in config or are out of step
    └── WorkerError          a worker process failed or died, or an iteration was interrupted

A wrong argument is a plain `ValueError`. Each message says what happened, where, and what to do.
"""

from __future__ import annotations

from enum import Enum, auto


class FailureKind(Enum):
    """Why a request to a store failed."""

    MISSING_OBJECT = auto()
    """There is no such object, file or folder."""
    MISSING_BUCKET = auto()
    """There is no such bucket."""
    DENIED = auto()
    """The credentials are valid, but lack a permission; or a proxy refused the request."""
    NO_CREDENTIALS = auto()
    """No credentials were found, and the store refused an anonymous request."""
    BAD_CREDENTIALS = auto()
    """The store does not accept the credentials."""
    EXPIRED_CREDENTIALS = auto()
    """The credentials have expired."""
    WRONG_CLOCK = auto()
    """This machine's clock differs too much from the store's."""
    WRONG_REGION = auto()
    """The bucket is in another region."""
    UNTRUSTED = auto()
    """This machine does not trust the store's certificate."""
    BUSY = auto()
    """The store answered with a transient error: throttling, or a 5xx status."""
    UNREACHABLE = auto()
    """The store did not answer, or the connection broke."""
    OTHER = auto()
    """Any other failure; the message contains the client's own."""

    @property
    def is_missing(self) -> bool:
        """Whether the object or its bucket does not exist."""
        return self in (FailureKind.MISSING_OBJECT, FailureKind.MISSING_BUCKET)

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed later."""
        return self in (FailureKind.BUSY, FailureKind.UNREACHABLE)


class CloudloadError(Exception):
    """The base class of every error that cloudload raises on purpose."""


class StoreError(CloudloadError):
    """A request to a store failed; names the URL, the number of attempts and the cause."""

    def __init__(self, message: str, *, kind: FailureKind = FailureKind.OTHER) -> None:
        super().__init__(message)
        self.kind = kind
        """The kind of failure, for programs to inspect."""

    @property
    def is_missing(self) -> bool:
        """Whether the object or its bucket does not exist."""
        return self.kind.is_missing


class DatasetError(CloudloadError):
    """An index or a shard is invalid; names the dataset and the shard."""


class CacheError(CloudloadError):
    """The shard cache cannot be used, or is too small; names the directory and the bytes."""


class TokenizerError(CloudloadError):
    """A tokenizer cannot be used, or a document cannot be tokenized."""


class ConvertError(CloudloadError):
    """A conversion cannot start or continue; for a bad record, names its file and line."""


class StreamChangedError(CloudloadError):
    """A state does not belong to this loader's rows; lists each field with both values."""


class RanksDisagreeError(CloudloadError):
    """Ranks of one run differ in config or are out of step; names the ranks and the values."""


class WorkerError(CloudloadError):
    """A worker process failed or died (with its traceback), or an iteration was interrupted."""
