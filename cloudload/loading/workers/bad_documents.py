"""Decide which errors make a document bad, and log the documents that are left out.

    bad document        text that is not UTF-8, a transform that raises or does not return text
    not the document    an error of the machine, of a store, of the shard, or of the tokenizer

A document is skipped only if every worker, on every machine and after every resume, would skip it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from cloudload.data.mds.shard import BadDocumentError
from cloudload.errors import CloudloadError

logger = logging.getLogger("cloudload.workers")

# errors that may depend on memory, the stack, files, the network, packages or warning filters
_FOREIGN = (MemoryError, RecursionError, OSError, ImportError, Warning, CloudloadError)


def find_foreign_cause(error: BaseException) -> BaseException | None:
    """Return `error`, or a cause of it, if the document may not be at fault; otherwise None.

    Follows the causes and contexts that a traceback would show, and the errors of a group.
    """
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        cause = waiting.pop()
        if cause is None or id(cause) in seen:
            continue
        if _is_foreign(cause):
            return cause
        seen.add(id(cause))
        waiting += [cause.__cause__, None if cause.__suppress_context__ else cause.__context__]
        grouped = getattr(cause, "exceptions", ())
        if isinstance(grouped, tuple):
            waiting += [each for each in grouped if isinstance(each, BaseException)]
    return None


def _is_foreign(error: BaseException) -> bool:
    if not isinstance(error, Exception) or isinstance(error, _FOREIGN):
        return True
    # a time limit depends on the machine's speed
    return any("Timeout" in base.__name__ for base in type(error).__mro__)


class SkipLog:
    """Logs the documents that one process leaves out: the 1st, 2nd, 4th, 8th, … of each stream."""

    def __init__(self) -> None:
        self._num_read: Counter[str] = Counter()
        self._num_skipped: Counter[str] = Counter()

    def count_read(self, streams: Iterable[str]) -> None:
        """Count documents that were read. `streams` has the name of each document's stream."""

        self._num_read.update(streams)

    def record(self, stream: str, error: BadDocumentError) -> None:
        """Record a document of `stream` that is left out because of `error`."""
        self._num_skipped[stream] += 1
        number = self._num_skipped[stream]
        if number & (number - 1) == 0:
            logger.warning(
                "on_error='skip' left out a document: %s. This process has left out %s of the %s "
                "documents that it read from %s",
                error.summary,
                f"{number:,}",
                f"{self._num_read[stream]:,}",
                stream,
            )
