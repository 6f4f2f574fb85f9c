"""The rows of a run of conversations and text, from transformers and a simple packer.

    messages ─► transformers' chat template and assistant mask ─► documents ─► rows
    text     ─► tokenizers, plus eos ─────────────────────────────┘

Nothing here renders, tokenizes, masks or packs with cloudload.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cloudload import Chat
from testkit.best_fit_oracle import Item, Lane, Span
from testkit.conversations import BEGIN, END, PAD, Message

IGNORED = -100
Document = tuple[list[int], list[int]]
"""IDs and labels."""
RowTuple = tuple[list[int], list[int], list[Span]]
"""The IDs, the labels, and the spans of a row."""
_NAMES = re.compile("|".join(map(re.escape, (BEGIN, END, PAD))))


class ConcatLane(Lane):
    """A lane whose documents continue in the next row."""

    def next_row(self, seq_len: int, most_open: int, *, is_tail: bool = False) -> list[Item] | None:
        row: list[Item] = []
        free = seq_len
        while free and self.has_items():
            ordinal, lane, epoch, sample, start, stop = self.items.popleft()
            end = min(stop, start + free)
            row.append((ordinal, lane, epoch, sample, start, end))
            free -= end - start
            if end < stop:
                self.items.appendleft((ordinal, lane, epoch, sample, end, stop))
        return row if row and (not free or is_tail) else None


@dataclass(frozen=True)
class Renderer:
    """Renders conversations as `chat` asks, with a transformers tokenizer.

    `template` has `{% generation %}` blocks, though `chat` may use the same one without them.
    """

    tokenizer: Any
    template: str
    chat: Chat
    limit: int
    """Most tokens of a document."""

    def document(self, messages: Sequence[Message]) -> Document:
        """The IDs and labels of a conversation. Both are empty if it is left out."""
        ids, turns = self._render(messages)
        if self.chat.train == "last":
            turns = turns[-1:]
        if not self.chat.train_eot:
            turns = [(start, stop - 1) for start, stop in turns]
        if len(ids) > self.limit and self.chat.overlong != "split":
            ends = [stop for _, stop in turns if stop <= self.limit]
            if self.chat.overlong == "drop" or not ends:
                return [], []
            ids = ids[: ends[-1]]
        trained = {place for start, stop in turns for place in range(start, stop)}
        labels = [token if place in trained else IGNORED for place, token in enumerate(ids)]
        return (ids, labels) if max(labels, default=IGNORED) >= 0 else ([], [])

    def _render(self, messages: Sequence[Message]) -> tuple[list[int], list[tuple[int, int]]]:
        """The IDs, and the ranges of tokens that the assistant wrote."""
        if not self.chat.trusted and any(_NAMES.search(each["content"]) for each in messages):
            return self._render_by_hand(messages)
        found = self.tokenizer.apply_chat_template(
            messages,
            chat_template=self.template,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        return list(found["input_ids"]), _runs(found["assistant_masks"])

    def _render_by_hand(
        self, messages: Sequence[Message]
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """As `TEMPLATE` of `conversations` does, with the names in messages as plain text."""
        begin, end = self.tokenizer.convert_tokens_to_ids([BEGIN, END])
        ids: list[int] = []
        turns = []
        for message in messages:
            header, is_trained = message["role"] + "\n", message["role"] == "assistant"
            body = self._encode(header + message["content"])
            # both parts are encoded as one text; no token of these tokenizers spans a line break
            start = len(ids) + 1 + len(self._encode(header))
            ids += [begin, *body, end]
            turns += [(start, len(ids))] if is_trained else []
            ids += self._encode("\n")
        return ids, turns

    def _encode(self, text: str) -> list[int]:
        return list(
            self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        )


def text_documents(tokenizer: Any, texts: Iterable[str], eos: int) -> list[Document]:
    """The IDs and labels of texts, with the token `eos` after each of them."""
    documents = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        documents.append(([*ids, eos], [*ids, eos]))
    return documents


def fill_row(
    spans: Sequence[Span], documents: Sequence[Sequence[Document]], seq_len: int, pad: int = 0
) -> RowTuple:
    """The row that has these spans of `documents` (by stream and sample)."""
    ids: list[int] = []
    labels: list[int] = []
    for stream, _, sample, start, stop in spans:
        ids += documents[stream][sample][0][start:stop]
        labels += documents[stream][sample][1][start:stop]
    free = seq_len - len(ids)
    return ids + [pad] * free, labels + [IGNORED] * free, list(spans)


def _runs(mask: Sequence[int]) -> list[tuple[int, int]]:
    """The ranges of ones in a mask."""
    edges = [
        place
        for place, (one, other) in enumerate(zip([0, *mask], [*mask, 0], strict=True))
        if one != other
    ]
    return list(zip(edges[::2], edges[1::2], strict=True))
