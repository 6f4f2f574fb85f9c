"""The answers to mistakes of the first hour: `len`, a folder of checkpoints, and a slow command."""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from cloudload.errors import StreamChangedError
from cloudload.provenance import load_state
from cloudload.tools.cli.blame_command import _name_steps
from cloudload.tools.cli.output import notice_after
from cloudload.tools.losses.blame import Losses, blame
from cloudload.tools.losses.log_file import SAMPLE, STEP, TOKENS, Records
from testkit.corpora import random_documents, write_mds
from testkit.loaders import make_loader


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
    assert _name_steps(found) == "steps 0 to 40, worst at 40"
