"""A tokenizer in the table of known tokenizers skips the comparison of IDs. Others are compared."""

from __future__ import annotations

import json
import platform
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudload.data.cache import kept_tokenizers
from cloudload.data.cache.kept_tokenizers import digest_of, kept_path
from cloudload.errors import TokenizerError
from cloudload.rows.tokenization import backend, encoders
from cloudload.rows.tokenization import backend as gate
from cloudload.rows.tokenization.backend import choose_backend, list_checked
from cloudload.rows.tokenization.encoders import open_encoder
from cloudload.rows.tokenization.loading import load_fastokens
from cloudload.rows.tokenization.tokenizer import load_tokenizer
from scripts import know_tokenizers
from testkit.tokenizer_files import JSONS, changed, needs_fastokens

pytestmark = [needs_fastokens, pytest.mark.usefixtures("fresh_tokenizers")]
KNOWN = "because it is known to pass every check with this tokenizer"


@pytest.fixture
def text() -> str:
    return JSONS["byte-level"]()


@pytest.fixture
def checks(text: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make `text` the only known tokenizer, and return a list that records the checked texts."""
    table = {backend.conditions(list_checked()): {digest_of([text]): "example"}}
    monkeypatch.setattr(backend, "read_table", lambda: table)
    checked: list[str] = []
    monkeypatch.setattr(gate, "check_ids", checked.append)
    return checked


def test_a_known_tokenizer_is_not_compared_and_uses_fastokens(
    text: str, checks: list[str], tmp_path: Path
) -> None:
    choice = choose_backend(text, "auto", tmp_path)
    assert (choice.name, choice.reason, checks) == ("fastokens", None, [])
    assert str(choice).startswith("fastokens (fastokens 0.")
    assert str(choice).endswith(KNOWN)
    assert choose_backend(text, "fastokens", tmp_path).why == "tokenizer_backend='fastokens'"
    assert checks == []
    assert not list(tmp_path.iterdir())


def with_other_version(package: str, real: Any = kept_tokenizers.with_version) -> Any:
    return lambda name: f"{name}-9.9" if name == package else real(name)


OTHERS: dict[str, tuple[Any, str, Any]] = {
    "fastokens": (kept_tokenizers, "with_version", with_other_version("fastokens")),
    "tokenizers": (kept_tokenizers, "with_version", with_other_version("tokenizers")),
    "checks": (gate, "CHECKS", gate.CHECKS + 1),
    "machine": (platform, "machine", lambda: "riscv64"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_known_tokenizer_is_compared_with_other_versions_and_on_other_machines(
    other: str, text: str, checks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*OTHERS[other])
    choice = choose_backend(text, "auto", tmp_path)
    assert (choice.name, choice.why) == ("fastokens", "it passed every check")
    assert checks == [text]


def test_a_tokenizer_that_differs_in_one_byte_is_compared(
    text: str, checks: list[str], tmp_path: Path
) -> None:
    other = f"{text} "
    assert choose_backend(other, "auto", tmp_path).why == "it passed every check"
    assert checks == [other]


def test_a_known_tokenizer_does_not_make_fastokens_importable(
    text: str, checks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fastokens", None)  # makes the import fail
    assert "fastokens cannot be imported" in (choose_backend(text, "auto", tmp_path).reason or "")
    assert checks == []


def test_a_wrong_entry_ends_the_run_when_a_document_has_different_ids(
    text: str, checks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To simulate a defect, fastokens encodes with a copy of the tokenizer that has no merges."""
    wrong = changed(lambda content: content["model"].update(merges=[]))
    backend = choose_backend(text, "auto", tmp_path).name
    monkeypatch.setattr(encoders, "load_fastokens", lambda _: load_fastokens(wrong))
    encoder: Any = open_encoder(text, backend)
    encoder._comparison._loads_at = 0
    encoder.encode(["the quick brown fox"])
    encoder._comparison._thread.shutdown()
    with pytest.raises(TokenizerError, match="the quick brown fox"):
        encoder.encode(["the quick brown fox"])
    assert checks == []


# ---------------------------------------------------------------- the table of known tokenizers


def test_the_table_is_for_verified_versions_and_this_version_of_the_checks() -> None:
    table = backend.read_table()
    assert table
    assert know_tokenizers.TABLE.exists()
    for conditions, names in table.items():
        found = re.fullmatch(r"(checks-\d+)-fastokens-(.+)-tokenizers-([\d.]+)-\w+", conditions)
        assert found is not None
        assert found[1] == list_checked()[0], "the table is outdated. Run scripts.know_tokenizers"
        assert found[2] in gate.MEASURED_VERSIONS
        assert names
        for digest, name in names.items():
            assert re.fullmatch("[0-9a-f]{32}", digest)
            assert name.strip()


def test_a_digest_is_that_of_a_kept_result(text: str, tmp_path: Path) -> None:
    assert kept_path(tmp_path, [text], ["x"]).name == f"{digest_of([text])}-x"


def test_without_its_file_the_table_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "TABLE_NAME", "missing.json")
    backend.read_table.cache_clear()
    try:
        assert backend.read_table() == {}
        assert not backend.is_known("{}", list_checked())
    finally:
        backend.read_table.cache_clear()


def test_the_script_adds_a_tokenizer_that_passes_and_no_other(
    tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table.json"
    older = {"checks-1-older": {"0" * 32: "kept"}}
    table.write_text(json.dumps(older))
    points = "cloudload.rows.tokenization.probes.all_code_points"
    monkeypatch.setattr(points, lambda: list(range(0x20, 0x100)))
    assert know_tokenizers.know(tokenizer_folder, table) == 0
    written = json.loads(table.read_text())
    monkeypatch.setattr(backend, "read_table", lambda: written)
    text = load_tokenizer(str(tokenizer_folder)).json
    assert backend.is_known(text, list_checked())
    assert written.items() >= older.items()
    monkeypatch.setattr(know_tokenizers, "find_problem", lambda _: "it differs")
    table.write_text(json.dumps(older))
    assert know_tokenizers.know(tokenizer_folder, table) == 1
    assert json.loads(table.read_text()) == older
