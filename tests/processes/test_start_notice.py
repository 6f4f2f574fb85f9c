"""On a terminal, a script that configures no logging is told in one line that its loader starts."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cloudload.system import activity
from testkit import ROOT
from testkit.corpora import random_documents, write_mds
from testkit.loaders import make_loader

SCRIPT = """
import sys, time
from cloudload import CloudLoader
from cloudload.loading import current_run
from cloudload.system import activity

activity.LOOK_EVERY_S, activity.NOTICE_S = 0.02, 1e9
find_lengths = current_run.find_lengths

def find_slowly(*arguments, **options):
    activity.NOTICE_S = 0.1
    time.sleep(1)
    return find_lengths(*arguments, **options)

current_run.find_lengths = find_slowly
data, tokenizer, cache = sys.argv[1:]
loader = CloudLoader(
    data, tokenizer=tokenizer, seq_len=32, batch_size=2, local=cache, num_workers=0, eos=None
)
list(loader.take(2))
"""
HINT = "(log level INFO shows more)"


def test_a_script_on_a_terminal_is_told_in_one_line_what_its_slow_start_does(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    data = write_mds(tmp_path / "mds", random_documents(7, 60))
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", 0) as printed:
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, data, tokenizer_folder, tmp_path / "cache"],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stderr=theirs,
        )
        os.close(theirs)
        text = b""
        try:
            while part := printed.read(4096):
                text += part
        except OSError:  # how Linux reports that the other end of a terminal is closed
            pass
    assert process.wait() == 0, text.decode()
    told = [line for line in text.decode().splitlines() if "starting" in line]
    assert told == [f"cloudload: starting: looking for token lengths … {HINT}"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def slowly(sample: Any) -> str:
    """Be slow, in a start that is long enough for a notice from here on."""
    activity.NOTICE_S = 0.0
    time.sleep(0.05)
    return str(sample["text"])


def start(folder: str, monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO, **options: Any) -> str:
    """Read two batches with a slow transform, and return what was printed about the start."""
    monkeypatch.setattr(activity, "NOTICE_S", 60.0)
    monkeypatch.setattr(activity, "LOOK_EVERY_S", 0.02)
    with monkeypatch.context() as patch, make_loader(folder, num_workers=0, **options) as loader:
        patch.setattr(sys, "stderr", stderr)
        patch.setattr(logging.root, "handlers", [])  # with which pytest configures logging
        if loader.world_size == 1:
            list(loader.take(2))
        else:
            loader._reader._start_log.notice(2.0, "reading the index")
    return stderr.getvalue()


def test_a_slow_first_batch_is_told_once(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = start(folder, monkeypatch, Terminal(), transform=slowly)
    # on a busy machine, the start itself takes long enough to be told
    started = "running the transform on |working in the training process"
    assert re.match(f"cloudload: starting: ({started})", printed)
    assert printed.count("\n") == 1


def test_a_slow_start_is_silent_in_a_file(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert start(folder, monkeypatch, io.StringIO(), transform=slowly) == ""


@pytest.mark.parametrize("handler", [logging.NullHandler(), logging.StreamHandler(io.StringIO())])
def test_a_slow_start_is_left_to_the_log_if_logging_is_configured(
    folder: str, monkeypatch: pytest.MonkeyPatch, handler: logging.Handler
) -> None:
    monkeypatch.setattr(logging.getLogger("cloudload"), "handlers", [handler])
    assert start(folder, monkeypatch, Terminal(), transform=slowly) == ""
    monkeypatch.setattr(logging.getLogger("cloudload"), "handlers", [])
    assert start(folder, monkeypatch, Terminal(), transform=slowly) != ""


@pytest.mark.parametrize(("rank", "is_told"), [(0, True), (1, False)])
def test_only_the_first_rank_is_told(
    folder: str, monkeypatch: pytest.MonkeyPatch, rank: int, is_told: bool
) -> None:
    printed = start(folder, monkeypatch, Terminal(), dp_rank=rank, dp_world_size=2)
    assert bool(printed) == is_told
