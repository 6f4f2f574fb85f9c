"""Tokenizers of tiktoken and SentencePiece: their own IDs, in rows, traces, and states."""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload import Text
from cloudload.errors import DatasetError, StreamChangedError, TokenizerError
from cloudload.rows.tokenization.backend import choose_backend
from cloudload.rows.tokenization.encoders import DocumentTokenizer, decode_ids
from cloudload.rows.tokenization.other_libraries import library_of
from cloudload.rows.tokenization.probes import FIXED_TEXTS
from cloudload.rows.tokenization.tokenizer import load_tokenizer
from cloudload.testing import Leg, check_resume, check_worlds, run_leg
from testkit.corpora import random_documents, write_mds
from testkit.loaders import make_loader, ranks

tiktoken = pytest.importorskip("tiktoken")
sentencepiece = pytest.importorskip("sentencepiece")

SPECIAL = {"<|endoftext|>": 300, "<|im_start|>": 301}
WORDS = ["hello", " world", " token", "ization", " 狐", "café", "  ", "\n", "<|endoftext|>", "</s>"]
WORDS += ["<0x41>", "🦊", "\x00", "▁", "Ġ"]
texts = st.lists(st.sampled_from(WORDS), max_size=8).map("".join) | st.text(max_size=40)


def ranks_of(merges: list[bytes]) -> dict[bytes, int]:
    return {
        token: rank for rank, token in enumerate([*(bytes([byte]) for byte in range(256)), *merges])
    }


RANKS = ranks_of([b"he", b"ll", b"hell", b"hello", b" w", b"or", b" wor", b"ld", b" world", b" t"])


def make_encoding(special: dict[str, int] = SPECIAL) -> Any:
    return tiktoken.Encoding(
        "tiny", pat_str=r" ?\p{L}+|\s+|.", mergeable_ranks=RANKS, special_tokens=special
    )


def train_model(**options: Any) -> bytes:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["hello world", "tokenization", "café world", "hello 狐"] * 50),
        model_writer=written,
        **{"vocab_size": 300, "byte_fallback": True, "hard_vocab_limit": False, **options},
        minloglevel=2,
    )
    return written.getvalue()


MODEL = train_model(model_type="bpe")
UNIGRAM = train_model(model_type="unigram", user_defined_symbols=["<think>"])


def write_ranks(path: Path) -> Path:
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in RANKS.items()]
    path.write_bytes(b"".join(lines))
    return path


@given(documents=st.lists(texts, max_size=5))
def test_ids_are_those_of_tiktoken(documents: list[str]) -> None:
    encoding = make_encoding()
    tokenizer = DocumentTokenizer(load_tokenizer(encoding), "tiktoken")
    ids, offsets = tokenizer.encode_flat(documents)
    expected = [encoding.encode_ordinary(text) for text in documents]
    assert [part.tolist() for part in np.split(ids, offsets[1:-1])][: len(documents)] == expected
    special = [Text(text, special_tokens=True) for text in documents]
    ids, offsets = tokenizer.encode_flat(special)
    expected = [encoding.encode(text, allowed_special="all") for text in documents]
    assert [part.tolist() for part in np.split(ids, offsets[1:-1])][: len(documents)] == expected
    assert "".join(map(tokenizer.decode, np.split(ids, offsets[1:-1]))) == "".join(documents)


@pytest.mark.parametrize("model", [MODEL, UNIGRAM], ids=["bpe", "unigram"])
def test_ids_are_those_of_sentencepiece(model: bytes) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    spec = load_tokenizer(processor)
    tokenizer = DocumentTokenizer(spec, "sentencepiece")
    documents = [*FIXED_TEXTS, *WORDS, "".join(WORDS), "a <think> b </s>"]
    ids, offsets = tokenizer.encode_flat(documents)
    expected = processor.encode(documents, out_type=int)
    assert [part.tolist() for part in np.split(ids, offsets[1:-1])] == expected
    assert not {processor.bos_id(), processor.eos_id()} & {*ids.tolist()}, "names stay text"
    framed = [1, *processor.encode("hello world"), 2]
    assert decode_ids(spec.json, np.array(framed, np.int32)) == "<s>hello world</s>"
    assert spec.frames == ((None, processor.eos_id()),)


