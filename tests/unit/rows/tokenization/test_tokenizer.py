"""Document IDs equal those of the Hugging Face tokenizer, and no text becomes a control token."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from cloudload.config.choices import AUTO
from cloudload.errors import TokenizerError
from cloudload.rows.tokenization.encoders import DocumentTokenizer
from cloudload.rows.tokenization.tokenizer import TokenizerSpec
from cloudload.rows.tokenization.tokenizer import load_tokenizer as load_tokenizer_of_streams
from testkit.corpora import EOS, byte_tokenizer
from testkit.reference_tokens import encode

END = "<|endoftext|>"


def load_tokenizer(source: Any, bos: str | None = AUTO, eos: str | None = AUTO) -> TokenizerSpec:
    return load_tokenizer_of_streams(source, [(bos, eos)])


def ids_of(folder: Path, text: str, **ends: str | None) -> list[int]:
    (ids,) = encode(DocumentTokenizer(load_tokenizer(folder, **ends)), [text], [0])
    assert ids.dtype == "int32"
    found: list[int] = ids.tolist()
    return found


@given(text=st.text(max_size=60))
def test_ids_are_those_of_transformers_and_an_end_of_text(
    tokenizer_folder: Path, text: str
) -> None:
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_folder / "tokenizer.json"), split_special_tokens=True
    )
    expected = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert ids_of(tokenizer_folder, text) == [*expected, 0]


@pytest.mark.parametrize("text", [END, f"a{END}b", f"{END}{END}", "<|pad|>", f" {END} "])
def test_special_token_strings_in_a_document_stay_text(tokenizer_folder: Path, text: str) -> None:
    ids = ids_of(tokenizer_folder, text)
    assert not {0, 1} & set(ids[:-1])
    backend = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    assert backend.decode(ids[:-1], skip_special_tokens=False) == text


_PIECES = st.sampled_from(
    [END, "<|pad|>", EOS, "<|", "|>", "endoftext", "\0", " ", "\n"]
) | st.text(max_size=5)


@pytest.mark.parametrize("backend", ["hf", "fastokens"])
@given(pieces=st.lists(_PIECES, max_size=12))
def test_no_text_becomes_a_control_token(
    tokenizer_folder: Path, backend: str, pieces: list[str]
) -> None:
    spec, text = load_tokenizer(tokenizer_folder, eos=None), "".join(pieces)
    (ids,) = encode(DocumentTokenizer(spec, backend), [text], [0])
    assert not {0, 1} & set(ids.tolist())
    assert DocumentTokenizer(spec, backend).decode(ids) == text


def test_ends_are_as_asked(tokenizer_folder: Path) -> None:
    assert ids_of(tokenizer_folder, "the") == [*ids_of(tokenizer_folder, "the", eos=None), 0]
    assert ids_of(tokenizer_folder, "the", bos="<|pad|>", eos=None)[0] == 1
    with pytest.raises(TokenizerError, match="eos='<nothing>' is not a token of this tokenizer"):
        load_tokenizer(tokenizer_folder, eos="<nothing>")


def test_a_bos_is_added_if_the_tokenizers_template_has_one(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}})
    )
    assert ids_of(tmp_path, "aa") == [1, 0, 0, 2]
    assert ids_of(tmp_path, "aa", bos=None) == [0, 0, 2]


def test_a_name_a_folder_a_file_and_a_fast_tokenizer_are_one(tokenizer_folder: Path) -> None:
    from transformers import AutoTokenizer

    file = tokenizer_folder / "tokenizer.json"
    fingerprints = {
        load_tokenizer(tokenizer_folder).fingerprint,
        load_tokenizer(str(file)).fingerprint,
        load_tokenizer(AutoTokenizer.from_pretrained(str(tokenizer_folder))).fingerprint,
        load_tokenizer(Tokenizer.from_file(str(file)), eos=END).fingerprint,
    }
    assert len(fingerprints) == 1


def test_truncation_and_padding_inside_a_tokenizer_are_switched_off(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=10)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert ids_of(tmp_path, "the quick brown fox jumps", eos=END) == ids_of(
        tokenizer_folder, "the quick brown fox jumps"
    )


def test_dropout_inside_a_tokenizer_is_switched_off(tokenizer_folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    plain = load_tokenizer(tokenizer, eos=None)
    tokenizer.model.dropout = 0.5
    encoders = [DocumentTokenizer(load_tokenizer(tokenizer, eos=None)) for _ in range(2)]
    text = ["the quick brown fox jumps over the lazy dog " * 20]
    first, second = (encode(encoder, text, [0])[0].tolist() for encoder in encoders)
    assert first == second == encode(DocumentTokenizer(plain), text, [0])[0].tolist()


def test_a_name_on_the_hub_is_the_tokenizer_that_was_published(
    tokenizer_folder: Path, hub_snapshot: Path
) -> None:
    shutil.copy(tokenizer_folder / "tokenizer.json", hub_snapshot)
    # transformers 5 replaces the published pre-tokenizer with that of LlamaTokenizerFast
    ends = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END)
    config = {"tokenizer_class": "LlamaTokenizerFast", **ends}
    (hub_snapshot / "tokenizer_config.json").write_text(json.dumps(config))
    (hub_snapshot / "config.json").write_text(json.dumps({"model_type": "llama"}))
    found = load_tokenizer("some/model")
    assert found.fingerprint == load_tokenizer(tokenizer_folder).fingerprint
    assert found.frames == ((None, 0),)


def test_a_slow_tokenizer_hears_what_to_do() -> None:
    from transformers import ByT5Tokenizer

    with pytest.raises(
        TokenizerError, match=r"ByT5Tokenizer is a slow tokenizer\. Use its fast version"
    ):
        load_tokenizer(ByT5Tokenizer())


def test_a_tokenizer_that_does_not_say_what_ends_a_document_is_an_error() -> None:
    with pytest.raises(TokenizerError, match=r"does not define an eos token\. Pass eos="):
        load_tokenizer(byte_tokenizer())
    assert load_tokenizer(byte_tokenizer(), eos=EOS).frames == ((None, 256),)
    assert load_tokenizer(byte_tokenizer(), eos=None).frames == ((None, None),)


def test_a_tokenizer_that_is_not_there_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="cannot load the tokenizer 'no/such-tokenizer'"):
        load_tokenizer("no/such-tokenizer")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is not a valid tokenizer\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "Expecting property name"),
        ("[]", "it contains a list, not a JSON object"),
        ('{"eos_token": {"content": 5}}', "its eos_token is 5, not a string"),
    ],
)
@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_a_broken_file_beside_a_tokenizer_is_the_one_that_is_named(
    tmp_path: Path, file: str, content: str, reason: str, has_tokenizer: bool
) -> None:
    if has_tokenizer:
        byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    else:
        write_gpt2_files(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(TokenizerError, match=f"{tmp_path / file} cannot be read: {reason}"):
        load_tokenizer(tmp_path)


def test_a_folder_in_the_home_folder_need_not_have_a_tokenizer_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_gpt2_files(tmp_path / "gpt2")
    assert load_tokenizer("~/gpt2") == load_tokenizer(tmp_path / "gpt2")


def write_gpt2_files(folder: Path) -> None:
    """Write a GPT-2 tokenizer of 4 tokens, in the format that preceded tokenizer.json."""
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2, END: 3}))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": END, "unk_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
