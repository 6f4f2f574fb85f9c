"""The pieces of a text's tokens, joined, are the text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from cloudload.tokenization.pieces import TokenPieces
from tests.support import ROOT
from tests.support.corpora import EOS, EOS_ID, byte_tokenizer

TEXT = st.text(st.characters(codec="utf-8"))


def to_bytes(pieces: list[str]) -> bytes:
    return "".join(pieces).encode("utf-8", "surrogateescape")


@given(TEXT)
def test_the_pieces_of_a_byte_level_tokenizer_are_the_bytes_of_the_text(text: str) -> None:
    tokenizer = byte_tokenizer()
    pieces = TokenPieces(tokenizer.to_str()).of(tokenizer.encode(text).ids)
    assert to_bytes(pieces) == text.encode()
    assert len(pieces) == len(text.encode())


@given(TEXT)
def test_the_pieces_of_merged_tokens_are_the_bytes_of_the_text(text: str) -> None:
    tokenizer = Tokenizer.from_file(str(ROOT / "examples/tokenizer/tokenizer.json"))
    tokenizer.encode_special_tokens = True
    pieces = TokenPieces(tokenizer.to_str()).of(tokenizer.encode(text).ids)
    assert to_bytes(pieces) == text.encode()


def fallback_tokenizer() -> Tokenizer:
    """As Llama 2's: spaces are marks, and a character outside of the vocabulary is bytes."""
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
def test_the_pieces_of_a_tokenizer_with_byte_fallback_are_the_bytes_of_the_text(text: str) -> None:
    tokenizer = fallback_tokenizer()
    pieces = TokenPieces(tokenizer.to_str()).of(tokenizer.encode(text).ids)
    assert to_bytes(pieces) == text.encode()


def test_special_tokens_are_known_by_their_name() -> None:
    pieces = TokenPieces(byte_tokenizer().to_str())
    assert pieces.of([EOS_ID]) == [EOS]
    assert [pieces.is_special(id) for id in (EOS_ID, 0, 9999)] == [True, False, False]


def test_an_id_without_a_token_is_said() -> None:
    assert TokenPieces(byte_tokenizer().to_str()).of([9999]) == ["<no token 9999>"]


def test_without_a_tokenizer_a_piece_is_the_id() -> None:
    assert TokenPieces("").of([5, 0]) == ["5 ", "0 "]


def test_a_tokenizer_without_decoder_shows_its_tokens() -> None:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    assert TokenPieces(tokenizer.to_str()).of([1, 2]) == ["a", "##b"]
