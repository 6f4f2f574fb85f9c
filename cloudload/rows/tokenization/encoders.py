"""Encode documents to one flat array of IDs, with one of two backends that produce the same IDs.

    hf          Hugging Face `tokenizers`, the reference
    fastokens   many times faster, for tokenizers that pass the checks of `choose_backend`

    documents   "ab" "" "c"    IDs 12 7 9    offsets 0 2 2 3    document i: offsets[i] to [i + 1]

    "ab <eos>"                                  IDs of the text "<eos>"
    Text("ab <eos>", special_tokens=True)       the ID of the token <eos>

There are two safeguards for fastokens. If it fails on a document, hf encodes the document. A
background thread also encodes a sample of the documents with hf, and compares the IDs. Only one
worker of each node runs this comparison, because hf needs hundreds of MB of memory.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from array import array
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np

from cloudload.config import Text, choices
from cloudload.errors import TokenizerError
from cloudload.rows.tokenization import marked_texts
from cloudload.rows.tokenization.loading import has_hf, load_fastokens, load_hf, load_special_hf
from cloudload.rows.tokenization.tokenizer import TokenizerSpec
from cloudload.system import Ints, Tokens

logger = logging.getLogger("cloudload.tokenizer")
# compare a process's first 64 documents, then 1 in 10,000, because hf is 10 to 130 times slower
COMPARED_FIRST, COMPARED_EVERY = 64, 10_000
# skip longer documents: hf needs about 60 bytes per character, so a 100 MB book would need 6 GB
_MOST_COMPARED_CHARACTERS = 1 << 22
_SHOWN_CHARACTERS = 80
# load hf only after the first batches, because loading it blocks the process's other threads
LOADING_DELAY_S = 1.0


class Encoder(Protocol):
    """The interface of a tokenizer backend: text to token IDs."""

    def encode(self, documents: Sequence[str]) -> tuple[Tokens, Ints]:
        """Encode documents to IDs, int32 [tokens], and offsets, int64 [documents + 1].

        The IDs of document i are `ids[offsets[i] : offsets[i + 1]]`. Adds no special tokens. The
        arrays may be read-only. Raises `TokenizerError` for a document that is not valid text, or
        that `tokenizers` cannot encode.
        """
        ...


def open_encoder(
    text: str, backend: str, *, special_tokens: bool = False, compares: bool = True
) -> Encoder:
    """Open an encoder for the tokenizer.json `text`. `backend` is `hf` or `fastokens`.

    If `special_tokens` is True, the encoder encodes the names of special tokens as these tokens,
    not as text. If `compares` is True, a fastokens encoder compares a sample of its IDs with those
    of hf.
    """
    if backend == choices.FASTOKENS:
        return FastokensEncoder(text, special_tokens, compares=compares)
    return HFEncoder(text, special_tokens)


class HFEncoder:
    """Encodes documents with `tokenizers`, the reference backend."""

    def __init__(self, text: str, special_tokens: bool = False) -> None:
        self._tokenizer = load_special_hf(text) if special_tokens else load_hf(text)

    def encode(self, documents: Sequence[str]) -> tuple[Tokens, Ints]:
        """See `Encoder`."""
        try:
            encodings = self._tokenizer.encode_batch_fast(list(documents), add_special_tokens=False)
        except BaseException as error:
            if not is_failure(error):
                raise
            raise _explain_failure(documents, error) from error
        offsets = np.zeros(len(encodings) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, encodings), np.int64, len(encodings)), out=offsets[1:])
        ids = array("i")
        for encoding in encodings:
            ids.fromlist(encoding.ids)
        return np.array(ids, np.int32), offsets


class FastokensEncoder:
    """Encodes documents with `fastokens`, or with `tokenizers` if fastokens fails on a document."""

    def __init__(self, text: str, special_tokens: bool = False, *, compares: bool = True) -> None:
        self._text, self._special_tokens = text, special_tokens
        self._fast = load_fastokens(text)
        self._comparison = _comparison(text, special_tokens) if compares else None
        self.num_failed = 0
        """Number of documents on which fastokens failed."""

    def encode(self, documents: Sequence[str]) -> tuple[Tokens, Ints]:
        """See `Encoder`.

        Also raises `TokenizerError` if an earlier comparison with hf found different IDs.
        """
        documents = documents if isinstance(documents, list) else list(documents)
        ids, offsets = self._encode(documents)
        if self._comparison is not None:
            self._comparison.watch(documents, ids, offsets)
        return ids, offsets

    def _encode(self, documents: list[str]) -> tuple[Tokens, Ints]:
        try:
            return encode_flat(self._fast, documents, not self._special_tokens)
        except BaseException as error:
            if not is_failure(error):
                raise
            if len(documents) == 1:
                return self._encode_by_hf(documents, error)
        half = len(documents) // 2
        ids, offsets = self._encode(documents[:half])
        more_ids, more_offsets = self._encode(documents[half:])
        return np.concatenate([ids, more_ids]), np.concatenate(
            [offsets, offsets[-1] + more_offsets[1:]]
        )

    def _encode_by_hf(self, documents: list[str], error: BaseException) -> tuple[Tokens, Ints]:
        encoded = HFEncoder(self._text, self._special_tokens).encode(documents)
        if not self.num_failed:
            logger.warning(
                "fastokens failed on a document (%s), so tokenizers encodes this document and any "
                "others on which fastokens fails. The document begins %r",
                *(error, documents[0][:_SHOWN_CHARACTERS]),
            )
        self.num_failed += 1
        return encoded


class _Comparison:
    """Compares a sample of a process's IDs with the IDs from hf, in a background thread."""

    def __init__(self, text: str, special_tokens: bool) -> None:
        self._text, self._special_tokens = text, special_tokens
        self._thread = ThreadPoolExecutor(1, "cloudload-compare")
        self._seen = 0, 0
        """The number of documents seen, and the index of the next one to compare. Without a lock,
        because a signal handler may also encode: threads may then compare a document twice."""
        self._held: deque[tuple[str, list[int]]] = deque()
        self._loads_at = time.monotonic() + LOADING_DELAY_S
        self._difference: TokenizerError | None = None

    def watch(self, documents: Sequence[str], ids: Tokens, offsets: Ints) -> None:
        """Queue a sample of the documents for comparison, except very long ones.

        `ids` and `offsets` are as `Encoder.encode` returns them. Raises `TokenizerError` if an
        earlier comparison found a difference.
        """
        if self._difference is not None:
            raise TokenizerError(str(self._difference))
        num_seen, following = self._seen
        while following < num_seen + len(documents):
            index = following - num_seen
            if len(documents[index]) <= _MOST_COMPARED_CHARACTERS:
                own = ids[offsets[index] : offsets[index + 1]].tolist()
                self._held.append((documents[index], own))
            following += 1 if following < COMPARED_FIRST - 1 else COMPARED_EVERY
        self._seen = num_seen + len(documents), following
        if has_hf(self._text) or time.monotonic() >= self._loads_at:
            with contextlib.suppress(IndexError):  # none are left
                while True:
                    self._thread.submit(self._compare, *self._held.popleft())

    def _compare(self, document: str, ids: list[int]) -> None:
        encoder = HFEncoder(self._text, self._special_tokens)
        try:
            expected = encoder.encode([document])[0].tolist()
        except TokenizerError as error:
            difference = _explain_uncompared(document, error)
        else:
            if expected == ids:
                return
            difference = _explain_difference(document, ids, expected)
        if self._difference is None:
            self._difference = difference
            logger.error("%s", difference)


