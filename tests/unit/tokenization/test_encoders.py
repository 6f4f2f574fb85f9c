"""Every backend gives tokenizers' ids: by its choice, by the gate before it, and by what is watched
for while it encodes."""

from __future__ import annotations

import itertools
import json
import logging
import string
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers

from cloudload import CloudLoader
from cloudload.config.choices import HF
from cloudload.errors import TokenizerError
from cloudload.tokenization import backend as gate
from cloudload.tokenization import encoders, probes
from cloudload.tokenization.backend import choose_backend
from cloudload.tokenization.encoders import FastokensEncoder, HFEncoder, open_encoder
from cloudload.tokenization.tokenizer import DocumentTokenizer, load_tokenizer
from tests.support.awkward import EOS, byte_tokenizer
from tests.support.corpora import random_documents, write_mds
from tests.support.reference_tokens import encode

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "tokenizer" / "tokenizer.json"

needs_fastokens = pytest.mark.skipif(
    find_spec("fastokens") is None, reason="fastokens, of the extra `fast`, is not installed"
)
BACKENDS = ["hf", pytest.param("fastokens", marks=needs_fastokens)]

AWKWARD = st.text(max_size=60) | st.lists(st.sampled_from(probes._PIECES), max_size=12).map("".join)


@pytest.fixture(autouse=True)
def fresh_process() -> Iterator[None]:
    """What a process keeps is forgotten before and after each test."""
    forget()
    yield
    forget()


def forget() -> None:
    encoders.load_fastokens.cache_clear()
    encoders._comparison.cache_clear()
    encoders._kept.clear()
    gate._refusals.clear()


def sentencepiece(letters: str = string.printable.strip() + "é") -> str:
    """As Llama 2's: `▁` for spaces, and bytes for what is not in the vocabulary."""
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
    return tokenizer.to_str()


JSONS: dict[str, Callable[[], str]] = {
    "bytes": lambda: byte_tokenizer().to_str(),
    "byte-level": lambda: EXAMPLE.read_text("utf-8"),
    "sentencepiece": sentencepiece,
}


def changed(change: Callable[[dict[str, Any]], Any], name: str = "byte-level") -> str:
    """A tokenizer.json with something done to it."""
    content = json.loads(JSONS[name]())
    change(content)
    return json.dumps(content, ensure_ascii=False)


def lose_byte(content: dict[str, Any]) -> None:
    """Give the id of the byte `Z` to something else."""
    model = content["model"]
    model["vocab"] = {
        "ZZ☃" if token == "Z" else token: number for token, number in model["vocab"].items()
    }
    model["merges"] = [pair for pair in model["merges"] if "Z" not in "".join(pair)]


class Tampered:
    """A fastokens.Tokenizer that gives texts with `mark` another first id."""

    def __init__(self, text: str, mark: str) -> None:
        self._fast, self._mark = encoders.load_fastokens(text), mark

    def encode_batch_flat(self, documents: list[str], **options: bool) -> tuple[bytes, bytes]:
        ids, offsets = self._fast.encode_batch_flat(documents, **options)
        changed = np.frombuffer(ids, np.int32).copy()
        for number, start in enumerate(np.frombuffer(offsets, np.int64)[:-1].tolist()):
            changed[start : start + 1] += self._mark in documents[number]
        return changed.tobytes(), offsets


# ---------------------------------------------------------------- the same ids


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", JSONS)
def test_ids_are_those_of_tokenizers_alone(name: str, backend: str) -> None:
    text = JSONS[name]()
    alone = Tokenizer.from_str(text)
    alone.encode_special_tokens = True
    probes = gate.probes(json.loads(text))
    ids, offsets = open_encoder(text, backend).encode(probes)
    assert (ids.dtype, offsets.dtype, len(offsets)) == (np.int32, np.int64, len(probes) + 1)
    found = [ids[start:stop].tolist() for start, stop in itertools.pairwise(offsets)]
    assert found == [alone.encode(probe, add_special_tokens=False).ids for probe in probes]


