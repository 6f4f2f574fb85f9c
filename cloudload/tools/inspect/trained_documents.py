"""Read documents as a run does: their tokens, which of them are trained, and what is left out.

    shard, samples ─► rendered, tokenized ─► TrainedDocument
                            │
                            └ cannot be read, no trained token, too long

The readers of a loader's workers do the work, so a tool shows what a run trains.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cloudload.config import Chat, RowsConfig, Stream, choices
from cloudload.data import Corpus, Dataset, Retry, Shard
from cloudload.loading import DocumentReader, OneShard, TokenReader
from cloudload.rows import DocumentTokenizer
from cloudload.run import Recipe, open_recipe_without_data
from cloudload.stats import FILTERED
from cloudload.system import Ints, Tokens

REFUSED, FILTERED_OUT, UNTRAINED, LONG = "refused", "filtered", "untrained", "long"
# a loader ends the run if none of the first 1,000 documents is trained, but a tool reports it
_MOST_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class TrainedDocument:
    """A document, as a run reads it."""

    tokens: Tokens
    """Its tokens, negative where they are not trained: int32 [tokens]. If it is left out, these are
    the tokens that it would have. There are none if it cannot be read."""
    fault: str | None = None
    """`refused` if it cannot be read, `filtered` if a function filters it out, `untrained` if no
    token is trained, `long` if it has more tokens than `max_tokens`, or None."""
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
    if config.may_tokenize:
        config = replace(config, on_error="skip")
    return open_recipe_without_data(config, tokenizer)


class TrainedReader:
    """Reads documents of shards as a run of one stream does. Threads may share it."""

    def __init__(self, recipe: Recipe) -> None:
        """`recipe` is that of `open_recipe_of`."""
        self._recipe = recipe
        self._tokenizer = (
            DocumentTokenizer(recipe.tokenizer, choices.HF) if recipe.tokenizes else None
        )
        # the compiled template of a reader has a state while it renders
        self._lock = threading.Lock()

    def open(self, shard: Shard, first_sample: int = 0) -> ShardDocuments:
        """Open a shard, given the index in the dataset of its first sample, for `encode`."""
        return ShardDocuments(self._recipe, self._tokenizer, self._lock, shard, first_sample)


class ShardDocuments:
    """The documents of one shard."""

    def __init__(
        self,
        recipe: Recipe,
        tokenizer: DocumentTokenizer | None,
        lock: threading.Lock,
        shard: Shard,
        first_sample: int,
    ) -> None:
        [stream], [source] = recipe.config.streams, recipe.config.sources
        [self._chat] = recipe.chats
        self._has_filter = source.transform is not None or source.encode is not None
        self._tokenizer, self._lock, self._shard = tokenizer, lock, shard
        dataset = Dataset(stream.locate(Retry()), (shard.info,), "", first_sample=first_sample)
        # documents of any length are read, and then limited
        chats = (self._chat and replace(self._chat, max_tokens=None),)
        self._recipe = replace(recipe, corpus=Corpus((dataset,)), chats=chats)
        self._reader = DocumentReader(self._recipe, OneShard(shard))

    def read(self, samples: Sequence[int]) -> Iterator[TrainedDocument]:
        """Yield the documents of some samples, given as indices in the shard.

        Raises `DatasetError` for token IDs or labels that are invalid, and `TokenizerError` for a
        text that cannot be encoded.
        """
        for first in range(0, len(samples), _MOST_AT_ONCE):
            some = np.array(samples[first : first + _MOST_AT_ONCE], np.int64)
            with self._lock:
                documents = list(self._read(some))
            yield from map(self._limit, documents)

    def _read(self, samples: Ints) -> Iterator[TrainedDocument]:
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
                is_filtered = self._has_filter and not len(document.tokens)
                what = "is filtered out by a function" if is_filtered else "has no trained token"
                fault = FILTERED_OUT if is_filtered else UNTRAINED
                yield replace(document, fault=fault, what=f"{what}, so it is left out")
            else:
                yield document

    def _limit(self, document: TrainedDocument) -> TrainedDocument:
        """Apply the most tokens of the run's conversations."""
        tokens = document.tokens
        kept = len(tokens) if self._chat is None else self._chat.count_kept(tokens)
        if self._chat is None or kept == len(tokens):
            return document
        what = f"has {len(tokens):,} tokens, more than {self._chat.max_tokens:,}"
        if not kept:
            return replace(document, fault=LONG, what=f"{what}, so it is left out")
        return TrainedDocument(tokens[:kept], LONG, f"{what}, so it is truncated to {kept:,}")
