"""Typical mistakes of a first try get an error that says what to do."""

from __future__ import annotations

import copy
import io
import json
import logging
import os
import pickle
import re
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cloudload
from cloudload.errors import StoreError, StreamChangedError, TokenizerError
from cloudload.integrations.frameworks import explain_missing
from cloudload.loading.delivery.world import explain_few_cores
from cloudload.provenance import load_state
from cloudload.rows.tokenization.tokenizer import _explain, load_tokenizer
from cloudload.tools.cli.output import notice_after
from cloudload.tools.losses.blame import Losses, blame
from cloudload.tools.losses.log_file import SAMPLE, STEP, TOKENS, Records
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


def test_a_folder_that_cannot_be_loaded_is_not_advised_to_be_a_folder(tmp_path: Path) -> None:
    said = _explain(str(tmp_path), ValueError("no model"))
    advice = "Pass a folder that has a tokenizer.json, or that transformers can load"
    assert said.endswith(f"no model. {advice}")


def test_an_import_on_another_system_says_so() -> None:
    # the standard library is imported first, because on Windows it needs modules of Windows
    program = "import importlib.metadata, sys; sys.platform = 'win32'; import cloudload"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (
        "ImportError: cloudload runs on Linux, and to try it on macOS, but this is win32"
        in ended.stderr
    )


def test_a_tokenizer_with_a_password_is_not_quoted() -> None:
    with pytest.raises(TokenizerError) as failure:
        load_tokenizer("https://user:hidden-word@host/tokenizer.json?sig=hidden-mark")
    assert "hidden" not in str(failure.value)


# ---------------------------------------------------------------- first contact


def test_len_of_an_endless_run_names_the_command_for_its_data(tmp_path: Path) -> None:
    folder = write_mds(tmp_path / "mds", random_documents(1, 20))
    with pytest.raises(
        TypeError, match=rf"no end. Add epochs=1, and run: cloudload count {folder}"
    ):
        len(make_loader(folder))
    with pytest.raises(TypeError, match=rf"token lengths. To count, run: cloudload count {folder}"):
        len(make_loader(folder, epochs=1))
    with pytest.raises(TypeError, match=r"an epoch has an unknown number of batches"):
        len(make_loader(folder, stop_every="epoch"))


def test_a_folder_of_checkpoints_is_answered_with_those_in_it(tmp_path: Path) -> None:
    state = make_loader(write_mds(tmp_path / "mds", random_documents(1, 20))).state_dict()
    saved = tmp_path / "checkpoints"
    (saved / "checkpoint-8").mkdir(parents=True)
    (saved / "checkpoint-8" / "trainer_state.json").write_text(json.dumps(state))
    torch.save({"state": {"loader": state}}, saved / "ep0-ba8-rank0.pt")
    (saved / "notes.txt").write_text("none")
    with pytest.raises(StreamChangedError, match="Pass one of those in it: ") as raised:
        load_state(saved)
    assert {"ep0-ba8-rank0.pt", "checkpoint-8"} == set(
        str(raised.value).partition("in it: ")[2].split(", ")
    )
    assert load_state(saved / "ep0-ba8-rank0.pt") == load_state(saved / "checkpoint-8")


def test_a_folder_without_checkpoints_has_no_state(tmp_path: Path) -> None:
    with pytest.raises(StreamChangedError, match="has no cloudload state"):
        load_state(tmp_path)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("command", "shown", "is_told"),
    [
        ("cloudload plan", True, True),
        ("cloudload plan", False, False),
        ("cloudload count", True, False),
    ],
)
def test_a_slow_command_without_a_bar_says_that_it_works(
    monkeypatch: pytest.MonkeyPatch, command: str, shown: bool, is_told: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr := Terminal())
    with notice_after(0.0, command, shown=shown):
        deadline = time.monotonic() + (60 if is_told else 0.1)
        while not stderr.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert ("cloudload: plan is still working" in stderr.getvalue()) == is_told


def test_a_fast_command_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stderr := Terminal())
    with notice_after(600.0, "cloudload plan", shown=True):
        pass
    assert stderr.getvalue() == ""


def test_a_document_of_several_steps_is_blamed_with_all_of_them_and_the_worst() -> None:
    random = np.random.default_rng(1)
    table = np.zeros((402, 8), np.int64)
    table[:, SAMPLE], table[:, STEP], table[:, TOKENS] = np.arange(402), np.arange(402) // 10, 50
    table[-2:, SAMPLE], table[-2:, STEP] = 7, (25, 40)  # continues in steps 25 and 40
    means = 3 + 0.1 * random.normal(size=len(table))
    means[-1] = 30
    losses = Losses(("web",), Records(table, means * 50), None)
    [found] = blame(losses).documents
    assert (found.sample, found.step, found.last_step, found.worst_step) == (7, 0, 40, 40)
    [line, _] = found.describe(None, 80)
    assert line.endswith("  steps 0 to 40, worst at 40")


# ---------------------------------------------------------------- missing packages


class Hides:
    """Finds modules as if `packages` were not installed."""

    def __init__(self, packages: list[str]) -> None:
        self.packages = packages

    def find_spec(self, name: str, *_: object) -> None:
        if name in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(
    ("integration", "packages"),
    [
        ("composer", ["composer"]),
        ("lightning", ["lightning", "pytorch_lightning"]),
        ("torchdata", ["torchdata"]),
        ("torchtitan", ["torchtitan"]),
        ("transformers", ["accelerate"]),
    ],
)
def test_a_missing_framework_is_answered_with_its_package(
    integration: str, packages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"cloudload.integrations.{integration}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    for name in [each for each in sys.modules if each.partition(".")[0] in packages]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Hides(packages), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError) as raised:
        import_module(module)
    assert str(raised.value) == (
        f"{module} needs {packages[0]}, which is not installed. "
        f"Run: pip install {'mosaicml' if integration == 'composer' else packages[0]}"
    )


def test_a_framework_that_fails_to_import_keeps_its_own_error() -> None:
    broken = ModuleNotFoundError("No module named 'numpy'", name="numpy")
    assert explain_missing(broken, "composer", "composer") is broken
    too_old = ImportError("cannot import name 'DataSpec'", name="composer")
    assert explain_missing(too_old, "composer", "composer") is too_old


def test_no_message_tells_the_user_to_install_an_extra_of_cloudload() -> None:
    for path in Path(cloudload.__file__).parent.rglob("*.py"):
        assert not re.search(r"cloudload\[\w+\]", path.read_text("utf-8")), path
