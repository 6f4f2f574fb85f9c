"""Cut a lane's documents into rows of exactly `seq_len` tokens.

    documents   aaaa bbbbbbb cc        seq_len = 5
    rows        aaaab bbbbb bcc..      spans of row 0: a[0:4] b[0:1]
    cursors     (1,1) (1,6) (3,0)      after each row: the document of the next unread token, and the token

A cursor is all that a lane's future depends on: two integers, never tokens, and the same however far the lane has read ahead.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from cloudload.tokenizer import Tokens

SPAN_FIELDS = ("row", "stream", "epoch", "sample", "start", "stop")


@dataclass(frozen=True)
class Document:
    """A tokenized document of a lane. `sample` counts within its stream."""

    ordinal: int
    stream: int
    epoch: int
    sample: int
    tokens: Tokens


class ConcatLane:
    """A lane whose documents run on over the ends of rows: no padding but at the end of the data, nothing cut."""

    def __init__(self, ordinal: int, offset: int) -> None:
        self.cursor = (ordinal, offset)
        self.num_tokens = 0
        self._documents: deque[Document] = deque()
        self._offset = 0
        self._to_drop = offset

    def add(self, document: Document) -> None:
        """Append the lane's next document."""
        size = len(document.tokens)
        if self._to_drop:
            if document.ordinal != self.cursor[0] or self._to_drop > size:
                raise ValueError(
                    f"the cursor stands at token {self._to_drop} of document {self.cursor[0]}, "
                    f"but document {document.ordinal} has {size} tokens"
                )
            size -= self._to_drop
            self._offset, self._to_drop = self._to_drop if size else 0, 0
        if size:
            self._documents.append(document)
            self.num_tokens += size

    def cut_row(self, row: Tokens) -> list[tuple[int, int, int, int, int]]:
        """Fill `row` (int32 [seq_len]) from its start as far as there are tokens, and move the cursor; returns the row's spans
        (stream, epoch, sample, start, stop)."""
        filled, spans = 0, []
        while filled < len(row) and self._documents:
            document = self._documents[0]
            start = self._offset
            stop = min(len(document.tokens), start + len(row) - filled)
            row[filled : filled + stop - start] = document.tokens[start:stop]
            spans.append((document.stream, document.epoch, document.sample, start, stop))
            filled += stop - start
            if stop == len(document.tokens):
                self._documents.popleft()
                self._offset = 0
                self.cursor = (document.ordinal + 1, 0)
            else:
                self._offset = stop
                self.cursor = (document.ordinal, stop)
        self.num_tokens -= filled
        return spans
