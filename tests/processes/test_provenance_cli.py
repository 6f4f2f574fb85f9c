"""`cloudload trace` as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader, Stream
from tests.support.corpora import random_documents, write_mds

STEPS, SAVED, BATCH = 40, 7, 6
TEXTS = {"web": random_documents(1, 200), "books": random_documents(2, 30)}
MakeLoader = Callable[..., CloudLoader]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("provenance")
    for name, texts in TEXTS.items():
        ids = [f"{name}/{number}" for number in range(len(texts))]
        write_mds(folder / name, texts, shard_bytes=2_000, extra={"id": ("str", ids)})
    return folder


@pytest.fixture
def make_loader(folder: Path, tokenizer_folder: Path) -> MakeLoader:
    def make_loader(**settings: Any) -> CloudLoader:
        streams = [
            Stream(str(folder / name), name=name, proportion=share)
            for name, share in (("web", 0.8), ("books", 0.2))
        ]
        if settings.get("epochs"):
            streams = [Stream(str(folder / name), name=name) for name in TEXTS]
        defaults = {
            "tokenizer": tokenizer_folder,
            "seq_len": 48,
            "num_lanes": 12,
            "batch_size": BATCH,
            "num_workers": 0,
        }
        return CloudLoader(streams, local=folder / "cache", **{**defaults, **settings})

    return make_loader


def consume(loader: CloudLoader) -> tuple[list[Any], dict[str, Any]]:
    """All batches of a run of at most 40 steps, and its state after 7."""
    batches = []
    for batch in loader.take(STEPS):
        batches.append(batch)
        if len(batches) == SAVED:
            state = json.loads(json.dumps(loader.state_dict()))
    return batches, state


def test_the_command_line_runs_as_a_process_of_its_own(
    make_loader: MakeLoader, tmp_path: Path
) -> None:
    with make_loader() as loader:
        batches, state = consume(loader)
        spans = loader.trace(batches[29])
    (tmp_path / "state.json").write_text(json.dumps(state))
    command = [
        sys.executable,
        "-m",
        "cloudload.cli",
        "trace",
        str(tmp_path / "state.json"),
        "--steps",
        "30",
        "--json",
    ]
    done = subprocess.run(
        [*command, "--local", str(loader.plan().cache_root)],
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == [
        span.text for span in spans
    ]
