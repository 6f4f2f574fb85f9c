"""Read documents as a run does: their tokens, which of them are trained, and what is left out.

    shard, samples ─► rendered, tokenized ─► TrainedDocument
                            │
                            ├ cannot be read, no trained token
                            └ too long ─► read again with the limit

The readers of a loader's workers do the work, so a tool shows what a run trains.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from cloudload.config import Chat, RowsConfig, Stream, choices
from cloudload.data import Corpus, Dataset, Retry, Shard
from cloudload.loading import DocumentReader, TokenReader
from cloudload.rows import DocumentTokenizer
from cloudload.run import Recipe, open_recipe_without_data
from cloudload.stats import FILTERED
from cloudload.system import NEVER, Ints, Tokens

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
        [chat] = recipe.chats
        self._limit = chat.max_tokens if chat else None
        self._limited = recipe
        self._whole = replace(recipe, chats=(chat and replace(chat, max_tokens=None),))
        self._tokenizer = (
            DocumentTokenizer(recipe.tokenizer, choices.HF) if recipe.tokenizes else None
        )
        # the compiled template of a reader has a state while it renders
        self._lock = threading.Lock()

    def open(self, shard: Shard, first_sample: int = 0) -> ShardDocuments:
        """Open a shard, given the index in the dataset of its first sample, for `encode`."""

        def read(recipe: Recipe) -> _OneShardReader:
            return _OneShardReader(recipe, self._tokenizer, shard, first_sample)

        whole = read(self._whole)
        return ShardDocuments(whole, partial(read, self._limited), self._limit, self._lock)


class ShardDocuments:
    """The documents of one shard."""

    def __init__(
        self,
        whole: _OneShardReader,
        open_limited: Callable[[], _OneShardReader],
        limit: int | None,
        lock: threading.Lock,
    ) -> None:
        self._whole, self._open_limited = whole, functools.cache(open_limited)
        self._limit, self._lock = limit, lock

    def read(self, samples: Sequence[int]) -> Iterator[TrainedDocument]:
        """Yield the documents of some samples, given as indices in the shard.

        Raises `DatasetError` for token IDs or labels that are invalid, and `TokenizerError` for a
        text that cannot be encoded.
        """
        for first in range(0, len(samples), _MOST_AT_ONCE):
            some = np.array(samples[first : first + _MOST_AT_ONCE], np.int64)
            with self._lock:
                documents = list(self._whole.read(some))
                sizes = np.array([len(document.tokens) for document in documents])
                long = np.flatnonzero(sizes > (NEVER if self._limit is None else self._limit))
                for index, limited in zip(
                    long.tolist(), self._read_limited(some[long]), strict=True
                ):
                    documents[index] = self._cut(documents[index], limited)
            yield from documents

    def _read_limited(self, samples: Ints) -> list[TrainedDocument]:
        """Read long documents again with the limit of the run."""
        return list(self._open_limited().read(samples)) if len(samples) else []

    def _cut(self, document: TrainedDocument, limited: TrainedDocument) -> TrainedDocument:
        what = f"has {len(document.tokens):,} tokens, more than {self._limit:,}"
        if limited.fault is not None:
            return replace(document, fault=LONG, what=f"{what}, so it is left out")
        kept = f"{what}, so it is truncated to {len(limited.tokens):,}"
        return TrainedDocument(limited.tokens, LONG, kept)


class _OneShardReader:
    """Reads documents of one shard."""

    def __init__(
        self,
        recipe: Recipe,
        tokenizer: DocumentTokenizer | None,
        shard: Shard,
        first_sample: int,
    ) -> None:
        [stream] = recipe.config.streams
        dataset = Dataset(stream.locate(Retry()), (shard.info,), "", first_sample=first_sample)
        [source] = recipe.config.sources
        self._has_filter = source.transform is not None or source.encode is not None
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
                is_filtered = self._has_filter and not len(document.tokens)
                what = "is filtered out by a function" if is_filtered else "has no trained token"
                fault = FILTERED_OUT if is_filtered else UNTRAINED
                yield replace(document, fault=fault, what=f"{what}, so it is left out")
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
