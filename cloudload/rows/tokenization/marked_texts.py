"""Find the tokens of a `Text` that overlap its trained parts, and keep its literal parts text.

    text       <|user|>Hi<|end|><|assistant|>Yo!<|end|>      trained: Yo!<|end|>
    IDs        90       71  91     92        38  0  91
    bytes      0        8   10     17        30 32  33 40    where each token begins
    trained    -        -   -      -         x   x  x

The bytes of a token follow from its name in the vocabulary. If those of all tokens do not add up to
the text, for example because the tokenizer normalizes it, `tokenizers` encodes the document again,
and says which characters each token has. It also encodes documents with literal parts, in sections
between special tokens.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from cloudload.config import Spans, Text
from cloudload.errors import TokenizerError
from cloudload.rows.tokenization.loading import load_hf, load_special_hf
from cloudload.rows.trained import mark_untrained
from cloudload.system import Flags, Ints, Tokens

_METASPACE = "\u2581"
_OF_BYTES = ("BPE", "tiktoken")
"""The models whose tokens are bytes of the text, if the vocabulary has all bytes."""
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": _METASPACE}
_KEEPS_BYTES = {"ByteLevel", "Spaces", "Prepend"}
"""Normalizers after which the names of the tokens have as many bytes as the text, or more. NFC
keeps the bytes of texts that are normalized."""
_VARIES = 1 << 40
"""The width of a token that takes spaces from the text beside it. No text has so many bytes."""
# around a special token, texts must be encoded as they are alone
_SECTIONS = ("a", " a", "a ", "\na", "a\n", "1", ".", "\u00e9")


def mark(text: Text, ids: Tokens, tokenizer: str) -> Tokens:
    """Return the tokens of a text: its IDs, and which of them are trained; int32 [tokens].

    `ids` are those of the whole text, and `tokenizer` is the text of the tokenizer.json. Raises
    `TokenizerError` if the tokenizer cannot encode the literal parts as text.
    """
    has_literal = bool(text.literal) and text.special_tokens
    starts_of_ids = None if has_literal else _find_bytes(text, ids, tokenizer)
    if starts_of_ids is not None:
        starts, stops = starts_of_ids
        spans = _in_bytes(text, text.trained or ())
    else:
        ids, starts, stops = _encode_again(text, tokenizer)
        spans = np.array(text.trained or (), np.int64).reshape(-1, 2)
    return ids if text.trained is None else mark_untrained(ids, _overlap(starts, stops, spans))


def _overlap(starts: Ints, stops: Ints, spans: Ints) -> Flags:
    """Which ranges [start, stop) overlap one of `spans` (int64 [spans, 2]): bool [ranges].

    An empty range, such as that of a token without characters, belongs to the span that it is in.
    """
    if not len(spans):
        return np.zeros(len(starts), np.bool_)
    first = np.searchsorted(spans[:, 1], starts, side="right")
    begins = np.append(spans[:, 0], np.iinfo(np.int64).max)[first]
    overlaps: Flags = begins < np.maximum(stops, starts + 1)
    return overlaps


def _in_bytes(text: Text, spans: Spans) -> Ints:
    """Convert ranges of characters to ranges of bytes in UTF-8: int64 [spans, 2]."""
    bounds = np.array(spans, np.int64).reshape(-1)
    if text.isascii():
        return bounds.reshape(-1, 2)
    before, sizes = 0, []
    for bound in bounds.tolist():
        sizes.append(len(text[before:bound].encode()))
        before = bound
    return np.cumsum(sizes, dtype=np.int64).reshape(-1, 2)


def _find_bytes(text: Text, ids: Tokens, tokenizer: str) -> tuple[Ints, Ints] | None:
    """The bytes of the text, [start, stop), that each token has: int64 [tokens] each.

    None if they do not follow from the vocabulary.
    """
    measured = _measure_tokens(tokenizer)
    if measured is None:
        return None
    widths, normalizes = measured
    is_ascii = text.isascii()
    if normalizes and not is_ascii and not unicodedata.is_normalized("NFC", text):
        return None
    sizes = widths[ids]
    stops = np.cumsum(sizes)
    size = len(text) if is_ascii else len(text.encode())
    if (int(stops[-1]) if len(stops) else 0) != size:
        return None
    return stops - sizes, stops


@functools.lru_cache(maxsize=2)
def _measure_tokens(tokenizer: str) -> tuple[Ints, bool] | None:
    """The number of bytes of each token in a text, int64 [IDs], and whether it must be in NFC.

    None if the number varies.
    """
    content = json.loads(tokenizer)
    kinds = set(_list_kinds(content.get("normalizer")))
    model = content["model"]
    is_byte_level = "ByteLevel" in {*kinds, *_list_kinds(content.get("pre_tokenizer"))}
    if kinds - _KEEPS_BYTES - {"NFC"} or model.get("type", "BPE") not in _OF_BYTES:
        return None
    vocabulary: dict[str, int] = model["vocab"]
    # a byte without a token would be missing, and make up for one that a normalizer adds
    bytes_of_text = [
        name for name in vocabulary if (len(name) == 1 if is_byte_level else _BYTE.fullmatch(name))
    ]
    if len(bytes_of_text) < 256 or not (is_byte_level or model.get("byte_fallback")):
        return None
    added = content.get("added_tokens") or []
    most = max([*vocabulary.values(), *(token["id"] for token in added)], default=-1)
    widths = np.zeros(most + 1, np.int64)
    for name, token_id in vocabulary.items():
        widths[token_id] = len(name) if is_byte_level else _count_bytes(name)
    for token in added:
        strips = token.get("lstrip") or token.get("rstrip")
        widths[token["id"]] = _VARIES if strips else len(token["content"].encode())
    return widths, "NFC" in kinds


def _count_bytes(name: str) -> int:
    """The number of bytes of a token of SentencePiece, whose names have U+2581 for a space."""
    return 1 if _BYTE.fullmatch(name) else len(name.replace(_METASPACE, " ").encode())


def _list_kinds(part: Any) -> Iterator[str]:
    """Yield the types of a normalizer or pre-tokenizer and of those that it consists of."""
    if isinstance(part, Mapping):
        inner = [*(part.get("normalizers") or ()), *(part.get("pretokenizers") or ())]
        if not inner:
            yield "Spaces" if part == _SPACES else str(part.get("type"))
        for each in inner:
            yield from _list_kinds(each)


# ---------------------------------------------------------------- documents encoded again


def _encode_again(text: Text, tokenizer: str) -> tuple[Tokens, Ints, Ints]:
    """Encode a text with `tokenizers`: its IDs, and the characters [start, stop) of each.

    Returns int32 [tokens] and int64 [tokens] twice.
    """
    whole = load_special_hf(tokenizer) if text.special_tokens else load_hf(tokenizer)
    if not (text.literal and text.special_tokens):
        return _encode_section(whole, str(text), 0)
    plain = load_hf(tokenizer)
    sections = list(_split(text, tokenizer))
    names = {text[start:stop] for start, stop, is_special in sections if is_special}
    if not all(_stands_apart(name, tokenizer) for name in names):
        raise TokenizerError(
            "the document contains the name of a special token as text, but this tokenizer "
            "encodes a text differently next to a special token, so the two cannot be told apart. "
            "Filter out such documents, or set trusted=True to encode such names as special tokens"
        )
    parts = [
        _encode_section(whole if is_special else plain, str(text[start:stop]), start)
        for start, stop, is_special in sections
    ]
    ids, starts, stops = (np.concatenate(column) for column in zip(*parts, strict=True))
    return ids, starts, stops


def _encode_section(tokenizer: Any, text: str, start: int) -> tuple[Tokens, Ints, Ints]:
    found = tokenizer.encode(text, add_special_tokens=False)
    if len(found.offsets) != len(found.ids):
        raise TokenizerError(
            "the tokenizer does not say which characters a token has, so its text cannot have "
            "trained or literal parts. Use a tokenizer.json, or return TokenIds from encode"
        )
    offsets = np.array(found.offsets, np.int64).reshape(-1, 2) + start
    return np.array(found.ids, np.int32), offsets[:, 0], offsets[:, 1]


def _split(text: Text, tokenizer: str) -> Iterator[tuple[int, int, bool]]:
    """Yield the sections of a text: (start, stop, whether it is a special token).

    The names of special tokens in literal parts are no special tokens.
    """
    ends = np.array([stop for _, stop in text.literal], np.int64)
    last = 0
    for match in _special_names(tokenizer).finditer(text):
        start, stop = match.span()
        part = int(np.searchsorted(ends, start, side="right"))
        if part < len(ends) and text.literal[part][0] < stop:
            continue
        if last < start:
            yield last, start, False
        yield start, stop, True
        last = stop
    if last < len(text):
        yield last, len(text), False


@functools.lru_cache(maxsize=2)
def _special_names(tokenizer: str) -> re.Pattern[str]:
    added = json.loads(tokenizer).get("added_tokens") or []
    names = sorted((token["content"] for token in added if token["special"]), key=len)
    return re.compile("|".join(map(re.escape, reversed(names))) or r"(?!)")


@functools.lru_cache(maxsize=1_024)
def _stands_apart(name: str, tokenizer: str) -> bool:
    """Whether texts on both sides of a special token are encoded as they are alone."""
    special, plain = load_special_hf(tokenizer), load_hf(tokenizer)

    def encode(backend: Any, text: str) -> list[int]:
        return list(backend.encode(text, add_special_tokens=False).ids)

    alone = {text: encode(plain, text) for text in _SECTIONS}
    return all(
        encode(special, text + name + text) == [*ids, special.token_to_id(name), *ids]
        for text, ids in alone.items()
    )