@functools.lru_cache(maxsize=2)
def _comparison(text: str, special_tokens: bool) -> _Comparison:
    return _Comparison(text, special_tokens)


# a forked child needs a new `_Comparison`, because threads do not survive a fork
os.register_at_fork(after_in_child=_comparison.cache_clear)


def encode_flat(
    fast: Any, documents: list[str], split_special_tokens: bool = True
) -> tuple[Tokens, Ints]:
    """Encode documents as `Encoder.encode` does, with a `fastokens.Tokenizer`.

    If `split_special_tokens` is False, the names of special tokens are encoded as these tokens. The
    arrays are read-only. Raises any error that fastokens raises.
    """
    ids, offsets = fast.encode_batch_flat(
        documents, add_special_tokens=False, split_special_tokens=split_special_tokens
    )
    return np.frombuffer(ids, np.int32), np.frombuffer(offsets, np.int64)


def is_failure(error: BaseException) -> bool:
    """Whether an error is a failure of an encoder, not an interrupt.

    A panic in Rust is a failure, although it is not an `Exception`.
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


# ---------------------------------------------------------------- errors


def _explain_failure(documents: Sequence[str], error: BaseException) -> TokenizerError:
    for document in documents:
        if not isinstance(document, str):
            return TokenizerError(
                f"a document is {type(document).__name__}, not text. Return str or None from "
                "`transform`"
            )
        try:
            document.encode()
        except UnicodeEncodeError as found:
            return TokenizerError(
                f"a document has a lone surrogate, U+{ord(document[found.start]):X}, at character "
                f"{found.start:,}, so it is not valid text. The document begins "
                f"{document[:_SHOWN_CHARACTERS]!r}. Fix it in `transform`, for instance with "
                "text.encode('utf-8', 'replace').decode()"
            )
    return TokenizerError(
        f"tokenizers failed on a document: {error}. Filter out such documents in `transform`, or "
        "start a new run with a different tokenizer"
    )


def _explain_uncompared(document: str, error: TokenizerError) -> TokenizerError:
    return TokenizerError(
        "the IDs of a document cannot be compared, because fastokens encoded it but tokenizers "
        f"failed: {error.__cause__!r}. The document begins {document[:_SHOWN_CHARACTERS]!r}. "
        "Filter out such documents in `transform`, or start a new run with a different tokenizer"
    )


def _explain_difference(document: str, ids: list[int], expected: list[int]) -> TokenizerError:
    index = next(
        (i for i, (one, other) in enumerate(zip(ids, expected, strict=False)) if one != other),
        min(len(ids), len(expected)),
    )
    return TokenizerError(
        "fastokens and tokenizers produced different IDs for a document. Starting at token "
        f"{index} of {len(expected)}, fastokens produced {ids[index : index + 5]}, but tokenizers "
        f"produced {expected[index : index + 5]}. The document begins "
        f"{document[:_SHOWN_CHARACTERS]!r}. Rows read so far may contain wrong IDs. Restart with "
        "tokenizer_backend='hf', from the beginning or from a state that you trust, and open a "
        "cloudload issue that includes the text"
    )


class DocumentTokenizer:
    """Encodes documents, and decodes token IDs. `options` are passed to `open_encoder`."""

    def __init__(self, spec: TokenizerSpec, backend: str = choices.HF, **options: Any) -> None:
        self._json, self._open = spec.json, partial(open_encoder, spec.json, backend, **options)
        self._encoder = self._open()
        self.frames = spec.frames
        """The (bos, eos) IDs of each stream's documents; None for no token."""

    def encode_flat(self, documents: Sequence[str]) -> tuple[Tokens, Ints]:
        """Encode documents to tokens, int32 [tokens], and offsets, int64 [documents + 1].

        Adds no bos or eos. The names of special tokens are encoded as text, except in a `Text` with
        `special_tokens=True`, and tokens are trained, except in a `Text` that says otherwise; see
        `rows.trained`. The arrays may be read-only. Raises `TokenizerError` for a document
        that cannot be encoded, or if an earlier comparison of fastokens with hf found different
        IDs.
        """
        if Text not in set(map(type, documents)):
            return self._encoder.encode(documents)
        return self._encode_mixed(documents)

    def encode_one(self, document: str) -> Tokens:
        """Encode a document to tokens, int32 [tokens], as `encode_flat` does."""
        return self.encode_flat([document])[0]

    def _encode_mixed(self, documents: Sequence[str]) -> tuple[Tokens, Ints]:
        """Encode documents in two calls: those with `has_special_tokens`, and the others.

        A document with literal parts is encoded again.
        """
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
        for index, document in enumerate(documents):
            if isinstance(document, Text) and (document.trained is not None or document.literal):
                parts[index] = marked_texts.mark(document, parts[index], self._json)
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