@needs_fastokens
@pytest.mark.parametrize("name", JSONS)
@given(documents=st.lists(AWKWARD, max_size=5))
def test_both_backends_give_any_texts_the_same_ids(name: str, documents: list[str]) -> None:
    text = JSONS[name]()
    for one, other in zip(
        HFEncoder(text).encode(documents), FastokensEncoder(text).encode(documents), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_documents_lie_one_after_another_and_may_be_empty(backend: str) -> None:
    encoder = open_encoder(byte_tokenizer().to_str(), backend)
    ids, offsets = encoder.encode(("ab", "", "c"))
    assert offsets.tolist() == [0, 2, 2, 3]
    assert ids.tolist() == [64, 65, 66]
    for documents, expected in (([], [0]), (["", ""], [0, 0, 0])):
        ids, offsets = encoder.encode(documents)
        assert (ids.tolist(), offsets.tolist(), ids.dtype) == ([], expected, np.int32)


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


# ---------------------------------------------------------------- the gate


DEFECTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "id": (
        lambda c: c["added_tokens"][0].update(id=7),
        r"added token '<\|endoftext\|>' has the id 7, but 0 in the vocabulary",
    ),
    "lstrip": (lambda c: c["added_tokens"][0].update(lstrip=True), r"'<\|endoftext\|>' has lstrip"),
    "rstrip": (lambda c: c["added_tokens"][0].update(rstrip=True), r"'<\|endoftext\|>' has rstrip"),
    "single_word": (
        lambda c: c["added_tokens"][0].update(single_word=True),
        r"'<\|endoftext\|>' has single_word",
    ),
    "dropout": (lambda c: c["model"].update(dropout=0.1), "its model has dropout"),
    "prefix": (
        lambda c: c["model"].update(continuing_subword_prefix="##"),
        "its model has a continuing_subword_prefix",
    ),
    "byte": (lose_byte, "its vocabulary lacks 1 of 256 bytes, such as 'Z'"),
    "no bytes": (
        lambda c: c.update(pre_tokenizer=None),
        "it is not byte-level and does not fall back to bytes",
    ),
    "WordPiece": (
        lambda c: c.update(model={"type": "WordPiece", "vocab": {"a": 0}}),
        "its model is WordPiece, not BPE",
    ),
    "Unigram": (
        lambda c: c.update(model={"type": "Unigram", "vocab": [["a", 0.0]]}),
        "its model is Unigram, not BPE",
    ),
}


@needs_fastokens
@pytest.mark.parametrize("defect", DEFECTS)
def test_the_gate_names_what_is_wrong_with_a_tokenizer(defect: str, tmp_path: Path) -> None:
    change, named = DEFECTS[defect]
    text = changed(change)
    choice = choose_backend(text, "auto", tmp_path)
    assert choice.name == HF
    with pytest.raises(
        TokenizerError,
        match=f"tokenizer_backend is 'fastokens', but .*{named}.* Use 'auto' or 'hf'",
    ):
        choose_backend(text, "fastokens", tmp_path)
    assert not list(tmp_path.iterdir())


@needs_fastokens
def test_a_sentencepiece_vocabulary_that_lacks_a_byte_is_refused(tmp_path: Path) -> None:
    text = changed(lambda content: content["model"]["vocab"].pop("<0x0A>"), "sentencepiece")
    assert (
        choose_backend(text, "auto", tmp_path).reason
        == "its vocabulary lacks 1 of 256 bytes, such as '<0x0A>'"
    )


@needs_fastokens
@pytest.mark.parametrize("name", JSONS)
def test_sound_tokenizers_pass_the_gate(name: str, tmp_path: Path) -> None:
    for asked in ("auto", "fastokens"):
        choice = choose_backend(JSONS[name](), asked, tmp_path)
        assert (choice.name, choice.reason) == ("fastokens", None)
        assert choice.versions.startswith("fastokens 0.")
        # which compared with special tokens as what they are, too
        assert encoders.load_hf(JSONS[name]()).encode_special_tokens
    assert choose_backend(JSONS[name](), "hf", tmp_path).name == HF


