"""A short campaign of `stress.interrupts` finds nothing wrong, and counts what it did."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from stress import interrupts
from stress.interrupts import Campaign
from testkit import interrupted


def test_a_short_campaign_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "KINDS", [("concat", True)])
    monkeypatch.setattr(interrupts, "BATCHES", 4)
    found = Campaign(argparse.Namespace(interrupts=9, threads=2, seed=0)).run(tmp_path)
    assert found.failures == []
    assert (found.numbers["interrupts"], found.numbers["handlers"]) == (9, 3)
    assert found.numbers["reads from threads"] > 100


def test_a_wrong_result_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "KINDS", [("concat", False)])
    monkeypatch.setattr(interrupted.Check, "find_fault", lambda *_: "was wrong")
    campaign = Campaign(argparse.Namespace(interrupts=1, threads=1, seed=0))
    assert any("was wrong" in each for each in campaign.run(tmp_path).failures)
