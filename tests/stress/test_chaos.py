"""In a short run of `stress.chaos`, ranks that are killed repeatedly on a failing store read the
same rows as an undisturbed run."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cloudload.data.mds import virtual_index
from stress.campaign import Report
from stress.chaos import datasets, monitor
from stress.chaos.campaign import compare
from stress.chaos.rank import hash_rows
from stress.chaos.scenario import (
    CONNECTING,
    ENDS,
    MAX_GLOBAL_BATCH,
    NUM_LANES,
    PAUSED,
    RUN_KINDS,
    START_METHODS,
    Job,
    TrainingRun,
    draw_job,
)
from testkit import ROOT
from testkit.corpora import random_documents, write_mds

COMMAND = "--restarts 12 --faults 200 --documents 1500 --jobs 6 --minutes 10"


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
    assert summary["runs"] >= 2
    assert summary["restarts"] >= 10
    assert summary["faults"] >= 200
    assert summary["rows"] > 0
    so_far = json.loads(file.read_text())
    assert (so_far["restarts"], so_far["ends"]) == (summary["restarts"], summary["ends"])


def test_jobs_have_every_option_and_ranks_that_can_share_the_lanes(tmp_path: Path) -> None:
    draw, jobs, happens = random.Random(1), list[Job](), set[str]()
    for number in range(1_500):
        kind = RUN_KINDS[number % len(RUN_KINDS)]
        has_lengths = kind.needs_lengths or draw.random() < 0.5
        run = TrainingRun(kind, 0, tmp_path, (), "", has_lengths, has_disks=True)
        jobs.append(draw_job(draw, number, run))
        scenario = jobs[-1].scenario
        happens |= {scenario.end, str(scenario.disk)}
        happens |= {scenario.pause.of} if scenario.pause else set()
        is_killed = jobs[-1].killed_while_connecting is not None
        assert is_killed == (scenario.end == CONNECTING)
    assert happens == {*ENDS, *PAUSED, "small", "fills", "None"}
    assert {job.options["start_method"] for job in jobs} == START_METHODS.keys()
    assert {job.options["lengths"] for job in jobs} == {"auto", "require", "off"}
    assert {job.nodes for job in jobs} >= {1, 2, 3}
    uneven = [job for job in jobs if NUM_LANES % job.ranks]
    assert {job.ranks for job in uneven} == {5, 7, 9}
    assert all(job.run.has_lengths and job.options["lengths"] != "off" for job in uneven)
    for job in jobs:
        shared = job.options.get("global_batch_size")
        size = shared or job.ranks * job.options["batch_size"]
        assert job.ranks <= size <= MAX_GLOBAL_BATCH


def test_a_row_that_differs_from_the_undisturbed_run_is_a_failure(
    tmp_path: Path, tokenizer_folder: Path
) -> None:
    url = write_mds(tmp_path / "mds", random_documents(1, 100))
    run = TrainingRun(RUN_KINDS[0], 1, tmp_path, (url,), str(tokenizer_folder))
    trained: dict[int, str] = {}
    with run.open(batch_size=8, num_workers=0, local=tmp_path / "cache") as loader:
        for batch in loader.take(3):
            trained.update(hash_rows(batch))
    sound, changed = Report(), Report()
    assert compare(run, trained, 24, sound) == 24
    assert sound.failures == []
    compare(run, trained | {17: trained[16]}, 24, changed)
    assert len(changed.failures) == 1
    assert "rows differ from those of an undisturbed run (1 in total): [17]" in changed.failures[0]


@pytest.mark.parametrize("seed", range(4))
def test_parquet_files_have_the_rows_of_the_shards_of_the_undisturbed_run(
    tmp_path: Path, tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(virtual_index, "SHARD_BYTES", datasets.SHARD_BYTES)
    draw = random.Random(seed)
    documents, other = datasets.draw_documents(draw, 120), tmp_path / "other"
    data = datasets.write_files(str(tmp_path / "files"), documents, draw, other)
    kind, tokenizer = RUN_KINDS[seed], str(tokenizer_folder)
    run = TrainingRun(kind, 1, tmp_path, (data,), tokenizer, other_urls=(str(other),))
    if kind.proportions is not None:
        run = replace(run, kind=replace(kind, proportions=(1.0,), settings={}))
    trained: dict[int, str] = {}
    with run.open(batch_size=8, num_workers=0, local=tmp_path / "cache") as loader:
        for batch in loader.take(4):
            trained.update(hash_rows(batch))
    report = Report()
    assert compare(run, trained, 32, report) == 32
    assert report.failures == []


def test_a_time_is_not_silent_while_processes_wait_for_a_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(monitor, "CORE_WAITS_EVERY_S", 0.0)
    waits, now = {3: 50.0, 4: 1.0}, 1_000.0
    monkeypatch.setattr("stress.chaos.monitor.time.monotonic", lambda: now)
    silence = monitor.SilenceTimer(waits.copy)
    now = 1_089.0
    assert not silence.exceeds(90.0)
    now = 1_091.0
    assert silence.exceeds(90.0)
    waits |= {3: 55.0, 5: 2.0}
    assert not silence.exceeds(90.0)
    now = 1_096.0
    assert silence.exceeds(90.0)
    silence.restart()
    assert not silence.exceeds(90.0)
