"""Features of a tokenizer.json for which fastokens may give different IDs than `tokenizers`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def find_unsupported_feature(content: Mapping[str, Any]) -> str | None:
    """Find a feature of a tokenizer.json for which fastokens may fail or give wrong IDs.

    `content` is the parsed tokenizer.json. Returns a description of the first one found, or None.
    """
    model = content["model"]
    if model.get("type") != "BPE":
        return f"the tokenizer's model is {model.get('type')}, not BPE"
    if model.get("dropout"):
        return "the tokenizer's model has dropout"
    if affixes := [
        name for name in ("continuing_subword_prefix", "end_of_word_suffix") if model.get(name)
    ]:
        return f"the tokenizer's model has a {affixes[0]}"
    return _check_added_tokens(content.get("added_tokens") or [], model["vocab"]) or _check_bytes(
        content
    )


def _check_added_tokens(
    tokens: Iterable[Mapping[str, Any]], vocabulary: Mapping[str, int]
) -> str | None:
    for token in tokens:
        name, number = token["content"], token["id"]
        if vocabulary.get(name, number) != number:
            return (
                f"the tokenizer's added token {name!r} has the ID {number}, but its ID in the "
                f"vocabulary is {vocabulary[name]}"
            )
        if flags := [flag for flag in ("lstrip", "rstrip", "single_word") if token.get(flag)]:
            return f"the tokenizer's added token {name!r} has {flags[0]}"
    return None


def _check_bytes(content: Mapping[str, Any]) -> str | None:
    model = content["model"]
    if _has_byte_level(content.get("pre_tokenizer")) or _has_byte_level(content.get("normalizer")):
        from tokenizers.pre_tokenizers import ByteLevel

        symbols = sorted(ByteLevel.alphabet())
    elif model.get("byte_fallback"):
        symbols = [f"<0x{byte:02X}>" for byte in range(256)]
    else:
        return "the tokenizer is not byte-level and does not fall back to bytes"
    missing = [symbol for symbol in symbols if symbol not in model["vocab"]]
    return (
        f"the tokenizer's vocabulary is missing {len(missing)} of the 256 bytes, such as "
        f"{missing[0]!r}"
        if missing
        else None
    )


def _has_byte_level(part: Any) -> bool:
    if not isinstance(part, Mapping):
        return False
    inner = [*(part.get("pretokenizers") or ()), *(part.get("normalizers") or ())]
    return part.get("type") == "ByteLevel" or any(map(_has_byte_level, inner))
