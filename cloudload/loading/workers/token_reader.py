"""Read the tokens of samples, whatever their documents are made of.

    samples ─┬─► texts ─► left out, or tokenized ─┬─► tokens of each sample, or why it has none
             ├─► encoded, or left out ────────────┤
             └─► token IDs ───────────────────────┘

A loader packs these tokens, and `cloudload count` stores their numbers, so both agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cloudload.data import BadDocumentError
from cloudload.errors import DatasetError, TokenizerError
from cloudload.loading.workers.document_reader import (
    DocumentReader,
    TextOrError,
    TokenPart,
    TokensOrError,
)
from cloudload.rows import DocumentTokenizer, tables
from cloudload.run import Recipe
from cloudload.stats import DOCUMENTS, FAILED, FILTERED, TOKENIZE
from cloudload.system import NEVER, Flags, Ints, Tokens, activity, counted, stage

MOST_UNTRAINED = 1_000
"""If so many first documents of a stream are filtered out, and no other, the stream is wrong."""


@dataclass(frozen=True)
class SampleTokens:
    """The tokens of samples, without bos and eos."""

    parts: Sequence[TokenPart]
    sizes: Ints
    """The number of tokens of each sample: int64 [samples]."""
    left_out: Ints
    """Why a sample is left out: `FILTERED`, `FAILED`, or 0 if it is not; int64 [samples]."""
    failures: Mapping[int, BadDocumentError]
    """The error of each sample that failed, by index."""
    texts: Sequence[TextOrError]
    """The texts of those samples whose documents are text."""

    @property
    def lengths(self) -> Ints:
        """The lengths as `cloudload count` stores them, which may be a `tables.Size`: int64."""
        return tables.sizes_with_reasons(self.sizes, self.left_out)

    @property
    def text_bytes(self) -> int:
        """The size of the texts in UTF-8, or 4 bytes for each token if there are none."""
        if not self.texts:
            return 4 * int(self.sizes.sum())
        return sum(len(text.encode()) for text in self.texts if isinstance(text, str))


class TokenReader:
    """Reads the tokens of a corpus's samples. `tokenizer` is None if it is not used."""

    def __init__(
        self, recipe: Recipe, reader: DocumentReader, tokenizer: DocumentTokenizer | None
    ) -> None:
        self._corpus, self.samples, self._tokenizer = recipe.corpus, reader, tokenizer
        sources = recipe.config.sources
        self._is_text = np.array([source.is_text for source in sources])
        self._is_encoded = np.array([source.encode is not None for source in sources])
        self._may_mask = np.array([source.may_mask for source in sources])
        self._chats = recipe.chats
        self._limits = np.array(
            [chat.max_tokens if chat and chat.max_tokens else NEVER for chat in recipe.chats]
        )
        self._untrained = UntrainedCheck(recipe)
        self._middles = recipe.middles

    def read(self, samples: Ints) -> SampleTokens:
        """Read `samples` of the corpus (int64 [samples]).

        A document without trained tokens is filtered out. Raises `TokenizerError` if a text cannot
        be encoded, `DatasetError` if none of a stream's first documents has trained tokens, and the
        errors of `DocumentReader`.
        """
        sizes, left_out = np.zeros((2, len(samples)), np.int64)
        failures: dict[int, BadDocumentError] = {}
        streams = self._corpus.streams_of(samples)
        is_text, is_encoded = self._is_text[streams], self._is_encoded[streams]
        parts, texts = [], list[TextOrError]()
        if len(tokenized := np.flatnonzero(~(is_text | is_encoded))):
            for part in self.samples.read_tokens(samples[tokenized]):
                parts.append(part._replace(indices=tokenized[part.indices]))
        if len(indices := np.flatnonzero(is_text)):
            texts = self.samples.read_texts(samples[indices])
            part = TokenPart(indices, *self._tokenize(samples[indices], texts))
            parts.append(self._limit(part, streams[indices], left_out))
            _leave_out(texts, indices, left_out, failures)
        if len(indices := np.flatnonzero(is_encoded)):
            made = self.samples.read_encoded(samples[indices], self._tokenizer)
            parts.append(_join(indices, made))
            _leave_out(made, indices, left_out, failures)
        may_mask = self._may_mask[streams]
        for number, part in enumerate(parts):
            if may_mask[part.indices].any():
                left_out[part.indices[_has_none_trained(part)]] = FILTERED
            if any(self._middles):
                parts[number] = self._fill_middles(part, samples, streams)
            sizes[part.indices] = parts[number].sizes
        if not self._untrained.is_over:
            self._untrained.look(streams, left_out == FILTERED)
        return SampleTokens(parts, sizes, left_out, failures, texts)

    def _fill_middles(self, part: TokenPart, samples: Ints, streams: Ints) -> TokenPart:
        """Move the middles of some documents, whose samples and streams are given (int64)."""
        for stream in np.unique(streams[part.indices]).tolist():
            if (rule := self._middles[stream]) is not None:
                own = np.flatnonzero(streams[part.indices] == stream)
                numbers = self._corpus.number_samples(stream, samples[part.indices[own]])
                part = TokenPart(part.indices, *rule.fill(part.tokens, part.sizes, own, numbers))
        return part

    def _limit(self, part: TokenPart, streams: Ints, left_out: Ints) -> TokenPart:
        """Truncate conversations of more than the most tokens, or filter them out in `left_out`."""
        is_long = part.sizes > self._limits[streams]
        if not is_long.any():
            return part
        sizes, starts = part.sizes.copy(), np.cumsum(part.sizes) - part.sizes
        for index in np.flatnonzero(is_long).tolist():
            chat, start = self._chats[streams[index]], int(starts[index])
            assert chat is not None
            sizes[index] = chat.count_kept(part.tokens[start : start + int(sizes[index])])
        left_out[part.indices[is_long & (sizes == 0)]] = FILTERED
        is_kept = np.arange(len(part.tokens)) < np.repeat(starts + sizes, part.sizes)
        return TokenPart(part.indices, part.tokens[is_kept], sizes)

    def _tokenize(self, samples: Ints, texts: Sequence[TextOrError]) -> tuple[Tokens, Ints]:
        """Encode texts to tokens, int32 [tokens], of these sizes, int64 [texts]; 0 for no text."""
        assert self._tokenizer is not None
        kept = [text if isinstance(text, str) else "" for text in texts]
        try:
            with activity.doing(f"tokenizing {len(kept):,} documents"), stage(TOKENIZE):
                tokens, offsets = self._tokenizer.encode_flat(kept)
                return tokens, np.diff(offsets)
        except TokenizerError as error:
            for text, sample in zip(kept, samples.tolist(), strict=True):
                if failure := self._tokenizer.explain_failure(text):
                    raise TokenizerError(f"{self.samples.where(sample)}: {failure}") from error
            raise


