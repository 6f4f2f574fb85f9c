"""A deferred comparison of the backends decides which of them encodes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudload.tokenization import backend as gate
from cloudload.tokenization import deferral as deferral_module
from cloudload.tokenization import encoders
from cloudload.tokenization.backend import Choice, check_deferred, choose_backend
from cloudload.tokenization.deferral import Deferral
from cloudload.tokenization.encoders import FastokensEncoder, HFEncoder, open_encoder
from cloudload.tokenization.kept_files import keep
from cloudload.tokenization.loading import start_loading
from tests.support.tokenizer_files import JSONS, changed, needs_fastokens

pytestmark = [needs_fastokens, pytest.mark.usefixtures("deferring")]
TEXTS = ["the quick brown fox", "naïve 😀 1234", ""]


@pytest.fixture
def text() -> str:
    return JSONS["byte-level"]()


def defer(text: str, cache_root: Path) -> Deferral:
    deferral = choose_backend(text, "auto", cache_root, defers=True).deferral
    assert deferral is not None
    return deferral


def test_the_first_run_of_a_node_defers_the_comparison(text: str, tmp_path: Path) -> None:
    first = choose_backend(text, "auto", tmp_path, defers=True)
    assert (first.name, first.settled()) == ("fastokens", first)
    assert "tokenizers encodes documents until another process has compared" in str(first)
    check_deferred(text, tmp_path)
    gate._refusals.clear()
    second = choose_backend(text, "auto", tmp_path, defers=True)
    assert second == first.settled()
    assert (second.why, second.deferral) == ("it passed every check", None)
    assert second.versions == first.versions, "states do not depend on when the comparison ends"


def test_a_comparison_that_fastokens_does_not_pass_settles_on_hf(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = choose_backend(text, "auto", tmp_path, defers=True)
    monkeypatch.setattr(gate, "sweep_code_points", lambda *_: [0x41])
    check_deferred(text, tmp_path)
    settled = first.settled()
    assert (settled.name, settled.is_fallback, settled.deferral) == ("hf", True, None)
    assert "different IDs than tokenizers for 1 code points" in str(settled.reason)


def odd() -> str:
    return changed(lambda content: content["added_tokens"][0].update(lstrip=True))


NOT_DEFERRED: dict[str, Any] = {
    "asked for": (JSONS["byte-level"], "fastokens", None),
    "a known difference": (odd, "auto", None),
    "no Python to start": (JSONS["byte-level"], "auto", (sys, "executable", "")),
    "a read-only folder": (JSONS["byte-level"], "auto", (os, "access", lambda *_: False)),
}


@pytest.mark.parametrize("case", NOT_DEFERRED)
def test_a_comparison_is_not_deferred_if_another_process_cannot_help(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, asked, patched = NOT_DEFERRED[case]
    if patched is not None:
        monkeypatch.setattr(*patched)
    if case == "a known difference":
        assert choose_backend(make(), asked, tmp_path, defers=True).name == "hf"
    else:
        choice = choose_backend(make(), asked, tmp_path, defers=True)
        assert (choice.name, choice.deferral) == ("fastokens", None)


def test_another_process_makes_the_comparison(text: str, tmp_path: Path) -> None:
    deferral = defer(text, tmp_path)
    deferral.start(text).join(300)
    assert deferral.read() == ""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit('killed for memory')", "status 1: killed for memory"),
        ("import os; os.kill(os.getpid(), 9)", "status -9"),
    ],
)
def test_after_a_failed_process_the_next_start_compares_by_itself(
    code: str, said: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deferral = defer(text, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(deferral_module, "_COMMAND", ("-c", code))
        deferral.start(text).join(300)
    assert said in str(deferral.read())
    choice = choose_backend(text, "auto", tmp_path, defers=True)
    assert (choice.why, choice.deferral) == ("it passed every check", None)


def test_what_fastokens_does_not_load_is_said_and_not_deferred_again(tmp_path: Path) -> None:
    text = changed(lambda content: content.update(normalizer={"type": "NFKC"}))
    deferral = defer(text, tmp_path)
    check_deferred(text, tmp_path)
    assert "fastokens does not load this tokenizer" in str(deferral.read())
    gate._refusals.clear()
    assert choose_backend(text, "auto", tmp_path, defers=True).name == "hf"


def test_a_text_that_was_cut_off_is_not_compared(text: str, tmp_path: Path) -> None:
    """This happens if the worker dies while it writes the tokenizer.json."""
    deferral = defer(text, tmp_path)
    deferral.start(text[:-9]).join(300)
    assert "JSONDecodeError" in str(deferral.read())
    assert [path.name for path in deferral.path.parent.iterdir()] == [deferral.failure_path.name]


# ---------------------------------------------------------------- the encoder


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[Deferral]:
    """The comparisons that encoders start. None ends, and encoders look for a result each time."""
    started: list[Deferral] = []
    monkeypatch.setattr(Deferral, "start", lambda self, _: started.append(self))
    monkeypatch.setattr(encoders, "_LOADING_DELAY_S", 0.0)
    monkeypatch.setattr(encoders, "_LOOK_EVERY_S", 0.0)
    return started


def ids_of(encoder: Any) -> list[int]:
    return list(encoder.encode(TEXTS)[0].tolist())


@pytest.mark.parametrize("special", [False, True])
def test_hf_encodes_until_fastokens_has_passed(
    special: bool, text: str, tmp_path: Path, starts: list[Deferral]
) -> None:
    deferral = defer(text, tmp_path)
    encoder: Any = open_encoder(text, "fastokens", special_tokens=special, deferral=deferral)
    expected = ids_of(HFEncoder(text, special))
    for _ in range(3):
        assert ids_of(encoder) == expected
        assert isinstance(encoder._encoder, HFEncoder)
    assert starts == [deferral]
    keep(deferral.path, "")
    ids_of(encoder)  # begins to load fastokens
    start_loading(text).result(60)
    assert ids_of(encoder) == expected
    assert isinstance(encoder._encoder, FastokensEncoder)


@pytest.mark.usefixtures("starts")
def test_hf_encodes_everything_if_fastokens_does_not_pass(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deferral = defer(text, tmp_path)
    encoder: Any = open_encoder(text, "fastokens", deferral=deferral)
    keep(deferral.path, "fastokens gives different IDs")
    for _ in range(2):
        ids_of(encoder)
    assert isinstance(encoder._encoder, HFEncoder)
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "because fastokens gives different IDs" in record.getMessage()


@pytest.mark.usefixtures("starts")
def test_hf_encodes_everything_if_fastokens_no_longer_loads(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deferral = defer(text, tmp_path)
    encoder: Any = open_encoder(text, "fastokens", deferral=deferral)
    keep(deferral.path, "")
    monkeypatch.setattr("cloudload.tokenization.loading._make_fastokens", lambda _: 1 // 0)
    ids_of(encoder)
    while not start_loading(text).done():
        pass
    assert ids_of(encoder) == ids_of(HFEncoder(text))
    assert "fastokens does not load (integer division" in caplog.text


def test_only_the_worker_that_compares_starts_the_comparison(
    text: str, tmp_path: Path, starts: list[Deferral]
) -> None:
    deferral = defer(text, tmp_path)
    for compares in (False, True, True):
        ids_of(open_encoder(text, "fastokens", compares=compares, deferral=deferral))
    assert starts == [deferral]


def test_the_first_documents_do_not_wait_for_a_process(
    text: str, tmp_path: Path, starts: list[Deferral], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders, "_LOADING_DELAY_S", 1e6)
    ids_of(open_encoder(text, "fastokens", deferral=defer(text, tmp_path)))
    assert starts == []


def test_a_choice_without_a_deferral_is_settled() -> None:
    choice = Choice("hf", "tokenizers 1", "tokenizer_backend='hf'")
    assert choice.settled() is choice
