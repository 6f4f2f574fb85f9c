"""Decide which documents are bad or doubtful: leave out and log the bad, and warn of the doubtful.

    bad document        text that is not UTF-8, a transform that raises or does not return text
    not the document    an error of the machine, of a store, of the shard, or of the tokenizer

A document is skipped only if every worker, on every machine and after every resume, would skip it.

    text        prose, code, JSON, 狐, عربي, 🦊, ASCII art, terminal colors
    not text    token IDs or UTF-16 read as UTF-8, gzip read as Latin-1, U+FFFD, base64,
                lists of integers

A stream whose first documents are mostly not text is in doubt. This is only a warning, and does not
change the rows. Only the first 4 documents are checked, so the check costs nothing later.
"""

from __future__ import annotations

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cloudload.data import BadDocumentError
from cloudload.errors import CloudloadError
from cloudload.system import Ints

logger = logging.getLogger("cloudload.workers")

# errors that may depend on memory, the stack, files, the network, packages or warning filters
_FOREIGN = (MemoryError, RecursionError, OSError, ImportError, Warning, CloudloadError)

_DOCUMENTS = 4
_LEAST_CHARACTERS, _MOST_CHARACTERS = 8, 4_096
_DOUBTFUL_SHARE = 0.05
_LEAST_CLASS_SHARE, _MOST_SLASHES_SHARE = 0.02, 0.05

# control characters, except white space, backspace, terminal colors, and next line
_CONTROL = re.compile("[\x00-\x07\x0e-\x1a\x1c-\x1f\x7f-\x84\x86-\x9f]")
_INTEGERS = re.compile(r"\[?\s*(?:\d{1,7}[\s,]+){31,}\d*\s*\]?\s*")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{60,}={0,2}")


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
        count = self._num_skipped[stream]
        if count & (count - 1) == 0:
            logger.warning(
                "on_error='skip' left out a document: %s. This process has left out %s of the %s "
                "documents that it read from %s",
                error.summary,
                f"{count:,}",
                f"{self._num_read[stream]:,}",
                stream,
            )


class Doubt(NamedTuple):
    """A reason to doubt that a document is text."""

    sample: int
    """The document's index in the corpus."""
    reason: str
    """The reason, as text that follows "it"."""
    excerpt: str
    """The document's first 40 characters, escaped."""


class TextCheck:
    """Looks at the first 4 documents of each of `streams`."""

    def __init__(self, streams: Iterable[int]) -> None:
        self._left = dict.fromkeys(streams, _DOCUMENTS)
        self._found: defaultdict[int, list[Doubt]] = defaultdict(list)

    @property
    def is_over(self) -> bool:
        """Whether every stream was checked."""
        return not self._left

    def look(self, stream: int, samples: Ints, texts: Sequence[str | None]) -> Doubt | None:
        """Check documents of a stream, and return a doubt if most of its first documents are
        doubtful.

        `samples` (int64 [documents]) are the documents' indices in the corpus. A stream is checked
        once, after its first 4 documents were read.
        """
        for sample, text in zip(samples.tolist(), texts, strict=True):
            if stream not in self._left:
                break
            if text is None:
                continue
            if reason := reason_to_doubt(text):
                self._found[stream].append(Doubt(sample, reason, ascii(text[:40])))
            self._left[stream] -= 1
            if not self._left[stream]:
                del self._left[stream]
                found = self._found.pop(stream, [])
                return found[0] if 2 * len(found) > _DOCUMENTS else None
        return None


def reason_to_doubt(text: str) -> str | None:
    """Say why a document does not look like text, or return None. Checks only its start."""
    head = text[:_MOST_CHARACTERS]
    if len(head) < _LEAST_CHARACTERS:
        return None
    control = (len(head) - len(_CONTROL.sub("", head))) / len(head)
    if control > _DOUBTFUL_SHARE:
        return f"has {control:.0%} NUL and control characters"
    replaced = head.count("\ufffd") / len(head)
    if replaced > _DOUBTFUL_SHARE:
        return f"has {replaced:.0%} replacement characters (U+FFFD) for invalid bytes"
    if _INTEGERS.fullmatch(head):
        return "is a list of integers"
    return "is base64" if _is_base64(head) else None


def _is_base64(head: str) -> bool:
    """Whether most of a text is long runs that mix upper case, lower case, and digits.

    Names, DNA and hexadecimal digits lack one of these three. Paths have more slashes.
    """
    runs = "".join(_BASE64.findall(head))
    if 2 * len(runs) <= len(head) or runs.count("/") > _MOST_SLASHES_SHARE * len(runs):
        return False
    classes = (str.isupper, str.islower, str.isdigit)
    counts = (sum(map(is_of_class, runs)) for is_of_class in classes)
    return all(count > _LEAST_CLASS_SHARE * len(runs) for count in counts)
