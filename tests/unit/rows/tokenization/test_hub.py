"""Without a connection, names on the Hub load from the local cache, or fail quickly."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from cloudload import convert_to_mds
from cloudload.data.storage import hub
from cloudload.errors import StoreError, TokenizerError
from cloudload.rows.tokenization.tokenizer import load_tokenizer
from tests.unit.rows.tokenization.test_framing import write_files


def closed_port() -> str:
    """The URL of a local port on which no server listens."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(params=["refused", "unknown host", "silent"])
def unreachable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make the Hub unreachable in one of three ways. Yields a regex for the reason in the error."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "TIMEOUT_S", 0.2)
    hub.check_connection.cache_clear()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint, reason = {
            "refused": (closed_port(), "Connection refused"),
            "unknown host": (
                "http://hub.invalid",
                "(Name or service not known|Temporary failure.*)",
            ),
            "silent": (f"http://127.0.0.1:{silent.getsockname()[1]}", "(timed out|ReadTimeout)"),
        }[str(request.param)]
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
        yield reason


def test_without_a_connection_a_name_is_one_sentence_with_the_next_step(
    unreachable: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # raising the error must not import transformers, because that takes seconds
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(TokenizerError, match=rf"cannot be reached \({unreachable}\)") as raised:
        load_tokenizer("no/such-tokenizer")
    assert "and the tokenizer is not in the local cache. Pass a folder" in str(raised.value)
    assert raised.value.__context__ is None
    assert "Retrying" not in caplog.text


@pytest.mark.usefixtures("unreachable")
def test_without_a_connection_a_name_in_the_cache_loads(
    hub_snapshot: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_files(hub_snapshot, {"eos_token": "</s>"})
    assert load_tokenizer("some/model").frames == ((None, 2),)
    assert "so the tokenizer 'some/model' is loaded from the local cache" in caplog.text


def test_without_a_connection_files_on_the_hub_are_one_sentence(
    unreachable: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(StoreError, match=rf"cannot be reached \({unreachable}\)\. Check"):
        convert_to_mds("hf://datasets/no/such/a.jsonl", tmp_path / "out", progress=False)
    assert "yet" not in caplog.text, "the request must not be retried"


def test_without_a_connection_a_dataset_by_name_is_one_sentence(
    unreachable: str, tmp_path: Path
) -> None:
    pytest.importorskip("datasets")
    with pytest.raises(StoreError, match=rf"cannot be reached \({unreachable}\)\. Check"):
        convert_to_mds("hf://no/such-dataset", tmp_path / "out", progress=False)
