"""Every backend returns the same IDs as Hugging Face `tokenizers`, and wrong IDs end the run."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from cloudload.errors import TokenizerError
from cloudload.rows.tokenization import encoders, loading, probes
from cloudload.rows.tokenization.encoders import (
    DocumentTokenizer,
    Encoder,
    FastokensEncoder,
    HFEncoder,
    open_encoder,
)
from cloudload.rows.tokenization.tokenizer import load_tokenizer
from testkit.corpora import byte_tokenizer
from testkit.reference_tokens import encode
from testkit.tokenizer_files import BACKENDS, JSONS, changed, lose_byte, needs_fastokens

pytestmark = pytest.mark.usefixtures("fresh_tokenizers")

AWKWARD = st.text(max_size=60) | st.lists(st.sampled_from(probes._PIECES), max_size=12).map("".join)


def assert_same_ids(one: Encoder, other: Encoder, documents: list[str]) -> None:
    (ids, offsets), expected = one.encode(documents), other.encode(documents)
    np.testing.assert_array_equal(ids, expected[0])
    np.testing.assert_array_equal(offsets, expected[1])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", JSONS)
def test_ids_are_those_of_tokenizers_alone(name: str, backend: str) -> None:
    text = JSONS[name]()
    alone = Tokenizer.from_str(text)
    alone.encode_special_tokens = True
    documents = probes.probes(json.loads(text))
    ids, offsets = open_encoder(text, backend).encode(documents)
    assert ids.dtype == np.int32
    assert offsets.dtype == np.int64
    found = [ids[start:stop].tolist() for start, stop in itertools.pairwise(offsets)]
    assert found == [alone.encode(text, add_special_tokens=False).ids for text in documents]


@needs_fastokens
@pytest.mark.parametrize("name", JSONS)
@given(documents=st.lists(AWKWARD, max_size=5))
def test_both_backends_give_any_texts_the_same_ids(name: str, documents: list[str]) -> None:
    text = JSONS[name]()
    assert_same_ids(HFEncoder(text), FastokensEncoder(text), documents)


@pytest.mark.parametrize("backend", BACKENDS)
def test_documents_lie_one_after_another_and_may_be_empty(backend: str) -> None:
    encoder = open_encoder(byte_tokenizer().to_str(), backend)
    ids, offsets = encoder.encode(("ab", "", "c"))
    assert offsets.tolist() == [0, 2, 2, 3]
    assert ids.tolist() == [64, 65, 66]
    nothing: list[tuple[list[str], list[int]]] = [([], [0]), (["", ""], [0, 0, 0])]
    for documents, expected in nothing:
        ids, offsets = encoder.encode(documents)
        assert (ids.tolist(), offsets.tolist()) == ([], expected)
        assert ids.dtype == np.int32


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_tokens_stay_text_and_documents_get_their_streams_ends(
    tokenizer_folder: Path, backend: str
) -> None:
    spec = load_tokenizer(tokenizer_folder, [("auto", "auto"), ("<|pad|>", None)])
    tokenizer = DocumentTokenizer(spec, backend)
    first, second, empty = encode(tokenizer, ["<|endoftext|>", "a<|pad|>", ""], [0, 1, 0])
    assert tokenizer.frames == ((None, 0), (1, None))
    assert (first[-1], second[0], empty.tolist()) == (0, 1, [0])
    assert not {0, 1} & {*first[:-1].tolist(), *second[1:].tolist()}
    assert tokenizer.decode(first[:-1]) == "<|endoftext|>"
    ids, offsets = tokenizer.encode_flat(["<|endoftext|>", "a<|pad|>", ""])
    assert ids.tolist() == [*first[:-1].tolist(), *second[1:].tolist()]
    assert offsets[-1] == offsets[-2] == len(ids)


@pytest.mark.parametrize("backend", BACKENDS)
def test_half_a_surrogate_pair_is_named(backend: str) -> None:
    encoder = open_encoder(byte_tokenizer().to_str(), backend)
    with pytest.raises(
        TokenizerError,
        match=r"a lone surrogate, U\+D83D, at character 3, .* begins 'abc.ud83d'\. Fix it",
    ):
        encoder.encode(["a", "abc\ud83d", "b"])
    with pytest.raises(TokenizerError, match="a document is int, not text"):
        encoder.encode(["a", 7])  # type: ignore[list-item]
    assert encoder.encode(["a"])[0].tolist() == [64]


@needs_fastokens
def test_documents_on_which_fastokens_fails_are_encoded_by_tokenizers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = changed(lose_byte)
    documents = ["abc", "Z", "", "d" * 50, "aZb", "e"]
    encoder = FastokensEncoder(text)
    for _ in range(2):
        assert_same_ids(encoder, HFEncoder(text), documents)
    assert encoder.num_failed == 4
    assert [
        record.message
        for record in caplog.records
        if "fastokens failed on a document" in record.message
    ][1:] == []
    assert "'Z'" in caplog.text


@needs_fastokens
def test_a_panic_is_a_failure_and_an_interrupt_is_not() -> None:
    class PanicException(BaseException):
        pass

    class Failing:
        def __init__(self, error: BaseException) -> None:
            self.error = error

        def encode_batch_flat(self, documents: list[str], **options: bool) -> None:
            raise self.error

    encoder = FastokensEncoder(byte_tokenizer().to_str())
    encoder._fast = Failing(PanicException("index out of bounds"))
    assert encoder.encode(["ab", "c"])[0].tolist() == [64, 65, 66]
    encoder._fast = Failing(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        encoder.encode(["ab"])


@needs_fastokens
def test_other_ids_than_tokenizers_end_the_run(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = JSONS["byte-level"]()
    encoders._comparison.cache_clear()  # another test may have cached a comparison
    monkeypatch.setattr(encoders, "LOADING_DELAY_S", 0)
    encoder = FastokensEncoder(text)
    encoder._fast = loading.load_fastokens(byte_tokenizer().to_str())
    encoder.encode(["the quick brown fox"])
    assert encoder._comparison is not None
    encoder._comparison._thread.shutdown()
    with pytest.raises(
        TokenizerError,
        match=r"different IDs .* at token 0 of .*'the quick.* tokenizer_backend='hf'",
    ):
        encoder.encode(["a"])
    assert "the quick brown fox" in caplog.text
    with pytest.raises(TokenizerError):
        FastokensEncoder(text).encode(["a"])
    assert len(HFEncoder(text).encode(["a"])[0]) == 1


WITHOUT_UNKNOWN = {
    "words": Tokenizer(models.WordLevel({"a": 0}, unk_token="<unk>")),
    "pieces": Tokenizer(models.WordPiece({"a": 0}, unk_token="<unk>")),
}


@pytest.mark.parametrize("kind", WITHOUT_UNKNOWN)
def test_a_document_on_which_only_tokenizers_fails_is_not_a_matter_of_other_ids(kind: str) -> None:
    comparison = encoders._Comparison(WITHOUT_UNKNOWN[kind].to_str(), special_tokens=False)
    comparison._compare("b", [7])
    with pytest.raises(
        TokenizerError, match=r"but tokenizers failed: Exception\(.*begins 'b'. Filter out"
    ) as raised:
        comparison.watch([], np.zeros(0, np.int32), np.zeros(1, np.int64))
    assert "different IDs" not in str(raised.value)
    assert str(raised.value).count("Filter out") == 1


@needs_fastokens
def test_the_first_documents_of_a_process_are_compared_and_then_one_in_so_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoders, "COMPARED_FIRST", 3)
    monkeypatch.setattr(encoders, "COMPARED_EVERY", 10)
    compared: list[Any] = []
    monkeypatch.setattr(encoders._Comparison, "_compare", lambda _, *each: compared.append(each))
    text = byte_tokenizer().to_str()
    loading.load_hf(text)
    documents = [chr(65 + number) for number in range(40)]
    for start, stop in ((0, 2), (2, 2), (2, 17), (17, 40)):
        encoder = FastokensEncoder(text)
        encoder.encode(documents[start:stop])
    assert encoder._comparison is not None
    encoder._comparison._thread.shutdown()
    assert compared == [(documents[number], [number + 32]) for number in (0, 1, 2, 12, 22, 32)]


@needs_fastokens
@pytest.mark.usefixtures("fresh_tokenizers")
def test_documents_are_compared_once_hf_may_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "LOADING_DELAY_S", 1e6)
    compared: list[Any] = []
    monkeypatch.setattr(encoders._Comparison, "_compare", lambda _, *each: compared.append(each))
    encoder = FastokensEncoder(byte_tokenizer().to_str())
    encoder.encode(["A", "B"])
    assert encoder._comparison is not None
    encoder._comparison._loads_at = 0
    encoder.encode(["C"])
    encoder._comparison._thread.shutdown()
    assert compared == [("A", [32]), ("B", [33]), ("C", [34])]