def _leave_out(
    documents: Sequence[TextOrError | TokensOrError],
    indices: Ints,
    left_out: Ints,
    failures: dict[int, BadDocumentError],
) -> None:
    """Say in `left_out` and `failures` why documents at `indices` (int64 [n]) are left out."""
    for index, document in zip(indices.tolist(), documents, strict=True):
        if document is None:
            left_out[index] = FILTERED
        elif isinstance(document, BadDocumentError):
            left_out[index], failures[index] = FAILED, document


def _join(indices: Ints, made: Sequence[TokensOrError]) -> TokenPart:
    """Join the tokens of the documents at `indices` (int64 [n]); a left out one has no tokens."""
    none = np.zeros(0, np.int32)
    parts = [each if isinstance(each, np.ndarray) else none for each in made]
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    return TokenPart(indices, np.concatenate(parts), sizes)


class UntrainedCheck:
    """Looks at the first documents of each stream of conversations, or of token IDs with labels.

    If all of them are left out, the template or the labels are wrong, not the documents. Each
    worker looks at the documents that it reads, and each rank at the counts of all ranks.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._labels, self._sources, self._chats = (
            recipe.labels,
            recipe.config.sources,
            recipe.chats,
        )
        self._left = {
            stream: MOST_UNTRAINED
            for stream, source in enumerate(self._sources)
            if source.chat or (source.tokens and source.tokens.labels_key)
        }
        has_limits = recipe.config.min_tokens > 1 or recipe.config.max_tokens is not None
        self._or = ", or are excluded by min_tokens or max_tokens" if has_limits else ""

    @property
    def is_over(self) -> bool:
        """Whether each stream has documents with trained tokens."""
        return not self._left

    def look(self, streams: Ints, is_filtered: Flags) -> None:
        """Look at documents of `streams` (int64 [documents]).

        Raises `DatasetError` if the first documents of a stream are all filtered out.
        """
        for stream in self._left.keys() & set(streams.tolist()):
            own = is_filtered[streams == stream]
            self._left[stream] -= len(own)
            if not own.all():
                del self._left[stream]
            elif self._left[stream] <= 0:
                raise DatasetError(self._explain(stream, MOST_UNTRAINED))

    def find_fault(self, counts: Ints, least: int = MOST_UNTRAINED) -> str | None:
        """Describe what is wrong with a stream if at least `least` documents of it were read, and
        all were filtered out. `counts` of a run are int64 [streams, counts]."""
        self._left = {each: n for each, n in self._left.items() if not counts[each, DOCUMENTS]}
        filtered = {stream: int(counts[stream, FILTERED]) for stream in self._left}
        return next(
            (self._explain(stream, num) for stream, num in filtered.items() if num >= least), None
        )

    def _explain(self, stream: int, number: int) -> str:
        chat, tokens = self._chats[stream], self._sources[stream].tokens
        start = f"all of the first {number:,} documents of {self._labels[stream]} are left"
        if chat is not None:
            limit = ""
            if chat.max_tokens:
                limit = f", or have more than {counted(chat.max_tokens, 'token')}"
            return (
                f"{start} out, because they have no trained tokens by the chat template "
                f"{chat.template.name!r}{limit}{self._or}. Look at some of them with cloudload "
                "head, and change the options of Chat, such as train, template, or max_tokens"
            )
        assert tokens is not None
        return (
            f"{start} out, because they have no trained tokens by the column "
            f"{tokens.labels_key!r}{self._or}. Set labels_key to another column, or omit it"
        )


def _has_none_trained(part: TokenPart) -> Flags:
    """Which documents have tokens, but none that are trained: bool [n]."""
    is_trained = part.tokens >= 0
    if is_trained.all():
        return np.zeros(len(part.sizes), np.bool_)
    trained_before = np.append(0, np.cumsum(is_trained))
    stops = np.cumsum(part.sizes)
    has_none: Flags = trained_before[stops] == trained_before[stops - part.sizes]
    return has_none & (part.sizes > 0)
