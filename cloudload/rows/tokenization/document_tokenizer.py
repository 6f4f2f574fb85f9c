"""Encode documents, and decode their IDs.

"ab <eos>"                                  IDs of the text "<eos>"
Text("ab <eos>", special_tokens=True)       the ID of the token <eos>
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from cloudload.config import Text, choices
from cloudload.errors import TokenizerError
from cloudload.rows.tokenization.encoders import Encoder, HFEncoder, open_encoder
from cloudload.rows.tokenization.loading import load_hf
from cloudload.rows.tokenization.tokenizer import TokenizerSpec
from cloudload.system import Ints, Tokens


class DocumentTokenizer:
    """Encodes documents, and decodes token IDs. `options` are passed to `open_encoder`."""

    def __init__(self, spec: TokenizerSpec, backend: str = choices.HF, **options: Any) -> None:
        self._json, self._open = spec.json, partial(open_encoder, spec.json, backend, **options)
        self._encoder = self._open()
        self.frames = spec.frames
        """The (bos, eos) IDs of each stream's documents; None for no token."""

    def encode_flat(self, documents: Sequence[str]) -> tuple[Tokens, Ints]:
        """Encode documents to IDs, int32 [tokens], and offsets, int64 [documents + 1].

        Adds no bos or eos. The names of special tokens are encoded as text, except in a `Text` with
        `special_tokens=True`. The arrays may be read-only. Raises `TokenizerError` for a document
        that cannot be encoded, or if an earlier comparison of fastokens with hf found different
        IDs.
        """
        if Text not in set(map(type, documents)):
            return self._encoder.encode(documents)
        return self._encode_mixed(documents)

    def _encode_mixed(self, documents: Sequence[str]) -> tuple[Tokens, Ints]:
        """Encode documents in two calls: those with `has_special_tokens`, and the others."""
        parts: dict[int, Tokens] = {}
        for is_special in (False, True):
            indices = [
                index
                for index, document in enumerate(documents)
                if has_special_tokens(document) == is_special
            ]
            if indices:
                encoder = self._special_encoder if is_special else self._encoder
                ids, offsets = encoder.encode([str(documents[index]) for index in indices])
                parts |= dict(zip(indices, np.split(ids, offsets[1:-1]), strict=True))
        in_order = [parts[index] for index in range(len(documents))]
        offsets = np.zeros(len(in_order) + 1, np.int64)
        np.cumsum([len(part) for part in in_order], out=offsets[1:])
        return np.concatenate(in_order), offsets

    @cached_property
    def _special_encoder(self) -> Encoder:
        return self._open(special_tokens=True)

    def explain_failure(self, document: str) -> TokenizerError | None:
        """Encode one document with hf, and return the error if this fails, else None."""
        try:
            HFEncoder(self._json, has_special_tokens(document)).encode([document])
        except TokenizerError as error:
            return error
        return None

    def decode(self, tokens: Tokens) -> str:
        """Decode IDs (int32 [tokens]) to text, including special tokens."""
        return decode_ids(self._json, tokens)


def decode_ids(text: str, tokens: Tokens) -> str:
    """Decode IDs (int32 [tokens]) with the tokenizer.json `text`, including special tokens.

    If `text` is empty, because there is no tokenizer, returns the IDs, separated by spaces.
    """
    if not text:
        return " ".join(map(str, tokens.tolist()))
    return str(load_hf(text).decode(tokens.tolist(), skip_special_tokens=False))


def has_special_tokens(document: str) -> bool:
    """Whether the names of special tokens in a document are encoded as these tokens, not as
    text."""
    return isinstance(document, Text) and document.special_tokens
