"""Fixtures of the tests of tokenizers."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def checks_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that keeps which tokenizers passed the checks, which take a second each."""
    return tmp_path_factory.mktemp("checks")


@pytest.fixture
def hub_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for the files of `some/model` in a temporary Hub cache."""
    import huggingface_hub.constants
    from transformers.utils import hub as transformers_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    # transformers 4 has its own copy of this setting
    monkeypatch.setattr(transformers_hub, "TRANSFORMERS_CACHE", str(tmp_path), raising=False)
    repository = tmp_path / "models--some--model"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(snapshot.name)
    return snapshot
