"""Campaigns: runs that a sequence of jobs continues, compared with undisturbed runs."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

from stress.chaos.caches import damage_caches, left_overs
from stress.chaos.corpus import make_tokenizer, write_dataset
from stress.chaos.findings import Findings
from stress.chaos.jobs import Jobs
from stress.chaos.rank import Campaign, Job, hash_rows
from tests.support.fault_proxy import FaultProxy
from tests.support.servers import BUCKET, S3Server

NUM_LANES = 24
CAMPAIGNS: tuple[tuple[str, dict[str, Any], tuple[float, ...] | None], ...] = (
    ("concat", {}, None),
    ("best_fit, mixed", {"packing": "best_fit", "open_rows": 4}, (0.7, 0.3)),
    ("finite, to its end", {"epochs": 1, "packing": "best_fit"}, None),
    (
        "one_per_row, seekable",
        {"packing": "one_per_row", "overflow": "rows", "shuffle_algo": "seekable"},
        None,
    ),
    ("concat, mixed, py1br", {"shuffle_algo": "py1br"}, (0.5, 0.5)),
)


class Campaigns:
    """Runs all campaigns, and collects their findings."""

    def __init__(
        self, args: argparse.Namespace, folder: Path, server: S3Server, proxy: FaultProxy
    ) -> None:
        self._args, self._folder = args, folder
        self._draw, self._found = random.Random(args.seed), Findings()
        self._jobs = Jobs(args, self._draw, server, proxy, self._found)
        self._tokenizer = make_tokenizer(folder)

    def run(self) -> dict[str, Any]:
        """Run campaigns until there are enough jobs and faults, and return a summary."""
        started, number, found = time.monotonic(), 0, self._found
        with self._jobs.family_started():
            while found.jobs < self._args.restarts or found.faults.total() < self._args.faults:
                self._run_campaign(self._make_campaign(number))
                number += 1
        minutes = round((time.monotonic() - started) / 60, 1)
        return {"campaigns": number, **found.summary(), "minutes": minutes}

    def _make_campaign(self, number: int) -> Campaign:
        name, settings, proportions = CAMPAIGNS[number % len(CAMPAIGNS)]
        folder = self._folder / f"campaign-{number}"
        folder.mkdir()
        urls = tuple(
            f"s3://{BUCKET}/{number}/{stream}" for stream in range(len(proportions or "x"))
        )
        for stream, url in enumerate(urls):
            write_dataset(folder, url, self._args.documents // (stream + 1), self._draw.random())
        settings = {"num_lanes": NUM_LANES, "seed": number, "eos": "<|endoftext|>", **settings}
        return Campaign(name, folder, urls, self._tokenizer, settings, proportions)

    def _run_campaign(self, campaign: Campaign) -> None:
        trained: dict[int, str] = {}
        seen: dict[int, str] = {}
        start = 0
        for _ in range(self._args.jobs):
            damage_caches(campaign, self._draw, self._args.wipe)
            job = self._jobs.make()
            before = left_overs(campaign, job.nodes)
            did = self._jobs.run(campaign, job, before)
            stop = (
                json.loads(campaign.state_file.read_text())["rows"]
                if campaign.state_file.exists()
                else 0
            )
            found = _rows_of(campaign, job)
            for row, row_hash in found.items():
                if seen.setdefault(row, row_hash) != row_hash:
                    self._found.fail(
                        f"{campaign.name}, job {job.number}: row {row} is not "
                        "what it was in an earlier job"
                    )
            if missing := [row for row in range(start, stop) if row not in found]:
                self._found.fail(
                    f"{campaign.name}, job {job.number}: rows {missing[:5]} up to its last "
                    "checkpoint are not there"
                )
            trained.update({row: found[row] for row in range(start, stop) if row in found})
            self._found.replayed += sum(row >= stop for row in found)
            what = (
                f"{job.ranks} ranks, {job.nodes} nodes, {job.workers} workers: rows {start:,} "
                f"to {stop:,}, {did}"
            )
            print(f"{campaign.name}, job {job.number}: {what}", flush=True)
            start = stop
            if (campaign.folder / "ended").exists():
                break
        self._found.rows += compare(campaign, trained, start, self._found)
        shutil.rmtree(campaign.folder)


def compare(campaign: Campaign, trained: dict[int, str], stop: int, found: Findings) -> int:
    """Compare the rows trained on with those of an undisturbed process.

    Checks rows 0 to `stop` and records differences in `found`. Returns the number of rows checked.
    """
    expected: dict[int, str] = {}
    # at least the global batch of any job, because a job may pad the end
    with campaign.make_loader(
        batch_size=48,
        num_workers=0,
        local=campaign.folder / "undisturbed",
        tokenizer_backend="hf",
    ) as loader:
        for batch in loader:
            expected.update(hash_rows(batch))
            if len(expected) >= stop:
                break
    if (campaign.folder / "ended").exists():
        stop = min(stop, len(expected))
        if len(trained) < len(expected) - 48:
            found.fail(f"{campaign.name}: ended after {len(trained)} of {len(expected)} rows")
    different = [row for row in range(stop) if trained.get(row) != expected.get(row)]
    if different:
        found.fail(
            f"{campaign.name}: rows {different[:5]} and {len(different)} in all are not those "
            "of an undisturbed run"
        )
    return stop


def _rows_of(campaign: Campaign, job: Job) -> dict[int, str]:
    """Read the row hashes that a job's ranks wrote, without lines that a killed rank cut short."""
    rows: dict[int, str] = {}
    for rank in range(job.ranks):
        with contextlib.suppress(FileNotFoundError):
            for line in job.rows_file(campaign, rank).read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    rows.update({int(row): row_hash for row, row_hash in json.loads(line).items()})
    return rows
