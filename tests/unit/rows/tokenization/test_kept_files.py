"""The results that are saved for a tokenizer equal freshly computed ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tokenizers

from cloudload.rows.tokenization import tokenizer as tokenizer_module
from cloudload.rows.tokenization.backend import choose_backend
from cloudload.rows.tokenization.tokenizer import TokenizerSpec, load_tokenizer
from testkit.corpora import byte_tokenizer
from testkit.tokenizer_files import forget, needs_fastokens


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
