"""A loader reports its tokenizer backend, and the backend does not change the rows."""

from __future__ import annotations

import logging
from importlib.metadata import version
from pathlib import Path

import pytest

from cloudload.errors import TokenizerError
from cloudload.loading.workers.worker import compares_ids
from testkit.corpora import EOS, byte_tokenizer
from testkit.loaders import ids_of, list_settings, make_loader
from testkit.tokenizer_files import changed, needs_fastokens

pytestmark = pytest.mark.usefixtures("fresh_tokenizers")


@needs_fastokens
def test_statistics_log_and_state_name_the_backend(
    larger_folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    loader = make_loader(larger_folder, local=tmp_path)
    stats = loader.stats()
    assert (stats.tokenizer_backend, stats.tokenizer_backend_reason) == ("fastokens", None)
    assert "tokenizer backend: fastokens (fastokens 0.3.5, tokenizers" in caplog.text
    assert "because it passed every check" in list_settings(loader)
    assert loader.state_dict()["tokenizer_backend"].startswith("fastokens 0.3.5, tokenizers ")
    assert all(isinstance(value, int | float) for value in loader.stats().as_dict().values())

    odd = byte_tokenizer().from_str(
        changed(lambda content: content["added_tokens"][0].update(lstrip=True), "bytes")
    )
    loader = make_loader(larger_folder, local=tmp_path, tokenizer=odd)
    reason = f"the tokenizer's added token '{EOS}' has lstrip"
    stats = loader.stats()
    assert (stats.tokenizer_backend, stats.tokenizer_backend_reason) == ("hf", reason)
    said = f"tokenizer backend: hf (tokenizers {version('tokenizers')}), because {reason}"
    assert said in caplog.text
    assert reason in list_settings(loader)
    with pytest.raises(TokenizerError, match="has lstrip"):
        make_loader(larger_folder, local=tmp_path, tokenizer=odd, tokenizer_backend="fastokens")


@needs_fastokens
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resume_on_the_other_backend_reads_the_same_rows(
    larger_folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, num_workers: int
) -> None:
    caplog.set_level(logging.INFO, "cloudload")
    expected = ids_of(make_loader(larger_folder, local=tmp_path, tokenizer_backend="hf").take(12))
    found, state = [], None
    for backend in ("hf", "fastokens", "hf", "auto"):
        with make_loader(
            larger_folder, local=tmp_path, tokenizer_backend=backend, num_workers=num_workers
        ) as loader:
            if state is not None:
                loader.load_state_dict(state)
            found += ids_of(loader.take(3))
            state = loader.state_dict()
    assert found == expected
    assert caplog.text.count("which produces the same IDs for a fixed set of texts") == 3


def test_a_backend_that_there_is_not_is_a_wrong_argument(
    larger_folder: str, tmp_path: Path
) -> None:
    refused = r"tokenizer_backend is 'rust'\. Use one of auto, hf, fastokens"
    with pytest.raises(ValueError, match=refused):
        make_loader(larger_folder, local=tmp_path, tokenizer_backend="rust")


def test_one_worker_of_each_node_compares_ids(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    compares = {}
    for rank in range(4):
        loader = make_loader(folder, local=tmp_path, num_workers=2, dp_rank=rank, dp_world_size=4)
        compares[rank] = [compares_ids(loader.worker_plan().share, worker) for worker in range(2)]
    neither = [False, False]
    assert compares == {0: [True, False], 1: neither, 2: [True, False], 3: neither}
