"""Run campaigns, and compare the rows of each one with those of an undisturbed run."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stress.chaos.caches import damage_caches
from stress.chaos.corpus import (
    make_tokenizer,
    write_dataset,
    write_lengths,
)
from stress.chaos.disks import can_mount, give_room, unmount
from stress.chaos.drama import draw_drama
from stress.chaos.family import Family
from stress.chaos.findings import Findings, write_summary
from stress.chaos.jobs import MOST_ROWS, NUM_LANES, draw_job
from stress.chaos.kinds import COUNTED, KINDS
from stress.chaos.rank import Campaign, Job, hash_rows, make_lengths_small
from stress.chaos.run import JobRun, Stage
from stress.chaos.stores import Store


class Campaigns:
    """A runner of campaigns, which collects their findings."""

    def __init__(self, args: argparse.Namespace, folder: Path, stores: Sequence[Store]) -> None:
        self._args, self._folder, self._stores = args, folder, stores
        self._draw, self._found, self._family = random.Random(args.seed), Findings(), Family()
        self._stage = Stage(self._family, self._found, self._draw, args.pause)
        make_lengths_small()
        self._tokenizer = make_tokenizer(folder)
        self._has_disks = can_mount(folder)
        self._campaigns, self._started = 0, time.monotonic()
        self._deadline = self._started + 60.0 * args.minutes
        self._variables = {
            name: value for store in stores for name, value in store.environment.items()
        }

    def run(self) -> dict[str, Any]:
        """Run campaigns until there are enough jobs and faults, and return a summary."""
        number = self._args.seed
        with self._family.started():
            while not self._is_over():
                self._run_campaign(number)
                self._campaigns += 1
                number += 1
        return self._summarize()

    def _summarize(self) -> dict[str, Any]:
        minutes = round((time.monotonic() - self._started) / 60, 1)
        return {"campaigns": self._campaigns, **self._found.summary(), "minutes": minutes}

    def _is_over(self) -> bool:
        found, args = self._found, self._args
        is_enough: bool = found.jobs >= args.restarts and found.faults.total() >= args.faults
        return is_enough or time.monotonic() > self._deadline

    def _make_campaign(self, number: int, store: Store) -> Campaign:
        kind, draw = KINDS[number % len(KINDS)], self._draw
        folder = self._folder / f"campaign-{number}"
        folder.mkdir()
        lengths = draw.choice(kind.lengths)
        urls = tuple(
            store.url(f"{number}/{stream}") for stream in range(len(kind.proportions or "x"))
        )
        for stream, url in enumerate(urls):
            write_dataset(folder, url, self._args.documents // (stream + 1), draw.random())
            if lengths == COUNTED:
                write_lengths(url, self._tokenizer)
        return Campaign(
            name=kind.name,
            folder=folder,
            urls=urls,
            tokenizer=self._tokenizer,
            settings={
                "num_lanes": NUM_LANES,
                "seed": number,
                "eos": "<|endoftext|>",
                **kind.settings,
            },
            proportions=kind.proportions,
            lengths=lengths,
            has_disks=self._has_disks and draw.random() < 0.5,
        )

    def _run_campaign(self, number: int) -> None:
        store = self._draw.choice(self._stores)
        campaign = self._make_campaign(number, store)
        try:
            trained, stop = self._run_jobs(campaign, store)
            self._found.rows += compare(campaign, trained, stop, self._found)
        finally:
            for cache in campaign.folder.glob("cache-*"):
                if cache.is_mount():
                    unmount(cache)
            shutil.rmtree(campaign.folder, ignore_errors=True)

    def _run_jobs(self, campaign: Campaign, store: Store) -> tuple[dict[int, str], int]:
        """Run a campaign's jobs.

        Returns the hashes of the rows up to the last checkpoint, by row, and the row at which that
        checkpoint stops.
        """
        trained: dict[int, str] = {}
        seen: dict[int, str] = {}
        start = 0
        for _ in range(self._args.jobs):
            job, did = self._run_job(campaign, store)
            stop = (
                json.loads(campaign.state_file.read_text())["rows"]
                if campaign.state_file.exists()
                else 0
            )
            found = _rows_of(campaign, job)
            self._check_rows(f"{campaign.name}, job {job.number}", found, seen, range(start, stop))
            trained.update({row: found[row] for row in range(start, stop) if row in found})
            self._found.replayed += sum(row >= stop for row in found)
            print(
                f"{campaign.name} on {store.scheme}, job {job.number}: rows {start:,} to "
                f"{stop:,}, {did}, {self._found.faults.total():,} faults so far",
                flush=True,
            )
            if self._args.summary:
                write_summary(self._args.summary, self._summarize())
            start = stop
            if (campaign.folder / "ended").exists() or self._is_over():
                break
        return trained, start

    def _run_job(self, campaign: Campaign, store: Store) -> tuple[Job, str]:
        for cache in campaign.folder.glob("cache-*"):
            if cache.is_mount():
                give_room(cache, None)
        damage_caches(campaign, self._draw, self._args.wipe)
        store.set_faults(self._draw, self._args.share)
        self._found.jobs += 1
        drama = draw_drama(self._draw, has_disks=campaign.has_disks)
        job = draw_job(self._draw, self._found.jobs, campaign, drama, self._variables)
        return job, JobRun(campaign, job, drama, store, self._stage).run()

    def _check_rows(
        self, what: str, found: dict[int, str], seen: dict[int, str], saved: range
    ) -> None:
        """Check that a job read every row up to its last checkpoint, and that no row changed."""
        for row, row_hash in found.items():
            if seen.setdefault(row, row_hash) != row_hash:
                self._found.fail(f"{what}: row {row} differs from the same row in an earlier job")
        if missing := [row for row in saved if row not in found]:
            self._found.fail(
                f"{what}: rows before the job's last checkpoint are missing ({len(missing)} in "
                f"total): {missing[:5]}"
            )


def compare(campaign: Campaign, trained: dict[int, str], stop: int, found: Findings) -> int:
    """Compare the rows that the jobs trained on with those of an undisturbed run.

    Checks rows [0, stop), and records differences in `found`. Returns the number of checked rows.
    """
    expected: dict[int, str] = {}
    # at the end, a job may pad the rows to its global batch, which is smaller than this batch
    with campaign.make_loader(
        batch_size=MOST_ROWS,
        num_workers=0,
        local=campaign.folder / "undisturbed",
        tokenizer_backend="hf",
        lengths="require" if campaign.needs_lengths else "off",
    ) as loader:
        for batch in loader:
            expected.update(hash_rows(batch))
            if len(expected) >= stop:
                break
    if (campaign.folder / "ended").exists():
        stop = min(stop, len(expected))
        if len(trained) < len(expected) - MOST_ROWS:
            found.fail(
                f"{campaign.name}: the run ended after {len(trained)} of {len(expected)} rows"
            )
    different = [row for row in range(stop) if trained.get(row) != expected.get(row)]
    if different:
        found.fail(
            f"{campaign.name}: rows differ from those of an undisturbed run ({len(different)} in "
            f"total): {different[:5]}"
        )
    return stop


def _rows_of(campaign: Campaign, job: Job) -> dict[int, str]:
    """Read the row hashes that a job's ranks wrote, except lines that a killed rank cut short."""
    rows: dict[int, str] = {}
    for rank in range(job.ranks):
        with contextlib.suppress(FileNotFoundError):
            for line in job.rows_file(campaign, rank).read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    rows.update({int(row): row_hash for row, row_hash in json.loads(line).items()})
    return rows