@needs_fastokens
def test_a_tokenizer_for_which_fastokens_makes_tokens_of_text_is_refused(tmp_path: Path) -> None:
    """Where `<` is not in the vocabulary, fastokens 0.3.5 gives the text `<0x0A>` the id of a new
    line."""
    choice = choose_backend(sentencepiece("thequickbrwnfxé"), "auto", tmp_path)
    assert str(choice.reason).startswith("it gives different ids than tokenizers for ")


@needs_fastokens
def test_what_fastokens_does_not_load_is_refused(tmp_path: Path) -> None:
    text = changed(lambda content: content.update(normalizer={"type": "NFKC"}))
    assert "it does not load this tokenizer" in str(choose_backend(text, "auto", tmp_path).reason)


@pytest.mark.parametrize("found", ["0.3.0", "9.9"])
def test_a_version_that_was_not_measured_is_refused(
    found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "version", lambda _: found)
    reason = choose_backend(JSONS["byte-level"](), "auto", tmp_path).reason
    assert reason == f"fastokens {found} has not been verified, only 0.3.5"


def test_without_fastokens_hf_is_taken_and_fastokens_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name == "fastokens":
            raise PackageNotFoundError
        return "1.0"

    monkeypatch.setattr(gate, "version", version)
    assert choose_backend(JSONS["byte-level"](), "auto", tmp_path).name == HF
    with pytest.raises(
        TokenizerError, match=r"fastokens is not installed: pip install 'cloudload\[fast\]'"
    ):
        choose_backend(JSONS["byte-level"](), "fastokens", tmp_path)


@needs_fastokens
@pytest.mark.parametrize(
    ("mark", "named"),
    [
        ("<|endoftext|>", r"it gives different ids than tokenizers for '.*<\|endoftext\|>"),
        (
            "\U00013000",
            r"it gives different ids than tokenizers for 1 code points, such as U\+13000",
        ),
    ],
)
def test_other_ids_for_a_probe_or_a_code_point_are_refused(
    mark: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "load_fastokens", lambda text: Tampered(text, mark))
    with pytest.raises(TokenizerError, match=named):
        choose_backend(JSONS["byte-level"](), "fastokens", tmp_path)


@needs_fastokens
def test_the_sweep_of_code_points_is_made_once_for_a_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps: list[int] = []
    monkeypatch.setattr(
        gate, "sweep_code_points", lambda _, points: sweeps.append(len(points)) or []
    )
    for folder in (tmp_path / "one", tmp_path / "one", tmp_path / "two"):
        gate._refusals.clear()
        assert choose_backend(JSONS["byte-level"](), "auto", folder).name == "fastokens"
    assert len(sweeps) == 2
    assert min(sweeps) > 100_000


@needs_fastokens
def test_what_the_sweep_found_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "sweep_code_points", lambda *_: [0x41, 0x42])
    first = choose_backend(JSONS["byte-level"](), "auto", tmp_path)
    gate._refusals.clear()
    monkeypatch.undo()
    assert choose_backend(JSONS["byte-level"](), "auto", tmp_path) == first
    assert (
        first.reason == "it gives different ids than tokenizers for 2 code points, such as U+0041"
    )


# ---------------------------------------------------------------- while encoding