def test_files_are_recognized(tmp_path: Path) -> None:
    path = write_ranks(tmp_path / "cl100k_base.tiktoken")
    spec = load_tokenizer(path)
    assert library_of(spec.json) == "tiktoken"
    assert spec.frames == ((None, 100_257),)
    assert json.loads(spec.json)["pattern"].startswith("'(?i:[sdmt]|ll|ve|re)|[^")
    o200k = load_tokenizer(write_ranks(tmp_path / "o200k_base.tiktoken"))
    assert (o200k.frames, o200k.vocab_size) == (((None, 199_999),), 200_019)
    (tmp_path / "tokenizer.model").write_bytes(MODEL)
    named = load_tokenizer(tmp_path / "tokenizer.model")
    assert library_of(named.json) == "sentencepiece"
    assert named.frames == ((None, 2),)
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": true}')
    assert load_tokenizer(tmp_path / "tokenizer.model").frames == ((1, 2),)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("kimi.tiktoken", None, r"neither the pattern nor .*Pass tiktoken.Encoding\(name"),
        ("tiktoken.model", None, "neither the pattern nor the special tokens"),
        ("r50k_base.tiktoken", None, "is not the file of r50k_base"),
        ("cl100k_base.tiktoken", b"no ranks", "is not a file of tiktoken"),
        ("tokenizer.model", b"no model", "is not a SentencePiece model"),
    ],
)
def test_other_files_are_refused(
    tmp_path: Path, name: str, data: bytes | None, message: str
) -> None:
    path = write_ranks(tmp_path / name)
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(path)


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_ranks(tmp_path / "cl100k_base.tiktoken")
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    for source in (path, "tiktoken:o200k_base"):
        with pytest.raises(TokenizerError, match=r"pip install 'cloudload\[tiktoken\]'"):
            load_tokenizer(source)


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(TokenizerError, match="cannot load the encoding 'nope'"):
        load_tokenizer("tiktoken:nope")


def test_fingerprints_tell_tokenizers_apart_but_not_their_names() -> None:
    other = tiktoken.Encoding(
        "other", pat_str=r" ?\p{L}+|\s+|.", mergeable_ranks=RANKS, special_tokens=SPECIAL
    )
    pattern = tiktoken.Encoding(
        "tiny", pat_str=r"\p{L}+|\s+|.", mergeable_ranks=RANKS, special_tokens=SPECIAL
    )
    spec, same, different = map(load_tokenizer, (make_encoding(), other, pattern))
    assert spec == same
    assert spec.fingerprint != different.fingerprint
    assert spec.token_ids != different.token_ids


def test_the_backend_is_the_library(tmp_path: Path) -> None:
    text = load_tokenizer(make_encoding()).json
    choice = choose_backend(text, "auto", tmp_path)
    assert (choice.name, choice.reason) == ("tiktoken", None)
    assert choice.versions.startswith("tiktoken ")
    with pytest.raises(TokenizerError, match=r"is one of tiktoken. Use 'auto'"):
        choose_backend(text, "fastokens", tmp_path)


def test_a_lone_surrogate_is_refused_by_both() -> None:
    processor = sentencepiece.SentencePieceProcessor(model_proto=MODEL)
    for source in (make_encoding(), processor):
        tokenizer = DocumentTokenizer(load_tokenizer(source))
        with pytest.raises(TokenizerError, match=r"lone surrogate, U\+D800"):
            tokenizer.encode_flat(["ok", "a\ud800"])


def test_tokens_of_tiktoken_can_be_trained_by_characters() -> None:
    tokenizer = DocumentTokenizer(load_tokenizer(make_encoding()))
    tokens, _ = tokenizer.encode_flat([Text("hello world", trained=[(5, 11)])])
    assert (tokens >= 0).tolist() == [False, True]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("other") / "data"
    return write_mds(path, random_documents(1, 60), shard_bytes=2_000)


@pytest.mark.parametrize("library", ["tiktoken", "sentencepiece"])
def test_runs_have_the_same_rows_on_any_world_and_their_states_hold_the_tokenizer(
    folder: str, library: str
) -> None:
    sources = {
        "tiktoken": (make_encoding(), make_encoding({"<|endoftext|>": 300})),
        "sentencepiece": tuple(
            sentencepiece.SentencePieceProcessor(model_proto=model) for model in (MODEL, UNIGRAM)
        ),
    }
    source, other = sources[library]
    make = ranks(folder, tokenizer=source, eos="auto", epochs=1, tail="pad")
    check_worlds(make, [Leg(2, batches=3), Leg(3, workers=2, batches=2), Leg(1, batches=None)])
    check_resume(make, global_batch=6, num_batches=4)
    _, states = run_leg(make, Leg(batches=2))
    assert str(states[-1]["tokenizer_backend"]).startswith(library)
    with pytest.raises(StreamChangedError, match="tokenizer"):
        run_leg(ranks(folder, tokenizer=other, eos="auto", epochs=1), Leg(), states[-1])
    with make_loader(folder, tokenizer=source, eos="auto") as loader:
        [batch] = loader.take(1)
        assert loader.describe()
        ids = batch["input_ids"][0].tolist()
        shown = "".join(span.text for span in loader.trace(batch) if span.row == 0)
    if library == "tiktoken":
        assert shown.encode() == source.decode_bytes(ids)
    else:
        assert shown.replace(" ", "").replace("</s>", "") == source.decode(ids).replace(" ", "")


def test_special_tokens_of_sentencepiece_are_refused_in_words(folder: str) -> None:
    def write(sample: dict[str, Any]) -> Text:
        return Text(sample["text"], special_tokens=True)

    source = sentencepiece.SentencePieceProcessor(model_proto=MODEL)
    with (
        make_loader(folder, tokenizer=source, eos="auto", transform=write) as loader,
        pytest.raises((DatasetError, TokenizerError), match=r"only as text. Convert the model"),
    ):
        next(iter(loader))
