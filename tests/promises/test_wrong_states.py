"""If a value is not a state of this run, the error names the problem and says what to do."""

from __future__ import annotations

import copy
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, processors

from cloudload import CloudLoader, Stream
from cloudload.errors import StreamChangedError
from testkit.corpora import byte_tokenizer, random_documents, write_mds
from testkit.loaders import ids_of, make_loader


def test_another_tokenizer_or_data_is_named_with_its_location(folder: str, tmp_path: Path) -> None:
    byte_tokenizer().save(str(tmp_path / "one.json"))
    other = Tokenizer.from_str(byte_tokenizer().to_str())
    other.add_special_tokens(["<other>"])
    other.save(str(tmp_path / "other.json"))
    state = make_loader(folder, tokenizer=str(tmp_path / "one.json")).state_dict()
    with pytest.raises(StreamChangedError) as raised:
        make_loader(folder, tokenizer=str(tmp_path / "other.json")).load_state_dict(state)
    assert f"of '{tmp_path}/one.json', found" in str(raised.value)
    assert str(raised.value).count(f"of '{tmp_path}/other.json'\n") == 1
    refused = r"found '[0-9a-f]+' of a tokenizer without a name"
    with pytest.raises(StreamChangedError, match=refused):
        make_loader(folder, tokenizer=other).load_state_dict(state)

    moved = write_mds(tmp_path / "elsewhere", random_documents(1, 60))
    found = make_loader([folder, moved], tokenizer=str(tmp_path / "one.json"))
    with pytest.raises(StreamChangedError) as raised:
        found.load_state_dict(state)
    assert f"of {folder}, found" in str(raised.value)
    assert f"of {folder}, {moved}\n" in str(raised.value)


@pytest.mark.parametrize(
    ("replacement", "proportion", "expected"),
    [
        ("b", 1, ", because the data of b (ROOT/b) has changed:"),
        ("b", None, ", because the data of b (ROOT/b) has changed:"),
        ("b2", None, ", which reads b2 (ROOT/b2) instead of b (ROOT/b):"),
        ("", None, ", which does not read b (ROOT/b):"),
        ("b d", None, ", which also reads d (ROOT/d):"),
    ],
)
def test_the_stream_whose_data_was_replaced_is_named_first(
    tmp_path: Path, replacement: str, proportion: int | None, expected: str
) -> None:
    def write(name: str, seed: int, number: int = 60) -> None:
        write_mds(tmp_path / name, random_documents(seed, number, max_words=6), shard_bytes=1_000)

    def open_loader() -> CloudLoader:
        streams = [Stream(str(tmp_path / "*"), proportion=proportion)]
        if proportion is not None:  # as a glob of datasets with token lengths
            names = sorted(each.name for each in tmp_path.iterdir())
            streams = [Stream(str(tmp_path / each), proportion=1, name=each) for each in names]
        return make_loader(streams)

    for seed, name in enumerate("abc"):
        write(name, seed)
    state = open_loader().state_dict()
    if replacement != "b d":
        shutil.rmtree(tmp_path / "b")
    for name in {*replacement.split()} - {*os.listdir(tmp_path)}:
        write(name, 9, 30)
    with pytest.raises(StreamChangedError) as raised:
        open_loader().load_state_dict(state)
    header, *lines = str(raised.value).splitlines()
    expected = expected.replace("ROOT", str(tmp_path))
    assert header == f"the state does not match this loader{expected}"
    is_of_all = proportion is None  # a corpus has one fingerprint
    assert [f"{tmp_path}/a" in line for line in lines if "/b" in line].count(not is_of_all) == 0


def test_names_of_a_mismatch_have_no_secrets(folder: str) -> None:
    loader = make_loader(folder)
    state = loader.state_dict()
    sources = json.loads(state["sources"])
    sources["streams"][0]["remote"] = "https://user:password@host/data?sig=secret"
    sources["tokenizer"] = "https://user:password@host/t?token=secret"
    state = {**state, "sources": json.dumps(sources), "data": "0", "tokenizer": "0"}
    with pytest.raises(StreamChangedError, match="https://host/data, found") as raised:
        loader.load_state_dict(state)
    assert "password" not in str(raised.value)
    assert "secret" not in str(raised.value)


# ---------------------------------------------------------------- other IDs, other framing


def test_a_version_of_tokenizers_with_other_ids_is_refused(folder: str) -> None:
    loader = make_loader(folder)
    state = {**loader.state_dict(), "token_ids": "0" * 16, "tokenizer_backend": "tokenizers 0.1"}
    with pytest.raises(StreamChangedError, match=r"of tokenizers 0.1, found .* of tokenizers 0"):
        loader.load_state_dict(state)
    loader.load_state_dict(state, on_change={"token_ids": "accept"})


def test_the_hash_of_ids_depends_on_the_ids_alone(folder: str) -> None:
    def hash_of(tokenizer: Tokenizer) -> Any:
        return make_loader(folder, tokenizer=tokenizer).state_dict()["token_ids"]

    plain, same, swapped = (Tokenizer.from_str(byte_tokenizer().to_str()) for _ in range(3))
    same.post_processor = processors.TemplateProcessing(
        single="<eos> $A", special_tokens=[("<eos>", 256)]
    )
    vocabulary = {token: number for token, number in plain.get_vocab().items() if number < 256}
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    swapped.model = models.BPE(vocab=vocabulary, merges=[])
    assert hash_of(plain) == hash_of(same) == hash_of(byte_tokenizer())
    assert hash_of(swapped) != hash_of(plain)


def test_a_state_without_a_hash_of_ids_resumes_and_says_so(
    folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    loader = make_loader(folder)
    state = {**loader.state_dict(), "tokenizer_backend": "tokenizers 0.1"}
    with caplog.at_level(logging.INFO, "cloudload"):
        loader.load_state_dict(state)
        assert "which produces the same IDs for a fixed set of texts" in caplog.text
        del state["token_ids"]
        loader.load_state_dict(state)
    assert "whose IDs cannot be compared, because the state has no token_ids" in caplog.text


def test_an_automatic_framing_is_kept_from_the_state(
    folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = Tokenizer.from_str(byte_tokenizer().to_str())
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"eos_token": "<eos>"}))
    options = {"tokenizer": str(tmp_path), "eos": "auto"}
    loader = make_loader(folder, **options)
    before = list(loader.take(2))
    state = copy.deepcopy(loader.state_dict())
    rest = ids_of(loader.take(3))

    config.write_text(
        json.dumps({"eos_token": "<end>", "bos_token": "<eos>", "add_bos_token": True})
    )
    resumed = make_loader(folder, **options)
    resumed.load_state_dict(state)
    assert "the run continues with 'None/256' from the state" in caplog.text
    assert ids_of(resumed.take(3)) == rest
    assert before

    asked = make_loader(folder, **{**options, "eos": "<end>"})
    with pytest.raises(StreamChangedError, match=r"bos_eos.*: saved 'None/256', found '256/257'"):
        asked.load_state_dict(state)
