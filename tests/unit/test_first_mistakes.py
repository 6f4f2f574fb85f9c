"""Typical mistakes of a first try get an error that says what to do."""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudload.errors import StoreError, TokenizerError
from cloudload.loading.delivery.world import explain_few_cores
from cloudload.rows.tokenization.tokenizer import _explain, load_tokenizer
from testkit.corpora import random_documents, write_mds
from testkit.loaders import make_loader


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CLOUDLOAD_CACHE", str(tmp_path / "cache"))
    return write_mds(tmp_path / "data", random_documents(1, 200))


def test_the_name_of_a_hub_dataset_leads_to_the_converter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError) as failure:
        make_loader("HuggingFaceFW/fineweb")
    assert "run: cloudload convert hf://HuggingFaceFW/fineweb fineweb-mds" in str(failure.value)


def test_a_path_below_a_folder_is_not_taken_for_a_hub_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpus").mkdir()
    for location in ("corpus/mds", "/corpus/mds", "./corpus/mds", "corpus/mds/train"):
        with pytest.raises(StoreError) as failure:
            make_loader(location)
        assert "Hugging Face" not in str(failure.value)


def test_a_loader_that_has_begun_is_not_pickled(data: str) -> None:
    with make_loader(data) as loader:
        batches = iter(loader)
        first = next(batches)["input_ids"].tolist()
        for duplicate in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match=r"cannot be pickled .*once it has begun.*state_d"):
                duplicate(loader)
        second = next(batches)["input_ids"].tolist()
    with make_loader(data) as fresh, pickle.loads(pickle.dumps(fresh)) as copied:
        batches = iter(copied)
        assert [next(batches)["input_ids"].tolist() for _ in range(2)] == [first, second]


def test_the_number_of_workers_that_was_given_is_the_one_that_is_named(
    data: str, caplog: pytest.LogCaptureFixture
) -> None:
    most = len(os.sched_getaffinity(0))
    with make_loader(data, num_workers=900, num_lanes=most + 1) as loader:
        loader.worker_plan()
    [warning] = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert warning.startswith(f"num_workers is 900 ({most + 1} are used, one for each lane), but")
    assert str(explain_few_cores(3, 1, 2, 2, asked=3)).startswith("num_workers is 3, but")


def write_model(folder: Path) -> Path:
    """Write a folder with a SentencePiece model, but no tokenizer.json."""
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(b"\x0a\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02")
    config: dict[str, Any] = {"tokenizer_class": "LlamaTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_a_sentencepiece_model_says_what_its_conversion_needs(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "llama")
    error = ValueError(f"Converting from SentencePiece and Tiktoken failed, {'words ' * 90}")
    said = _explain(str(folder), error)
    assert "its tokenizer.model cannot be converted" in said
    assert said.endswith("pip install sentencepiece protobuf tiktoken")
    assert "words …. Pass" in _explain("name", ValueError("words " * 90)), "not cut within a word"
    with pytest.raises(TokenizerError, match=r"is a model of SentencePiece or tiktoken, not a tok"):
        load_tokenizer(folder / "tokenizer.model")


def test_a_folder_that_cannot_be_loaded_is_not_advised_to_be_a_folder(tmp_path: Path) -> None:
    said = _explain(str(tmp_path), ValueError("no model"))
    advice = "Pass a folder that has a tokenizer.json, or that transformers can load"
    assert said.endswith(f"no model. {advice}")


def test_an_import_on_another_system_says_so() -> None:
    program = "import sys; sys.platform = 'darwin'; import cloudload"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert "ImportError: cloudload runs only on Linux, but this is darwin" in ended.stderr


def test_a_tokenizer_with_a_password_is_not_quoted() -> None:
    with pytest.raises(TokenizerError) as failure:
        load_tokenizer("https://user:hidden-word@host/tokenizer.json?sig=hidden-mark")
    assert "hidden" not in str(failure.value)
