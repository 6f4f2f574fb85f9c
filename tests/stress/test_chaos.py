"""`stress.chaos`, shortened: real ranks, killed again and again on a failing store, read what an
undisturbed run reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stress.chaos.campaigns import compare
from stress.chaos.findings import Findings
from stress.chaos.rank import Campaign, hash_rows
from tests.support import ROOT
from tests.support.corpora import random_documents, write_mds

COMMAND = "--restarts 16 --faults 200 --documents 1500 --jobs 8"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_job_in_a_hostile_world_loses_repeats_and_changes_nothing() -> None:
    command = [sys.executable, "-m", "stress.chaos", *COMMAND.split()]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=850, check=False
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-3000:]
    summary = json.loads(ended.stdout[ended.stdout.index("\n{\n") :])
    assert summary["failures"] == []
    assert summary["campaigns"] >= 2
    assert summary["restarts"] >= 10
    assert summary["faults"] >= 200
    assert summary["rows"] > 0


def test_a_row_that_differs_from_the_undisturbed_run_is_a_failure(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    url = write_mds(tmp_path / "mds", random_documents(1, 100))
    campaign = Campaign("concat", tmp_path, (url,), str(tokenizer_folder), {"num_lanes": 24})
    trained: dict[int, str] = {}
    with campaign.make_loader(batch_size=8, num_workers=0, local=tmp_path / "cache") as loader:
        for batch in loader.take(3):
            trained.update(hash_rows(batch))
    sound, changed = Findings(), Findings()
    assert compare(campaign, trained, 24, sound) == 24
    assert sound.failures == []
    compare(campaign, trained | {17: trained[16]}, 24, changed)
    assert len(changed.failures) == 1
    assert "rows [17] and 1 in all are not those of an undisturbed run" in changed.failures[0]
