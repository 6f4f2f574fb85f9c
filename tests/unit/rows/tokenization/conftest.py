"""Fixtures of the tests of tokenizers."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def checks_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that keeps which tokenizers passed the checks, which take a second each."""
    return tmp_path_factory.mktemp("checks")
