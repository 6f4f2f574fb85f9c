"""Every error that cloudload raises on purpose.

    CloudloadError
    ├── StoreError           an object could not be read, written or listed
    ├── DatasetError         an index or a shard is not what it should be
    ├── CacheError           the shard cache cannot hold what the run needs
    ├── TokenizerError       a tokenizer cannot be used, or a document not tokenized
    ├── ConvertError         a raw corpus holds records that cannot be converted
    ├── StreamChangedError   a state does not belong to this loader's rows
    ├── RanksDisagreeError   ranks of one run differ in config or are out of step
    └── WorkerError          a worker process failed or died, or an iteration was interrupted

A wrong argument is a plain `ValueError`. Each message says what happened, where, and what to do.
"""


class CloudloadError(Exception):
    """The root of the tree above."""


class StoreError(CloudloadError):
    """An object could not be read, written or listed; names the URL, the attempts and the cause."""

    def __init__(self, message: str, *, is_missing: bool = False) -> None:
        super().__init__(message)
        self.is_missing = is_missing
        """Whether it is that there is no such object, folder or bucket."""


class DatasetError(CloudloadError):
    """An index or a shard is not what it should be; names the dataset and the shard."""


class CacheError(CloudloadError):
    """The shard cache cannot hold what the run needs; names the directory and the bytes."""


class TokenizerError(CloudloadError):
    """A tokenizer cannot be used, or a document cannot be tokenized."""


class ConvertError(CloudloadError):
    """A raw corpus holds records that cannot be converted; names file and line."""


class StreamChangedError(CloudloadError):
    """A state does not belong to this loader's rows; lists each field with both values."""


class RanksDisagreeError(CloudloadError):
    """Ranks of one run differ in config or are out of step; names the ranks and the values."""


class WorkerError(CloudloadError):
    """A worker process failed or died, or an iteration was interrupted; carries the worker's
    traceback."""
