"""The errors that cloudload defines.

    CloudloadError
    ├── StoreError           an object cannot be read, written, listed or deleted; see its `kind`
    ├── DatasetError         a dataset is invalid or has no tokens, or a transform failed
    ├── CacheError           the cache folder cannot be used, or the cache limit is too low
    ├── TokenizerError       a tokenizer cannot be used, or a document cannot be tokenized
    ├── ConvertError         a raw corpus cannot be converted, or the output holds another dataset
    ├── StreamChangedError   a state is missing or damaged, or does not match the loader
    ├── RanksDisagreeError   ranks differ in config, are out of step, or cannot communicate
    └── WorkerError          a worker process failed or died, or an iteration was interrupted

An invalid argument raises `ValueError`. Messages say what happened and where, and usually what to
do next.
"""

from __future__ import annotations

from enum import Enum, auto


class FailureKind(Enum):
    """The cause of a failed request to a store."""

    MISSING_OBJECT = auto()
    """The object, file or folder does not exist. Some stores report a missing bucket this way."""
    MISSING_BUCKET = auto()
    """The bucket does not exist."""
    DENIED = auto()
    """The store or a proxy denied access, for instance because a permission is missing."""
    NO_CREDENTIALS = auto()
    """No credentials were found, and the store refused an anonymous request."""
    BAD_CREDENTIALS = auto()
    """The store rejected the credentials, or they could not be loaded."""
    EXPIRED_CREDENTIALS = auto()
    """The credentials have expired."""
    WRONG_CLOCK = auto()
    """This machine's clock differs too much from the store's."""
    WRONG_REGION = auto()
    """The bucket is in a different region."""
    UNTRUSTED = auto()
    """This machine does not trust the store's certificate."""
    BUSY = auto()
    """The store returned a transient error, such as throttling or a 5xx status."""
    REFUSED = auto()
    """The address refused the connection, because no server listens there."""
    UNKNOWN_HOST = auto()
    """The host name has no address, or the lookup failed."""
    TIMED_OUT = auto()
    """The store did not respond in time."""
    UNREACHABLE = auto()
    """The store could not be reached for another reason, or the connection broke."""
    OTHER = auto()
    """Any other failure, such as a missing package."""

    @property
    def is_missing(self) -> bool:
        """Whether the object or its bucket does not exist."""
        return self in (FailureKind.MISSING_OBJECT, FailureKind.MISSING_BUCKET)

    @property
    def is_transient(self) -> bool:
        """Whether a retry of the same request may succeed."""
        return self is FailureKind.BUSY or self.is_of_connection

    @property
    def is_of_credentials(self) -> bool:
        """Whether other credentials may be accepted."""
        return self in (
            FailureKind.DENIED,
            FailureKind.BAD_CREDENTIALS,
            FailureKind.EXPIRED_CREDENTIALS,
        )

    @property
    def is_of_connection(self) -> bool:
        """Whether the store returned no response, or only a part of one."""
        return self in (
            FailureKind.REFUSED,
            FailureKind.UNKNOWN_HOST,
            FailureKind.TIMED_OUT,
            FailureKind.UNREACHABLE,
        )


class CloudloadError(Exception):
    """The base class of the errors that cloudload defines."""


class StoreError(CloudloadError):
    """A request to a store failed, or a package that the store needs is missing.

    The message names the cause and the URL, or only the URL's scheme if a package is missing.
    """

    def __init__(self, message: str, *, kind: FailureKind = FailureKind.OTHER) -> None:
        super().__init__(message)
        self.kind = kind
        """The cause of the failure, for programs that handle causes differently."""

    @property
    def is_missing(self) -> bool:
        """Whether the object or its bucket does not exist."""
        return self.kind.is_missing


class DatasetError(CloudloadError):
    """An index, shard or sample cannot be used, the data has no tokens, or a transform failed.

    Also raised for a location that has raw files, or several datasets, instead of an index. The
    message names the dataset, shard or sample where these are known.
    """


class CacheError(CloudloadError):
    """The cache folder cannot be used, or the cache limit is too low.

    The folder holds shards and epoch orders.
    """


class TokenizerError(CloudloadError):
    """A tokenizer cannot be used, or a document cannot be tokenized."""


class ConvertError(CloudloadError):
    """A conversion cannot start or continue.

    For a bad record, the message says where it is in the input.
    """


class StreamChangedError(CloudloadError):
    """A state is missing or damaged, or does not match the loader or the data.

    If options or data differ from those in the state, the message lists the differences.
    """


class RanksDisagreeError(CloudloadError):
    """Ranks of one run differ in config, are out of step, or must communicate but cannot.

    If configs differ, the message lists every differing value, by process.
    """


class WorkerError(CloudloadError):
    """A worker process failed or died, or an iteration was ended or interrupted.

    If the worker raised an error, the message contains its traceback.
    """
