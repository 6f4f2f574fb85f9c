"""Read documents as a run does: their tokens, which of them are trained, and what is left out.

    shard, samples ─► rendered, tokenized ─► TrainedDocument
                            │
                            ├ cannot be read, no trained token
                            └ too long ─► read again with the limit

The readers of a loader's workers do the work, so a tool shows what a run trains.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cloudload.config import Chat, RowsConfig, Stream, choices
from cloudload.data import Corpus, Dataset, Retry, Shard
from cloudload.loading import DocumentReader, TokenReader
from cloudload.rows import DocumentTokenizer
from cloudload.run import Recipe, open_recipe_without_data
from cloudload.stats import FILTERED
from cloudload.system import Ints, Tokens

REFUSED, UNTRAINED, LONG = "refused", "untrained", "long"
# a loader ends the run if none of the first 1,000 documents is trained, but a tool reports it
_MOST_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class TrainedDocument:
    """A document, as a run reads it."""

    tokens: Tokens
    """Its tokens, negative where they are not trained: int32 [tokens]. If it is left out, these are
    the tokens that it would have. There are none if it cannot be read."""
    fault: str | None = None
    """`refused` if it cannot be read, `untrained` if no token is trained, `long` if it has more
    tokens than `max_tokens`, or None."""
    what: str = ""
    """The fault in words, and what a run does because of it."""


def open_recipe_of(stream: Stream, tokenizer: Any, **documents: Any) -> Recipe:
    """Open the recipe of a run that reads only this stream, without its data.

    `documents` has options of `RowsConfig`. A `Chat` without `max_tokens` has no limit, because the
    run's `seq_len` is unknown. Raises `ValueError` for options and templates that cannot be used,
    and `TokenizerError` if the tokenizer cannot be loaded.
    """
    chat = documents.get("chat")
    if isinstance(chat, Chat) and chat.max_tokens is None:
        documents["chat"] = replace(chat, overlong="split")
    config = RowsConfig(streams=(stream,), seq_len=1, bos=None, eos=None, **documents)
    if config.has_text:
        config = replace(config, on_error="skip")
    return open_recipe_without_data(config, tokenizer)


class TrainedReader:
    """Reads documents of shards as a run of one stream does. Threads may share it."""

    def __init__(self, recipe: Recipe) -> None:
        """`recipe` is that of `open_recipe_of`."""
        [chat] = recipe.chats
        self._limit = chat.max_tokens if chat else None
        self._limited = recipe
        self._whole = replace(recipe, chats=(chat and replace(chat, max_tokens=None),))
        self._tokenizer = (
            DocumentTokenizer(recipe.tokenizer, choices.HF) if recipe.tokenizes else None
        )
        # the compiled template of a reader has a state while it renders
        self._lock = threading.Lock()

    def read(self, shard: Shard, samples: Sequence[int]) -> Iterator[TrainedDocument]:
        """Yield the documents of some of a shard's samples, given as indices in the shard.

        Raises `DatasetError` for token IDs or labels that are invalid, and `TokenizerError` for a
        text that cannot be encoded.
        """
        whole = _OneShardReader(self._whole, self._tokenizer, shard)
        for first in range(0, len(samples), _MOST_AT_ONCE):
            with self._lock:
                found = list(whole.read(np.array(samples[first : first + _MOST_AT_ONCE], np.int64)))
            for sample, document in zip(samples[first:], found, strict=False):
                is_long = self._limit is not None and len(document.tokens) > self._limit
                yield self._cut(shard, sample, document) if is_long else document

    def _cut(self, shard: Shard, sample: int, document: TrainedDocument) -> TrainedDocument:
        """Read a long document again with the limit of the run."""
        limited = _OneShardReader(self._limited, self._tokenizer, shard)
        with self._lock:
            [found] = limited.read(np.array([sample]))
        what = f"has {len(document.tokens):,} tokens, more than {self._limit:,}"
        if found.fault is not None:
            return replace(document, fault=LONG, what=f"{what}, so it is left out")
        kept = f"{what}, so it is truncated to {len(found.tokens):,}"
        return TrainedDocument(found.tokens, LONG, kept)


class _OneShardReader:
    """Reads documents of one shard."""

    def __init__(self, recipe: Recipe, tokenizer: DocumentTokenizer | None, shard: Shard) -> None:
        [stream] = recipe.config.streams
        dataset = Dataset(stream.locate(Retry()), (shard.info,), "")
        self._recipe = replace(recipe, corpus=Corpus((dataset,)))
        self._tokenizer, self._shard = tokenizer, shard
        self._reader = DocumentReader(self._recipe, OneShard(shard))

    def read(self, samples: Ints) -> Iterator[TrainedDocument]:
        """Yield the documents of `samples`, int64 [samples]."""
        read = TokenReader(self._recipe, self._reader, self._tokenizer).read(samples)
        tokens: dict[int, Tokens] = {}
        for part in read.parts:
            own = np.split(part.tokens, np.cumsum(part.sizes)[:-1])
            tokens |= zip(part.indices.tolist(), own, strict=True)
        for index, sample in enumerate(samples.tolist()):
            document = TrainedDocument(tokens.get(index, np.empty(0, np.int32)))
            if (error := read.failures.get(index)) is not None:
                said = error.summary.removeprefix(self._shard.where(sample)).lstrip(": ")
                yield replace(document, fault=REFUSED, what=said)
            elif read.left_out[index] == FILTERED:
                what = "has no trained token, so it is left out"
                yield replace(document, fault=UNTRAINED, what=what)
            else:
                yield document


@dataclass(frozen=True)
class OneShard:
    """A `ShardSource` whose only shard is open."""

    only: Shard

    def shard(self, index: int) -> Shard:
        """Return the shard."""
        return self.only

    def prefetch(self, indices: Iterable[int]) -> None:
        """Do nothing."""
