"""Read the tokens of samples, whatever their documents are made of.

    samples ─┬─► texts ─► left out, or tokenized ─┬─► tokens of each sample, or why it has none
             └─► token IDs ───────────────────────┘

A loader packs these tokens, and `cloudload count` stores their numbers, so both agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cloudload.data import BadDocumentError
from cloudload.errors import TokenizerError
from cloudload.loading.workers.document_reader import DocumentReader, TextOrError, TokenPart
from cloudload.rows import DocumentTokenizer, tables
from cloudload.run import Recipe
from cloudload.stats import FAILED, FILTERED, TOKENIZE
from cloudload.system import Flags, Ints, Tokens, activity, stage


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
        lengths = self.sizes.copy()
        lengths[self.left_out == FILTERED] = tables.Size.FILTERED
        lengths[self.left_out == FAILED] = tables.Size.FAILED
        return lengths

    @property
    def text_bytes(self) -> int:
        """The size of the texts in UTF-8, or 4 bytes for each token if there are none."""
        if not self.texts:
            return 4 * int(self.sizes.sum())
        return sum(len(text.encode()) for text in self.texts if isinstance(text, str))


class TokenReader:
    """Reads the tokens of a corpus's samples. `tokenizer` is None if no documents are text."""

    def __init__(
        self, recipe: Recipe, reader: DocumentReader, tokenizer: DocumentTokenizer | None
    ) -> None:
        self._corpus, self.samples, self._tokenizer = recipe.corpus, reader, tokenizer
        sources = recipe.config.sources
        self._is_text = np.array([source.is_text for source in sources])
        self._may_mask = np.array([source.may_mask for source in sources])

    def read(self, samples: Ints) -> SampleTokens:
        """Read `samples` of the corpus (int64 [samples]).

        A document without trained tokens is filtered out. Raises `TokenizerError` if a text cannot
        be encoded, and the errors of `DocumentReader`.
        """
        sizes, left_out = np.zeros((2, len(samples)), np.int64)
        failures: dict[int, BadDocumentError] = {}
        streams = self._corpus.streams_of(samples)
        is_text = self._is_text[streams]
        parts, texts = [], list[TextOrError]()
        if len(tokenized := np.flatnonzero(~is_text)):
            for part in self.samples.read_tokens(samples[tokenized]):
                parts.append(part._replace(indices=tokenized[part.indices]))
        if len(indices := np.flatnonzero(is_text)):
            texts = self.samples.read_texts(samples[indices])
            parts.append(TokenPart(indices, *self._tokenize(samples[indices], texts)))
            if None in texts:
                left_out[indices[[text is None for text in texts]]] = FILTERED
            for index, text in zip(indices.tolist(), texts, strict=True):
                if isinstance(text, BadDocumentError):
                    left_out[index], failures[index] = FAILED, text
        may_mask = self._may_mask[streams]
        for part in parts:
            sizes[part.indices] = part.sizes
            if may_mask[part.indices].any():
                left_out[part.indices[_has_none_trained(part)]] = FILTERED
        return SampleTokens(parts, sizes, left_out, failures, texts)

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


def _has_none_trained(part: TokenPart) -> Flags:
    """Which documents have tokens, but none that are trained: bool [n]."""
    trained_before = np.append(0, np.cumsum(part.tokens >= 0))
    stops = np.cumsum(part.sizes)
    has_none: Flags = trained_before[stops] == trained_before[stops - part.sizes]
    return has_none & (part.sizes > 0)
