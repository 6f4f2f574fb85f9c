"""Contents of three kinds of `tokenizer.json`, and modified copies of them."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers

from cloudload.rows.tokenization import backend as gate
from cloudload.rows.tokenization import encoders, loading
from testkit.corpora import byte_tokenizer

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "tokenizer" / "tokenizer.json"
needs_fastokens = pytest.mark.skipif(
    find_spec("fastokens") is None, reason="fastokens is not installed"
)
BACKENDS = ["hf", pytest.param("fastokens", marks=needs_fastokens)]


def forget() -> None:
    loading._loadings.clear()
    encoders._comparison.cache_clear()
    loading._kept.clear()
    loading.load_special_hf.cache_clear()
    gate._refusals.clear()
    gate._warnings.clear()


def sentencepiece(letters: str = string.printable.strip() + "é") -> str:
    """A tokenizer like Llama 2's, with `▁` for spaces and byte tokens for unknown characters."""
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *letters,
        "th",
        "▁th",
        "▁the",
    ]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    merges = [("t", "h"), ("▁", "th"), ("▁th", "e")]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return str(tokenizer.to_str())


JSONS: dict[str, Callable[[], str]] = {
    "bytes": lambda: byte_tokenizer().to_str(),
    "byte-level": lambda: EXAMPLE.read_text("utf-8"),
    "sentencepiece": sentencepiece,
}


def changed(change: Callable[[dict[str, Any]], Any], name: str = "byte-level") -> str:
    """The contents of `JSONS[name]`, modified by `change`."""
    content = json.loads(JSONS[name]())
    change(content)
    return json.dumps(content, ensure_ascii=False)


def lose_byte(content: dict[str, Any]) -> None:
    """Remove the byte `Z` from the vocabulary by giving its ID to a different token."""
    model = content["model"]
    model["vocab"] = {
        "ZZ☃" if token == "Z" else token: number for token, number in model["vocab"].items()
    }
    model["merges"] = [pair for pair in model["merges"] if "Z" not in "".join(pair)]
