"""Fixtures of the promise tests.

scratch                 a folder in memory
write                   a function that writes the corpus of a finite run
corpora                 three datasets with token lengths; `counted_folder` is the largest
samples_read            the samples whose texts this process reads
alone_with_streaming    keeps other processes of the test run from using a StreamingDataset
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudload.loading.workers.document_reader import DocumentReader
from cloudload.system.file_locks import locked
from testkit.counted_runs import write_corpora
from testkit.finite_runs import Write, write_corpus
from testkit.noted_calls import note_calls


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    # in memory, because thousands of tiny runs would each wait for the disk several times
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    return lambda documents, **settings: write_corpus(
        tmp_path_factory.mktemp("corpus"), documents, **settings
    )


@pytest.fixture(scope="session")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_corpora(tmp_path_factory.mktemp("corpora"))


@pytest.fixture
def counted_folder(corpora: list[Path]) -> str:
    return str(corpora[2])


@pytest.fixture
def samples_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The samples whose texts this process reads, in order."""
    found: list[int] = []
    note_calls(
        monkeypatch, DocumentReader, "read_texts", lambda _, samples: found.extend(samples.tolist())
    )
    return found


@pytest.fixture
def alone_with_streaming(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Let one process at a time use StreamingDatasets, because they share names in shared memory.

    Each new dataset also checks the lock files that earlier ones left in the temporary folder, so
    this fixture gives the test its own temporary folder.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with locked(run_folder / "streaming.lock"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
