"""The text of each token, such that the joined texts of a document's tokens are its text.

    byte-level BPE     "Ġthe"     " the"       "âĸ"      bytes E2 96, part of a character
    byte fallback      "▁the"     " the"       "<0xE2>"  byte E2

A byte that is only a part of a character is written as the surrogate U+DC00 plus the byte, as in
Python's `surrogateescape`. To get the bytes of tokens, join their texts, and encode the result with
`surrogateescape`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from cloudload.rows import list_byte_letters, load_hf

_SPACE_MARK = "\u2581"
_FALLBACK_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenTexts:
    """Finds the text of tokens by ID, with the tokenizer.json `text`.

    If `text` is empty, because there is no tokenizer, the text of a token is its ID.
    """

    def __init__(self, text: str) -> None:
        content = json.loads(text) if text else {}
        self._tokenizer = load_hf(text) if text else None
        self._added = {each["id"]: each for each in content.get("added_tokens") or ()}
        kinds = {
            *_list_kinds(content.get("decoder")),
            *_list_kinds(content.get("pre_tokenizer")),
        }
        self._is_byte_level = "ByteLevel" in kinds
        self._has_fallback = "ByteFallback" in kinds or bool(
            content.get("model", {}).get("byte_fallback")
        )
        self._found: dict[int, str] = {}

    def of(self, ids: Iterable[int]) -> list[str]:
        """The text of each token."""
        return [self._found.get(id) or self._find(id) for id in ids]

    def is_special(self, id: int) -> bool:
        """Whether a token is a special token, such as bos or eos."""
        return bool(self._added.get(id, {}).get("special"))

    def _find(self, id: int) -> str:
        self._found[id] = text = self._decode(id)
        return text

    def _decode(self, id: int) -> str:
        if self._tokenizer is None:
            return f"{id} "
        if id in self._added:
            return str(self._added[id]["content"])
        token = self._tokenizer.id_to_token(id)
        if token is None:
            return f"<no token {id}>"
        if self._has_fallback and (byte := _FALLBACK_BYTE.fullmatch(token)):
            return _decode_bytes(bytes.fromhex(byte[1]))
        if self._is_byte_level and all(letter in _BYTES for letter in token):
            return _decode_bytes(bytes(_BYTES[letter] for letter in token))
        return str(token.replace(_SPACE_MARK, " "))


def _decode_bytes(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _list_kinds(part: Any) -> set[str]:
    """The types of a decoder or pre-tokenizer, and of its components."""
    if not isinstance(part, dict):
        return set()
    kinds = {str(part.get("type"))}
    for inner in [*(part.get("decoders") or ()), *(part.get("pretokenizers") or ())]:
        kinds |= _list_kinds(inner)
    return kinds


_BYTES = list_byte_letters()
