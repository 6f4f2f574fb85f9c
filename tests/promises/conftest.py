"""Fixtures of the promises.

scratch    a folder in memory
write      writes the corpus of a finite run
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.finite_runs import Write, write_corpus


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    # in memory: thousands of tiny runs, each of which waits for the disk several times
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    return lambda documents, **settings: write_corpus(
        tmp_path_factory.mktemp("corpus"), documents, **settings
    )
