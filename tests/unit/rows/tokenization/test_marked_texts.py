"""Which tokens of a text are trained, compared with the offsets of `tokenizers`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from cloudload import Text
from cloudload.config.transform import Spans
from cloudload.errors import TokenizerError
from cloudload.rows.tokenization import marked_texts
from cloudload.rows.tokenization.encoders import DocumentTokenizer
from cloudload.rows.tokenization.tokenizer import load_tokenizer
from cloudload.rows.trained import ids_of
from testkit.tokenizer_files import BACKENDS, JSONS, changed
from testkit.trained_tokenizers import small_tokenizer


def normalize(kind: str) -> str:
    return changed(lambda content: content.update(normalizer={"type": kind}))


def with_stripping(content: dict[str, Any]) -> None:
    for token in content["added_tokens"]:
        token["rstrip"] = True


def with_first(content: dict[str, Any]) -> None:
    """Put a space before a document, but not after its special tokens."""
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"}
    content.update(normalizer=None, pre_tokenizer={**metaspace, "split": False})


def with_mask(content: dict[str, Any]) -> None:
    """Add special tokens, of which the last takes the spaces before it."""
    first = max([*content["model"]["vocab"].values(), *(t["id"] for t in content["added_tokens"])])
    flags = dict.fromkeys(["single_word", "rstrip", "normalized", "lstrip"], False)
    names = [*(f"<{number}>" for number in range(9)), "<mask>"]
    content["added_tokens"] += [
        {"id": first + 1 + number, "content": name, "special": True, **flags}
        for number, name in enumerate(names)
    ]
    content["added_tokens"][-1]["lstrip"] = True


TOKENIZERS = {
    "trained": small_tokenizer().to_str(),
    **{name: make() for name, make in JSONS.items()},
    "NFC": normalize("NFC"),
    "lowercase": normalize("Lowercase"),
    "strips": changed(with_stripping),
    "first": changed(with_first, "sentencepiece"),
    "mask": changed(with_mask),
    "sentencepiece with mask": changed(with_mask, "sentencepiece"),
}
PIECES = [
    "the ",
    "\n",
    " ",
    "a",
    "Grüße",
    "e\u0301",
    "狐",
    "🦊🦊",
    "İ",
    "<|endoftext|>",
    "<eos>",
    "</s>",
    "quick brown",
    "  <mask>",
]


@st.composite
def marked(draw: st.DrawFn) -> Text:
    """A text of some pieces, with random trained parts."""
    text = "".join(draw(st.lists(st.sampled_from(PIECES), max_size=12)))
    bounds = sorted(draw(st.sets(st.integers(0, len(text)), max_size=6)))
    spans = list(zip(bounds[::2], bounds[1::2], strict=False))
    return Text(text, special_tokens=draw(st.booleans()), trained=spans)


def encode(text: Text, name: str, backend: str = "hf") -> list[int]:
    """The tokens of a document that consists of this text."""
    spec = load_tokenizer(Tokenizer.from_str(TOKENIZERS[name]), [(None, None)])
    tokens, _ = DocumentTokenizer(spec, backend).encode_flat([text])
    return list(map(int, tokens))


def is_inside(span: tuple[int, int], trained: Spans) -> bool:
    """Whether characters [first, last), or the place between two, are in a trained part."""
    first, last = span
    return any(start < max(last, first + 1) and first < stop for start, stop in trained)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=marked())
def test_a_token_is_trained_if_a_trained_part_has_one_of_its_characters(
    name: str, text: Text
) -> None:
    reference = Tokenizer.from_str(TOKENIZERS[name])
    reference.encode_special_tokens = not text.special_tokens
    expected = reference.encode(str(text), add_special_tokens=False)
    found = encode(text, name)
    assert ids_of(np.array(found, np.int32)).tolist() == expected.ids
    assert text.trained is not None
    assert [token >= 0 for token in found] == [
        is_inside(span, text.trained) for span in expected.offsets
    ]


@pytest.mark.parametrize("name", ["trained", "bytes", "byte-level"])
def test_the_vocabulary_alone_says_which_bytes_a_token_has(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marked_texts, "_encode_again", None)  # calling it would fail
    [*found] = encode(Text("the 狐 e\u0301", trained=[(4, 5)]), name)
    assert 0 < sum(token >= 0 for token in found) <= 3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["trained", "byte-level", "sentencepiece"])
@given(parts=st.lists(st.tuples(st.sampled_from(PIECES), st.booleans()), max_size=8))
def test_names_of_special_tokens_in_literal_parts_stay_text(
    name: str, backend: str, parts: list[tuple[str, bool]]
) -> None:
    reference = Tokenizer.from_str(TOKENIZERS[name])
    special = "</s>" if name == "sentencepiece" else "<|endoftext|>"
    text, literal, expected, plain = "", list[tuple[int, int]](), list[int](), ""
    reference.encode_special_tokens = True
    for part, is_literal in parts:
        if is_literal:
            literal.append((len(text), len(text) + len(part)))
        text += part
        if part != special or is_literal:
            plain += part
            continue
        expected += reference.encode(plain, add_special_tokens=False).ids
        expected.append(reference.token_to_id(special))
        plain = ""
    expected += reference.encode(plain, add_special_tokens=False).ids
    for trained in (None, [(0, len(text))] if text else []):
        marked_text = Text(text, special_tokens=True, literal=literal, trained=trained)
        assert encode(marked_text, name, backend) == expected


def test_a_tokenizer_that_cannot_tell_them_apart_refuses_literal_parts() -> None:
    text = Text("<s>you wrote </s></s>", special_tokens=True, literal=[(3, 17)])
    with pytest.raises(TokenizerError, match="the name of a special token as text"):
        encode(text, "first")


def test_only_special_tokens_of_the_document_must_stand_apart() -> None:
    for text in ("a <mask>", "a <mask><eos>"):
        literal = Text(text, special_tokens=True, literal=[(2, 8)])
        plain = encode(Text("a <mask>"), "mask")
        assert encode(literal, "mask")[: len(plain)] == plain
    for span in ((0, 1), (9, 10)):
        with pytest.raises(TokenizerError, match="the name of a special token as text"):
            encode(Text("a <mask> b", special_tokens=True, literal=[span]), "mask")


@pytest.mark.parametrize("name", TOKENIZERS)
def test_literal_parts_change_nothing_if_all_names_are_text(name: str) -> None:
    text = "a<|endoftext|>b </s> c"
    for trained in (None, [(0, 3)]):
        literal = Text(text, literal=[(1, 4)], trained=trained)
        assert encode(literal, name) == encode(Text(text, trained=trained), name)


@pytest.mark.parametrize(
    "spans", [[(0, 0)], [(2, 1)], [(-1, 2)], [(0, 4)], [(0, 2), (1, 3)], [(2, 3), (0, 1)]]
)
@pytest.mark.parametrize("name", ["trained", "literal"])
def test_impossible_ranges_are_refused(name: str, spans: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name} has the range .* of a text of 3 characters"):
        Text("abc", **{name: spans})
