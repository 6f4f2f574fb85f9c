"""Every error that cloudload raises on purpose.

    CloudloadError
    ├── StoreError           an object cannot be read, written, listed or deleted; `kind` says why
    ├── DatasetError         a dataset is invalid or has no tokens, or a transform failed
    ├── CacheError           the shard cache cannot be used, or is too small for the run
    ├── TokenizerError       a tokenizer cannot be used, or a document cannot be tokenized
    ├── ConvertError         a raw corpus cannot be converted, or the output holds another dataset
    ├── StreamChangedError   a state is damaged, or does not belong to this loader's rows
    ├── RanksDisagreeError   ranks differ in config, are out of step, or cannot communicate
    └── WorkerError          a worker process failed or died, or an iteration was interrupted

A wrong argument raises `ValueError`. Each message says what happened, where, and what to do next.
"""

from __future__ import annotations

from enum import Enum, auto


class FailureKind(Enum):
    """Why a request to a store failed."""

    MISSING_OBJECT = auto()
    """The object, file or folder does not exist."""
    MISSING_BUCKET = auto()
    """The bucket does not exist."""
    DENIED = auto()
    """The credentials are valid but lack a permission, or a proxy refused the request."""
    NO_CREDENTIALS = auto()
    """No credentials were found, and the store refused an anonymous request."""
    BAD_CREDENTIALS = auto()
    """The store does not accept the credentials."""
    EXPIRED_CREDENTIALS = auto()
    """The credentials have expired."""
    WRONG_CLOCK = auto()
    """This machine's clock differs too much from the store's."""
    WRONG_REGION = auto()
    """The bucket is in a different region."""
    UNTRUSTED = auto()
    """This machine does not trust the store's certificate."""
    BUSY = auto()
    """The store answered with a transient error, such as throttling or a 5xx status."""
    UNREACHABLE = auto()
    """The store did not answer, or the connection broke."""
    OTHER = auto()
    """Any other failure. The message contains the store client's message."""

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
    """A request to a store failed.

    The message names the URL, the number of attempts and the cause.
    """

    def __init__(self, message: str, *, kind: FailureKind = FailureKind.OTHER) -> None:
        super().__init__(message)
        self.kind = kind
        """The kind of failure, for programs to inspect."""

    @property
    def is_missing(self) -> bool:
        """Whether the object or its bucket does not exist."""
        return self.kind.is_missing


class DatasetError(CloudloadError):
    """An index, shard or sample is invalid, the data has no tokens, or a transform failed.

    The message names the dataset, and the shard and the sample if there is one.
    """


class CacheError(CloudloadError):
    """The shard cache cannot be used, or is too small.

    The message names the folder, or the limit and the bytes needed.
    """


class TokenizerError(CloudloadError):
    """A tokenizer cannot be used, or a document cannot be tokenized."""


class ConvertError(CloudloadError):
    """A conversion cannot start or continue.

    For a bad record, the message names its file and line.
    """


class StreamChangedError(CloudloadError):
    """A state is damaged, or does not belong to this loader's rows.

    The message names the damaged field, or lists each field that differs with both values.
    """


class RanksDisagreeError(CloudloadError):
    """Ranks of one run differ in config, are out of step, or cannot communicate but must.

    If they differ, the message lists the values of all processes.
    """


class WorkerError(CloudloadError):
    """A worker process failed or died, or an iteration was ended or interrupted.

    For a failure, the message contains the worker's traceback.
    """
