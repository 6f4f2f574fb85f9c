"""The joined texts of a document's tokens equal the document."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from cloudload.tools.inspect.token_texts import TokenTexts
from testkit import ROOT
from testkit.corpora import EOS, EOS_ID, byte_tokenizer

TEXT = st.text(st.characters(codec="utf-8"))


def to_bytes(texts: list[str]) -> bytes:
    return "".join(texts).encode("utf-8", "surrogateescape")


@given(TEXT)
def test_the_tokens_of_a_byte_level_tokenizer_have_the_bytes_of_the_text(text: str) -> None:
    tokenizer = byte_tokenizer()
    texts = TokenTexts(tokenizer.to_str()).of(tokenizer.encode(text).ids)
    assert to_bytes(texts) == text.encode()
    assert len(texts) == len(text.encode())


@given(TEXT)
def test_merged_tokens_have_the_bytes_of_the_text(text: str) -> None:
    tokenizer = Tokenizer.from_file(str(ROOT / "examples/tokenizer/tokenizer.json"))
    tokenizer.encode_special_tokens = True
    texts = TokenTexts(tokenizer.to_str()).of(tokenizer.encode(text).ids)
    assert to_bytes(texts) == text.encode()


def fallback_tokenizer() -> Tokenizer:
    """A tokenizer with `▁` for spaces and bytes for unknown characters, like that of Llama 2."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocabulary |= {letter: 256 + place for place, letter in enumerate("\u2581abc")}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token=None)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


@given(st.text("abc xé狐🦊"))
def test_the_tokens_of_a_tokenizer_with_byte_fallback_have_the_bytes_of_the_text(text: str) -> None:
    tokenizer = fallback_tokenizer()
    texts = TokenTexts(tokenizer.to_str()).of(tokenizer.encode(text).ids)
    assert to_bytes(texts) == text.encode()


def test_special_tokens_are_known_by_their_name() -> None:
    texts = TokenTexts(byte_tokenizer().to_str())
    assert texts.of([EOS_ID]) == [EOS]
    assert [texts.is_special(id) for id in (EOS_ID, 0, 9999)] == [True, False, False]


def test_an_id_without_a_token_is_said() -> None:
    assert TokenTexts(byte_tokenizer().to_str()).of([9999]) == ["<no token 9999>"]


def test_without_a_tokenizer_the_text_of_a_token_is_its_id() -> None:
    assert TokenTexts("").of([5, 0]) == ["5 ", "0 "]


def test_a_tokenizer_without_decoder_shows_its_tokens() -> None:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    assert TokenTexts(tokenizer.to_str()).of([1, 2]) == ["a", "##b"]
