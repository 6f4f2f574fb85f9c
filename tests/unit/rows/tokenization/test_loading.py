"""Tokenizers are loaded once per process, and forked children can load them too."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import Tokenizer

from cloudload.rows.tokenization import loading
from cloudload.rows.tokenization import tokenizer as tokenizer_module
from cloudload.rows.tokenization.backend import choose_backend
from cloudload.rows.tokenization.encoders import encode_flat
from cloudload.rows.tokenization.loading import load_fastokens, shorten_merges, start_loading
from cloudload.rows.tokenization.tokenizer import TokenizerSpec, load_tokenizer
from testkit.corpora import byte_tokenizer
from testkit.tokenizer_files import EXAMPLE, forget, needs_fastokens

TEXTS = ["the quick brown fox", "jumps over\n\tthe lazy dog", "naïve 😀 1234"]


def with_merges(*merges: list[str]) -> str:
    content = json.loads(byte_tokenizer().to_str())
    vocabulary = content["model"]["vocab"]
    for left, right in merges:
        for token in (left, right, left + right):
            vocabulary.setdefault(token, len(vocabulary) + 1_000)
    content["model"]["merges"] = list(merges)
    return json.dumps(content, separators=(",", ":"))


def test_short_merges_make_the_same_tokenizer() -> None:
    text = Tokenizer.from_file(str(EXAMPLE)).to_str()
    short = shorten_merges(text, json.loads(text))
    assert len(short) < len(text)
    assert isinstance(json.loads(short)["model"]["merges"][0], str)
    assert Tokenizer.from_str(short).to_str() == text


@pytest.mark.parametrize("merge", [["a ", "b"], ["a", " b"], ["#version", ":"], ["#version1", "2"]])
def test_merges_that_a_space_does_not_separate_stay_pairs(merge: list[str]) -> None:
    text = with_merges(["t", "h"], merge)
    assert shorten_merges(text, json.loads(text)) is text


def test_merges_of_any_other_tokens_are_short() -> None:
    merges = [
        ["t", "h"],
        ["]", "]"],
        ['"', "]]"],
        ["\\", "u"],
        ["}", "}"],
        ["[", '"]]}}'],
        ["é", "\n"],
    ]
    text = with_merges(*merges)
    short = shorten_merges(text, json.loads(text))
    content = json.loads(text)
    content["model"]["merges"] = [" ".join(merge) for merge in merges]
    assert json.loads(short) == content


@needs_fastokens
def test_a_tokenizer_is_loaded_once_by_the_thread_that_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forget()
    loads: list[str] = []
    make = loading.make_fastokens

    def count_and_make(text: str) -> Any:
        loads.append(text)
        return make(text)

    monkeypatch.setattr(loading, "make_fastokens", count_and_make)
    text = byte_tokenizer().to_str()
    start_loading(text)
    first = load_fastokens(text)
    assert load_fastokens(text) is first
    assert loads == [text]


def _encode(text: str, results: Any) -> None:
    results.put(encode_flat(load_fastokens(text), TEXTS)[0].tolist())


@needs_fastokens
def test_a_child_that_is_forked_while_a_thread_loads_loads_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forget()
    text, go = byte_tokenizer().to_str(), threading.Event()
    make = loading.make_fastokens
    with monkeypatch.context() as patch:
        patch.setattr(loading, "make_fastokens", lambda text: (go.wait(60), make(text))[1])
        started = start_loading(text)
    assert not started.done()
    fork = multiprocessing.get_context("fork")
    results: Any = fork.Queue()
    child = fork.Process(target=_encode, args=(text, results))
    child.start()
    in_child = results.get(timeout=60)
    child.join(60)
    go.set()
    assert np.array_equal(in_child, encode_flat(started.result(60), TEXTS)[0])


@needs_fastokens
def test_a_tokenizer_that_did_not_load_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    forget()
    text = byte_tokenizer().to_str()
    with monkeypatch.context() as patch:
        patch.setattr(loading, "make_fastokens", lambda _: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            load_fastokens(text)
    assert encode_flat(load_fastokens(text), TEXTS)[0].size


# ---------------------------------------------------------------- results that are kept


def load(source: object, cache: Path | None) -> TokenizerSpec:
    return load_tokenizer(source, [("auto", "auto"), (None, "<|pad|>")], cache)


def fields_of(spec: TokenizerSpec) -> dict[str, object]:
    return vars(spec)


@pytest.mark.parametrize("damage", [None, "truncated", "changed", "empty"])
def test_a_kept_tokenizer_is_the_one_that_was_loaded(
    tokenizer_folder: Path, tmp_path: Path, damage: str | None
) -> None:
    fresh = load(tokenizer_folder, None)
    assert fields_of(load(tokenizer_folder, tmp_path)) == fields_of(fresh)
    [kept] = (tmp_path / "tokenizers").iterdir()
    content = kept.read_text()
    damaged = {
        None: content,
        "truncated": content[:-9],
        "changed": content.replace('"vocab_size": ', '"vocab_size": 1'),
        "empty": "",
    }
    kept.write_text(damaged[damage])
    assert fields_of(load(tokenizer_folder, tmp_path)) == fields_of(fresh)
    assert kept.read_text() == content


@needs_fastokens
def test_a_second_start_parses_no_tokenizer(
    tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudload.rows.tokenization.backend.check_ids", lambda _: None)
    first = load(tokenizer_folder, tmp_path)
    choice = choose_backend(first.json, "auto", tmp_path)
    forget()
    monkeypatch.setattr(tokenizer_module, "_parse", None)
    for name in ("load_hf", "make_hf", "load_fastokens"):
        monkeypatch.setattr(f"cloudload.rows.tokenization.backend.{name}", None)
    again = load(tokenizer_folder, tmp_path)
    assert fields_of(again) == fields_of(first)
    assert choose_backend(again.json, "auto", tmp_path) == choice
    assert choice.name == "fastokens"


def test_a_tokenizer_that_changed_is_loaded_again(tokenizer_folder: Path, tmp_path: Path) -> None:
    folder, cache = tmp_path / "tokenizer", tmp_path / "cache"
    shutil.copytree(tokenizer_folder, folder)
    first = load(folder, cache)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": "<|pad|>"}))
    second = load(folder, cache)
    assert second.frames[0] != first.frames[0]
    content = json.loads((folder / "tokenizer.json").read_text())
    del content["model"]["merges"][-1]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    third = load(folder, cache)
    assert (third.frames, third.fingerprint) == (second.frames, load(folder, None).fingerprint)
    assert third.fingerprint != second.fingerprint


def test_objects_are_kept_by_their_text(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_str(byte_tokenizer().to_str())
    first = load_tokenizer(tokenizer, [(None, None)], tmp_path)
    assert load_tokenizer(tokenizer, [(None, None)], tmp_path) == first
    tokenizer.add_special_tokens([tokenizers.AddedToken("<new>", special=True)])
    assert load_tokenizer(tokenizer, [(None, None)], tmp_path).vocab_size == first.vocab_size + 1


def test_a_folder_that_cannot_be_written_is_no_error(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    assert load(tokenizer_folder, file) == load(tokenizer_folder, None)
