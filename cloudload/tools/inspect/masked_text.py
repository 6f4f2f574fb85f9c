"""The text of a document's tokens, in parts that are trained, and parts that are not.

    <|im_start|>user            not trained
    What is 2 + 2?<|im_end|>
    <|im_start|>assistant
    4<|im_end|>                 trained: marked by color, or by brackets

A text that is not shown in full has 800 characters, with the first trained part among them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from cloudload.rows import ids_of
from cloudload.system import counted, terminal
from cloudload.tools.inspect.token_texts import TokenTexts

if TYPE_CHECKING:
    from cloudload.tools.inspect.trained_documents import TrainedDocument

_SHOWN_CHARACTERS, _BEFORE_TRAINED = 800, 200
_INDENT = "    "

Part = tuple[str, bool]
"""A text, and whether it is trained."""
MarkedLine = list[Part]
"""A line on a terminal, in parts."""


@dataclass(frozen=True)
class MaskedText:
    """A document as a run reads it, with the parts that are trained."""

    tokens: int
    """Number of tokens, without bos and eos."""
    trained: int
    """Number of trained tokens."""
    parts: tuple[Part, ...]
    """The texts of consecutive tokens, and whether they are trained, in order. If the document is
    left out, it is what would be read."""
    fault: str | None
    """`refused` if the document cannot be read, `filtered` if a function filters it out,
    `untrained` if no token is trained, `long` if it has more tokens than `max_tokens`, or None."""
    what: str
    """The fault in words, and what a run does because of it."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, with each part as `{"text": …, "trained": …}`."""
        parts = [{"text": text, "trained": is_trained} for text, is_trained in self.parts]
        return {**asdict(self), "parts": parts}

    def describe(self, columns: int, *, is_full: bool) -> Iterator[MarkedLine]:
        """Yield the lines that show the document on a terminal that is `columns` cells wide."""
        if self.fault is not None:
            [said, *_] = terminal.escape_lines(f"{self.fault}: {self.what}")
            yield from ([(f"  {line}", False)] for line in terminal.wrap(said, columns - 2))
        size = sum(len(text) for text, _ in self.parts)
        start, stop = 0, size
        if not is_full:
            prompt = 0 if not self.parts or self.parts[0][1] else len(self.parts[0][0])
            is_far = self.trained > 0 and prompt > _SHOWN_CHARACTERS - _BEFORE_TRAINED
            start = prompt - _BEFORE_TRAINED if is_far else 0
            stop = min(size, start + _SHOWN_CHARACTERS)
        if start:
            yield [(f"  … {counted(start, 'character')} before", False)]
        for line in _split_lines(_cut(self.parts, start, stop)):
            for piece in _wrap(line, columns - len(_INDENT)):
                yield [(_INDENT, False), *piece]
        if stop < size:
            yield [(f"  … {counted(size - stop, 'more character')}", False)]


def mask_text(document: TrainedDocument, texts: TokenTexts) -> MaskedText:
    """Divide the text of a document's tokens where trained tokens begin and end."""
    is_trained = (document.tokens >= 0).tolist()
    pairs = zip(texts.of(ids_of(document.tokens).tolist()), is_trained, strict=True)
    parts = [
        ("".join(text for text, _ in part).encode("utf-8", "surrogateescape"), flag)
        for flag, part in itertools.groupby(pairs, key=itemgetter(1))
    ]
    return MaskedText(
        tokens=len(document.tokens),
        trained=sum(is_trained),
        parts=tuple((text.decode("utf-8", "replace"), flag) for text, flag in parts),
        fault=document.fault,
        what=document.what,
    )


def _cut(parts: Iterable[Part], start: int, stop: int) -> Iterator[Part]:
    """Yield what characters [start, stop) have of the parts."""
    first = 0
    for text, flag in parts:
        if kept := text[max(0, start - first) : max(0, stop - first)]:
            yield kept, flag
        first += len(text)


def _split_lines(parts: Iterable[Part]) -> list[MarkedLine]:
    """Split a text into escaped lines."""
    lines: list[MarkedLine] = [[]]
    for text, flag in parts:
        rest, *more = terminal.escape_lines(text)
        lines[-1].append((rest, flag))
        lines += [[(line, flag)] for line in more]
    # most templates end with a line break
    return lines if any(text for text, _ in lines[-1]) else lines[:-1]


def _wrap(line: MarkedLine, columns: int) -> Iterator[MarkedLine]:
    flags = [flag for text, flag in line for _ in text]
    start = 0
    for piece in terminal.wrap("".join(text for text, _ in line), columns):
        pairs = zip(piece, flags[start : start + len(piece)], strict=True)
        groups = itertools.groupby(pairs, key=itemgetter(1))
        yield [("".join(map(itemgetter(0), group)), flag) for flag, group in groups]
        start += len(piece)
