"""In a short run of `stress.chaos`, ranks that are killed repeatedly on a failing store read the
same rows as an undisturbed run."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from stress.chaos.campaigns import compare
from stress.chaos.drama import CONNECTING, ENDS, STOPPED, draw_drama
from stress.chaos.family import Family
from stress.chaos.findings import Findings
from stress.chaos.jobs import MOST_ROWS, NUM_LANES, START_METHODS, draw_job
from stress.chaos.kinds import COUNTED, KINDS
from stress.chaos.rank import Campaign, Job, hash_rows
from stress.chaos.together import add
from stress.chaos.watch import Quiet
from testkit import ROOT
from testkit.corpora import random_documents, write_mds

COMMAND = "--restarts 16 --faults 200 --documents 1500 --jobs 8 --minutes 10 --together 2"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_job_in_a_hostile_world_loses_repeats_and_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    command = [sys.executable, "-m", "stress.chaos", *COMMAND.split()]
    command += ["--summary", str(file)]
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
    so_far = json.loads(file.read_text())
    assert (so_far["restarts"], so_far["ends"]) == (summary["restarts"], summary["ends"])


def test_jobs_have_every_option_and_ranks_that_can_share_the_lanes(tmp_path: Path) -> None:
    draw, jobs, happens = random.Random(1), list[tuple[Campaign, Job]](), set[str]()
    for number in range(1_500):
        kind = KINDS[number % len(KINDS)]
        lengths = draw.choice(kind.lengths)
        settings, shares = dict(kind.settings), kind.proportions
        campaign = Campaign(kind.name, tmp_path, (), "", settings, shares, lengths)
        drama = draw_drama(draw, has_disks=True)
        jobs.append((campaign, draw_job(draw, number, campaign, drama, {})))
        happens |= {drama.end, str(drama.disk)}
        happens |= {drama.stop.of} if drama.stop else set()
        assert (jobs[-1][1].dies is not None) == (drama.end == CONNECTING)
    assert happens == {*ENDS, *STOPPED, "small", "fills", "None"}
    assert {job.start_method for _, job in jobs} == START_METHODS.keys()
    assert {job.lengths for _, job in jobs} == {"auto", "require", "off"}
    assert {job.nodes for _, job in jobs} >= {1, 2, 3}
    uneven = [(campaign, job) for campaign, job in jobs if NUM_LANES % job.ranks]
    assert {job.ranks for _, job in uneven} == {5, 7, 9}
    assert all(campaign.lengths == COUNTED and job.lengths != "off" for campaign, job in uneven)
    assert all(job.ranks * job.batch_size <= MOST_ROWS for _, job in jobs)


def test_summaries_of_several_campaigns_are_added_up() -> None:
    first = {
        "restarts": 2,
        "ends": {"none": 1, "SIGKILL all": 1},
        "most seconds": {"none": 3.5},
        "jobs": {"store": {"s3": 2}},
        "failures": ["a"],
        "minutes": 2.0,
    }
    second = {
        "restarts": 3,
        "ends": {"none": 3},
        "most seconds": {"none": 2.0, "SIGKILL all": 1.0},
        "jobs": {"store": {"gs": 3}, "nodes": {"1": 3}},
        "failures": ["b"],
        "minutes": 1.0,
    }
    assert add([first, second]) == {
        "restarts": 5,
        "ends": {"none": 4, "SIGKILL all": 1},
        "most seconds": {"none": 3.5, "SIGKILL all": 1.0},
        "jobs": {"store": {"s3": 2, "gs": 3}, "nodes": {"1": 3}},
        "failures": ["a", "b"],
        "minutes": 2.0,
    }


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
    assert "rows differ from those of an undisturbed run (1 in total): [17]" in changed.failures[0]


def test_a_time_is_not_quiet_while_processes_wait_for_a_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stress.chaos.watch._LOOK_AT_WAITS_EVERY_S", 0.0)
    waits = {"3": 50.0, "4": 1.0}
    monkeypatch.setattr(
        Quiet, "_read_waits", lambda _: {int(pid): each for pid, each in waits.items()}
    )
    now = 1_000.0
    monkeypatch.setattr("stress.chaos.watch.time.monotonic", lambda: now)
    quiet = Quiet(Family())
    now = 1_089.0
    assert not quiet.has_lasted(90.0)
    now = 1_091.0
    assert quiet.has_lasted(90.0)
    waits["3"], waits["5"] = 55.0, 2.0
    assert not quiet.has_lasted(90.0)
    now = 1_096.0
    assert quiet.has_lasted(90.0)
    quiet.restart()
    assert not quiet.has_lasted(90.0)
