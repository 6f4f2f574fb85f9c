"""Warn about a stream whose first documents are mostly not text.

    text        prose, code, JSON, 狐, عربي, 🦊, ASCII art, terminal colors
    not text    token IDs or UTF-16 read as UTF-8, gzip read as Latin-1, U+FFFD, base64,
                lists of integers

A doubt is only a warning, and does not change the rows. Only the first 4 documents of a stream are
checked, so the check costs nothing later.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cloudload.system.arrays import Ints

_DOCUMENTS = 4
_LEAST_CHARACTERS, _MOST_CHARACTERS = 8, 4_096
_DOUBTFUL_SHARE = 0.05
_LEAST_CLASS_SHARE, _MOST_SLASHES_SHARE = 0.02, 0.05

# control characters, except white space, backspace, terminal colors, and next line
_CONTROL = re.compile("[\x00-\x07\x0e-\x1a\x1c-\x1f\x7f-\x84\x86-\x9f]")
_INTEGERS = re.compile(r"\[?\s*(?:\d{1,7}[\s,]+){31,}\d*\s*\]?\s*")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{60,}={0,2}")


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
