"""fastokens is used only for tokenizers for which it returns the same IDs as `tokenizers`."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement

from cloudload.config.choices import HF
from cloudload.data.cache.kept_tokenizers import kept_path
from cloudload.errors import TokenizerError
from cloudload.rows.tokenization import backend as gate
from cloudload.rows.tokenization import loading
from cloudload.rows.tokenization.backend import choose_backend, log_choice
from cloudload.system.file_locks import locked
from cloudload.system.temp_files import lock_path
from testkit import ROOT
from testkit.tokenizer_files import (
    JSONS,
    changed,
    forget,
    lose_byte,
    needs_fastokens,
    sentencepiece,
)

pytestmark = pytest.mark.usefixtures("fresh_tokenizers")
MEASURED = ", ".join(gate.MEASURED_VERSIONS)
INSTALL = f"Run: pip install fastokens=={gate.MEASURED_VERSIONS[-1]}"
SILENCE = "Pass tokenizer_backend='hf' to use it without a warning"


class Tampered:
    """A `fastokens.Tokenizer` that returns a wrong first ID for each text that contains `mark`."""

    def __init__(self, text: str, mark: str) -> None:
        self._fast, self._mark = loading.load_fastokens(text), mark

    def encode_batch_flat(self, documents: list[str], **options: bool) -> tuple[bytes, bytes]:
        ids, offsets = self._fast.encode_batch_flat(documents, **options)
        changed = np.frombuffer(ids, np.int32).copy()
        for number, start in enumerate(np.frombuffer(offsets, np.int64)[:-1].tolist()):
            changed[start : start + 1] += self._mark in documents[number]
        return changed.tobytes(), offsets


DEFECTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "id": (
        lambda c: c["added_tokens"][0].update(id=7),
        r"added token '<\|endoftext\|>' has the ID 7, but its ID in the vocabulary is 0",
    ),
    "lstrip": (lambda c: c["added_tokens"][0].update(lstrip=True), r"'<\|endoftext\|>' has lstrip"),
    "rstrip": (lambda c: c["added_tokens"][0].update(rstrip=True), r"'<\|endoftext\|>' has rstrip"),
    "single_word": (
        lambda c: c["added_tokens"][0].update(single_word=True),
        r"'<\|endoftext\|>' has single_word",
    ),
    "dropout": (lambda c: c["model"].update(dropout=0.1), "the tokenizer's model has dropout"),
    "prefix": (
        lambda c: c["model"].update(continuing_subword_prefix="##"),
        "the tokenizer's model has a continuing_subword_prefix",
    ),
    "byte": (lose_byte, "the tokenizer's vocabulary is missing 1 of the 256 bytes, such as 'Z'"),
    "no bytes": (
        lambda c: c.update(pre_tokenizer=None),
        "the tokenizer is not byte-level and does not fall back to bytes",
    ),
    "WordPiece": (
        lambda c: c.update(model={"type": "WordPiece", "vocab": {"a": 0}}),
        "the tokenizer's model is WordPiece, not BPE",
    ),
    "Unigram": (
        lambda c: c.update(model={"type": "Unigram", "vocab": [["a", 0.0]]}),
        "the tokenizer's model is Unigram, not BPE",
    ),
}


@needs_fastokens
@pytest.mark.parametrize("defect", DEFECTS)
def test_the_gate_names_what_is_wrong_with_a_tokenizer(defect: str, tmp_path: Path) -> None:
    change, named = DEFECTS[defect]
    text = changed(change)
    choice = choose_backend(text, "auto", tmp_path)
    assert choice.name == HF
    with pytest.raises(
        TokenizerError,
        match=f"tokenizer_backend is 'fastokens', but .*{named}.* Use 'auto' or 'hf'",
    ):
        choose_backend(text, "fastokens", tmp_path)


@needs_fastokens
def test_a_sentencepiece_vocabulary_that_lacks_a_byte_is_refused(tmp_path: Path) -> None:
    text = changed(lambda content: content["model"]["vocab"].pop("<0x0A>"), "sentencepiece")
    assert (
        choose_backend(text, "auto", tmp_path).reason
        == "the tokenizer's vocabulary is missing 1 of the 256 bytes, such as '<0x0A>'"
    )


@needs_fastokens
@pytest.mark.parametrize("name", JSONS)
def test_sound_tokenizers_pass_the_gate(name: str, checks_folder: Path) -> None:
    for asked in ("auto", "fastokens"):
        choice = choose_backend(JSONS[name](), asked, checks_folder)
        assert (choice.name, choice.reason) == ("fastokens", None)
        assert asked != "auto" or choice.why == "it passed every check", "it must not be known"
        assert choice.versions.startswith("fastokens 0.")
        # the checks turn `encode_special_tokens` off, and must turn it on again
        assert loading.load_hf(JSONS[name]()).encode_special_tokens
    assert choose_backend(JSONS[name](), "hf", checks_folder).name == HF


@needs_fastokens
def test_a_tokenizer_for_which_fastokens_makes_tokens_of_text_is_refused(tmp_path: Path) -> None:
    """If `<` is not in the vocabulary, fastokens 0.3.5 encodes the text `<0x0A>` as a newline."""
    choice = choose_backend(sentencepiece("thequickbrwnfxé"), "auto", tmp_path)
    assert str(choice.reason).startswith("fastokens and tokenizers produce different IDs for ")


@needs_fastokens
def test_what_fastokens_does_not_load_is_refused(tmp_path: Path) -> None:
    text = changed(lambda content: content.update(normalizer={"type": "NFKC"}))
    assert "fastokens cannot load this tokenizer" in str(
        choose_backend(text, "auto", tmp_path).reason
    )


@pytest.mark.parametrize("found", ["0.3.0", "9.9"])
def test_a_version_that_was_not_measured_is_refused(
    found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudload.system.machine.package_version", lambda _: found)
    reason = choose_backend(JSONS["byte-level"](), "auto", tmp_path).reason
    assert (
        reason == f"fastokens {found} has not been verified to produce the same IDs as tokenizers, "
        f"unlike version {MEASURED}"
    )


def without_fastokens(name: str) -> str | None:
    """A substitute for `package_version` that does not find fastokens."""
    return None if name == "fastokens" else "1.0"


def test_without_fastokens_hf_is_taken_and_fastokens_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudload.system.machine.package_version", without_fastokens)
    assert choose_backend(JSONS["byte-level"](), "auto", tmp_path).name == HF
    with pytest.raises(
        TokenizerError,
        match=f"fastokens is not installed. Run: pip install fastokens=={MEASURED}, or use 'auto'",
    ):
        choose_backend(JSONS["byte-level"](), "fastokens", tmp_path)


FALLBACKS: dict[str, tuple[Callable[[str], str | None] | None, str, str, str]] = {
    "version": (lambda _: "9.9", "byte-level", "fastokens 9.9 has not been verified", INSTALL),
    "no package": (without_fastokens, "byte-level", "fastokens is not installed", INSTALL),
    "tokenizer": (None, "odd", "added token '<|endoftext|>' has lstrip", SILENCE),
}


@needs_fastokens
@pytest.mark.parametrize("kind", FALLBACKS)
def test_a_fallback_to_hf_is_one_warning_that_names_its_cost_and_the_next_step(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    version, name, why, advice = FALLBACKS[kind]
    if version is not None:
        monkeypatch.setattr("cloudload.system.machine.package_version", version)
    odd = changed(lambda content: content["added_tokens"][0].update(lstrip=True))
    text = odd if name == "odd" else JSONS[name]()
    for _ in range(2):
        log_choice(choose_backend(text, "auto", tmp_path))
    first, second = caplog.records
    assert (first.levelname, second.levelname) == ("WARNING", "INFO")
    for part in ("backend: hf", why, "about 40 times slower than fastokens", advice):
        assert part in first.getMessage()


def test_the_cost_of_a_fallback_is_the_one_that_was_measured() -> None:
    """The ratio in the warning is the one in benchmarks/RESULTS.md, rounded to the nearest 10."""
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text("utf-8")
    fast, slow = (
        [float(each) for each in re.findall(rf"^\| cloudload, {name} \| ([\d.]+)", results, re.M)]
        for name in ("fastokens", "HF")
    )
    assert len(fast) == len(slow) == 2
    for one, other in zip(fast, slow, strict=True):
        assert round(one / other, -1) == gate.TIMES_SLOWER


@needs_fastokens
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("auto", r"fastokens \(fastokens .*, tokenizers .*\), because it passed every check"),
        ("fastokens", r"fastokens \(.*\), because tokenizer_backend='fastokens'"),
        ("hf", r"hf \(tokenizers .*\), because tokenizer_backend='hf'"),
    ],
)
def test_the_backend_that_was_wanted_is_named_with_the_reason(
    asked: str, said: str, checks_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    log_choice(choose_backend(JSONS["byte-level"](), asked, checks_folder))
    [record] = caplog.records
    assert record.levelname == "INFO"
    assert re.fullmatch(f"tokenizer backend: {said}", record.getMessage())


def test_a_plain_installation_has_a_measured_fastokens_where_it_has_wheels() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    base = text.split("\ndependencies = [")[1].split("\n]")[0]
    [found] = [
        Requirement(each) for each in re.findall(r'"([^"]+)"', base) if each.startswith("fastokens")
    ]
    assert all(measured in found.specifier for measured in gate.MEASURED_VERSIONS)
    assert found.marker is not None
    places = {"x86_64": True, "aarch64": True, "arm64": True, "ppc64le": False, "riscv64": False}
    for machine, expected in places.items():
        assert found.marker.evaluate({"platform_machine": machine}) is expected


@needs_fastokens
@pytest.mark.parametrize(
    ("mark", "named"),
    [
        ("<|endoftext|>", r"fastokens and tokenizers produce different IDs for '.*<\|endoftext\|>"),
        (
            "\U00013000",
            r"fastokens and tokenizers produce different IDs for 1 code points, such as U\+13000",
        ),
    ],
)
def test_other_ids_for_a_probe_or_a_code_point_are_refused(
    mark: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "load_fastokens", lambda text: Tampered(text, mark))
    monkeypatch.setattr(gate, "assigned_code_points", lambda: list(range(0x12F80, 0x13080)))
    with pytest.raises(TokenizerError, match=named):
        choose_backend(JSONS["byte-level"](), "fastokens", tmp_path)


@needs_fastokens
def test_the_sweep_of_code_points_is_made_once_for_a_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps: list[int] = []

    def sweep(_: Any, points: Sequence[int]) -> list[int]:
        sweeps.append(len(points))
        return []

    monkeypatch.setattr(gate, "sweep_code_points", sweep)
    for folder in (tmp_path / "one", tmp_path / "one", tmp_path / "two"):
        forget()
        assert choose_backend(JSONS["byte-level"](), "auto", folder).name == "fastokens"
    assert len(sweeps) == 2
    assert min(sweeps) > 100_000


@needs_fastokens
def test_a_cache_folder_of_another_machine_does_not_make_fastokens_importable(
    checks_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = JSONS["byte-level"]()
    assert choose_backend(text, "auto", checks_folder).name == "fastokens"
    forget()
    monkeypatch.setitem(sys.modules, "fastokens", None)  # makes the import fail
    choice = choose_backend(text, "auto", checks_folder)
    assert choice.name == HF
    assert "fastokens cannot be imported" in (choice.reason or "")


@needs_fastokens
def test_ranks_that_start_together_on_a_node_check_a_tokenizer_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[str] = []

    def check(text: str) -> None:
        checks.append(text)
        time.sleep(0.1)  # long enough for the other ranks to start during this check

    monkeypatch.setattr(gate, "check_ids", check)
    text = JSONS["byte-level"]()
    with ThreadPoolExecutor(4) as ranks:
        found = list(ranks.map(choose_backend, [text] * 4, ["auto"] * 4, [tmp_path] * 4))
    assert ([each.reason for each in found], checks) == ([None] * 4, [text])


@needs_fastokens
def test_the_partial_files_of_killed_processes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "check_ids", lambda _: None)
    tokenizers = tmp_path / "tokenizers"
    tokenizers.mkdir()
    other, used = (kept_path(tmp_path, [text], ["x"]) for text in ("other", "used"))
    orphan, held = (path.with_name(f"{path.name}.0123456789ab.part") for path in (other, used))
    for path in (orphan, held):
        path.write_text("half")
    with locked(lock_path(used)):
        forget()
        choose_backend(JSONS["byte-level"](), "auto", tmp_path)
        assert held.exists(), "a file that another process is writing must not be deleted"
        assert not orphan.exists()
    [kept] = [path for path in tokenizers.iterdir() if path != held]
    assert "checks" in kept.name


@needs_fastokens
def test_what_the_sweep_found_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "sweep_code_points", lambda *_: [0x41, 0x42])
    first = choose_backend(JSONS["byte-level"](), "auto", tmp_path)
    forget()
    monkeypatch.undo()
    assert choose_backend(JSONS["byte-level"](), "auto", tmp_path) == first
    assert (
        first.reason
        == "fastokens and tokenizers produce different IDs for 2 code points, such as U+0041"
    )