@pytest.mark.parametrize("backend", BACKENDS)
def test_half_a_surrogate_pair_is_named(backend: str) -> None:
    encoder = open_encoder(byte_tokenizer().to_str(), backend)
    with pytest.raises(
        TokenizerError,
        match=r"half a surrogate pair, U\+D83D, at character 3, .* begins 'abc.ud83d'\. Fix it",
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
        for one, other in zip(
            encoder.encode(documents), HFEncoder(text).encode(documents), strict=True
        ):
            np.testing.assert_array_equal(one, other)
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
def test_other_ids_than_tokenizers_end_the_run(caplog: pytest.LogCaptureFixture) -> None:
    text = JSONS["byte-level"]()
    encoder = FastokensEncoder(text)
    encoder._fast = encoders.load_fastokens(byte_tokenizer().to_str())
    encoder.encode(["the quick brown fox"])
    encoder._comparison._thread.shutdown()
    with pytest.raises(
        TokenizerError,
        match=r"different ids for a document: token 0 of .*'the quick.* tokenizer_backend='hf'",
    ):
        encoder.encode(["a"])
    assert "the quick brown fox" in caplog.text
    with pytest.raises(TokenizerError):
        FastokensEncoder(text).encode(["a"])
    assert len(HFEncoder(text).encode(["a"])[0]) == 1


@needs_fastokens
def test_the_first_documents_of_a_process_are_compared_and_then_one_in_so_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoders, "COMPARED_FIRST", 3)
    monkeypatch.setattr(encoders, "COMPARED_EVERY", 10)
    compared: list[Any] = []
    monkeypatch.setattr(encoders._Comparison, "_compare", lambda _, *each: compared.append(each))
    text = byte_tokenizer().to_str()
    documents = [chr(65 + number) for number in range(40)]
    for start, stop in ((0, 2), (2, 2), (2, 17), (17, 40)):
        encoder = FastokensEncoder(text)
        encoder.encode(documents[start:stop])
    encoder._comparison._thread.shutdown()
    assert compared == [(documents[number], [number + 32]) for number in (0, 1, 2, 12, 22, 32)]


# ---------------------------------------------------------------- the loader


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_mds(tmp_path_factory.mktemp("mds"), random_documents(5, 300), shard_bytes=4_000)


def make_loader(folder: str, local: Path, **settings: Any) -> CloudLoader:
    defaults = {
        "tokenizer": byte_tokenizer(),
        "eos": EOS,
        "seq_len": 16,
        "batch_size": 4,
        "num_workers": 0,
        "num_lanes": 12,
    }
    return CloudLoader(folder, local=local, **{**defaults, **settings})


@needs_fastokens
def test_statistics_log_and_state_name_the_backend(
    folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    loader = make_loader(folder, tmp_path)
    assert (loader.stats().tokenizer_backend, loader.stats().tokenizer_backend_reason) == (
        "fastokens",
        None,
    )
    assert "tokenizer backend: fastokens (fastokens 0.3.5, tokenizers" in caplog.text
    assert loader.state_dict()["tokenizer_backend"].startswith("fastokens 0.3.5, tokenizers ")
    assert all(isinstance(value, int | float) for value in loader.stats().as_dict().values())

    odd = byte_tokenizer().from_str(
        changed(lambda content: content["added_tokens"][0].update(lstrip=True), "bytes")
    )
    loader = make_loader(folder, tmp_path, tokenizer=odd)
    reason = f"its added token '{EOS}' has lstrip"
    assert (loader.stats().tokenizer_backend, loader.stats().tokenizer_backend_reason) == (
        "hf",
        reason,
    )
    assert (
        f"tokenizer backend: hf (tokenizers {gate.version('tokenizers')}): {reason}" in caplog.text
    )
    with pytest.raises(TokenizerError, match="has lstrip"):
        make_loader(folder, tmp_path, tokenizer=odd, tokenizer_backend="fastokens")


@needs_fastokens
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resume_on_the_other_backend_reads_the_same_rows(
    folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, num_workers: int
) -> None:
    caplog.set_level(logging.INFO, "cloudload.loader")
    expected = [
        batch["input_ids"].tolist()
        for batch in make_loader(folder, tmp_path, tokenizer_backend="hf").take(12)
    ]
    found, state = [], None
    for backend in ("hf", "fastokens", "hf", "auto"):
        with make_loader(
            folder, tmp_path, tokenizer_backend=backend, num_workers=num_workers
        ) as loader:
            if state is not None:
                loader.load_state_dict(state)
            found += [batch["input_ids"].tolist() for batch in loader.take(3)]
            state = loader.state_dict()
    assert found == expected
    assert caplog.text.count("which gives the same ids") == 3


def test_a_backend_that_there_is_not_is_a_wrong_argument(folder: str, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="tokenizer_backend is 'rust'; use one of auto, hf, fastokens"
    ):
        make_loader(folder, tmp_path, tokenizer_backend="rust")
