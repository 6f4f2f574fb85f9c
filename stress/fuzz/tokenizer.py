"""Fuzz both tokenizer backends with texts that contain the names of control tokens."""

from __future__ import annotations

import functools
import json
import string

from tokenizers import Tokenizer, decoders

from cloudload.config.choices import FASTOKENS, HF
from cloudload.rows.tokenization.encoders import DocumentTokenizer
from cloudload.rows.tokenization.tokenizer import load_tokenizer
from stress.fuzz.engine import Choices, Target, expect
from testkit.corpora import EOS, byte_tokenizer
from testkit.trained_tokenizers import END_OF_TEXT, small_tokenizer

_SIGNS = (
    *("", " ", "\0", "\n\n", "é", "狐", "🦊", "e\u0301", "\u200d", "\ufeff", "the"),
    *("<|", "|>", "<", "\ud800", "\udfff", "\U0010ffff"),
)


Case = tuple[DocumentTokenizer, DocumentTokenizer, set[int], list[str]]
"""A tokenizer in both backends, with the IDs and names of its control tokens."""


@functools.cache
def tokenizers() -> list[Case]:
    """Return two small tokenizers, a byte-level one and a trained BPE."""
    with_bytes = Tokenizer.from_str(byte_tokenizer().to_str())
    with_bytes.decoder = decoders.ByteLevel()
    found: list[Case] = []
    for tokenizer in (with_bytes, small_tokenizer()):
        spec = load_tokenizer(tokenizer, [(None, None)])
        added = [token for token in json.loads(spec.json)["added_tokens"] if token["special"]]
        names = [*(token["content"] for token in added), EOS, END_OF_TEXT]
        hf, fastokens = (DocumentTokenizer(spec, backend) for backend in (HF, FASTOKENS))
        found.append((hf, fastokens, {token["id"] for token in added}, names))
    return found


def run_tokenizer_text(data: bytes) -> None:
    """Check that encoding a text yields no control ID, and the same IDs in both backends.

    Also checks that the IDs decode to the text. The input chooses the text and the tokenizer.
    """
    choices = Choices(data)
    hf, fast, control, names = choices.pick(tokenizers())
    text = ""
    while choices:
        kinds = [names, _SIGNS, string.printable, chr(choices.number(0x3000))]
        text += choices.pick(choices.pick(kinds))
    ids = hf.encode_flat([text])[0]
    expect(not control & set(ids.tolist()), f"the IDs of {text!r} contain a control ID")
    is_same = ids.tolist() == fast.encode_flat([text])[0].tolist()
    expect(is_same, f"the backends produce different IDs for {text!r}")
    expect(hf.decode(ids) == text, f"the IDs of {text!r} decode to {hf.decode(ids)!r}")


TOKENIZER_TEXT = Target(run_tokenizer_text, prepare=tokenizers)
