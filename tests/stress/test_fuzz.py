"""The targets of `stress.fuzz` survive a short run on hostile input, and its engine reports
findings."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from stress.fuzz.__main__ import main
from stress.fuzz.engine import Target, expect, fuzz
from stress.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_changed_inputs_cause_only_our_own_errors(name: str) -> None:
    tried, found, why = fuzz(TARGETS[name], seconds=20, inputs=400)
    assert not why, f"the input {found!r} caused {why}"
    assert tried >= 20


def fail(data: bytes) -> None:
    expect(b"9" not in data, "a nine")


def hang(_: bytes) -> None:
    time.sleep(60)


def test_the_engine_finds_the_input_that_fails() -> None:
    _, found, why = fuzz(Target(fail, lambda: [b"[0]", b"{}"]), seconds=20)
    assert found is not None
    assert b"9" in found
    assert why == "Finding: a nine"


def test_an_input_that_takes_seconds_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stress.fuzz.engine.MAX_SECONDS", 1)
    found = fuzz(Target(hang, lambda: [b""]), seconds=20)
    assert found == (1, b"", "Finding: did not finish within 1 s")


def test_a_finding_is_kept_for_replay_and_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(TARGETS, "nines", Target(fail, lambda: [b"9"]))
    command = ["fuzz", "nines", "--seconds", "1", "--engine", "own", "--findings", str(tmp_path)]
    monkeypatch.setattr("sys.argv", command)
    assert main() == 1
    [finding] = tmp_path.iterdir()
    assert finding.read_bytes() == b"9"
    assert f"FINDING {finding}: Finding: a nine" in capsys.readouterr().out
