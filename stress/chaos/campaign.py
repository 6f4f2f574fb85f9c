"""Continue training runs with jobs, and compare the rows of each run with an undisturbed run."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from cloudload import count_tokens
from stress.campaign import Report
from stress.chaos.datasets import cut_small_shards, draw_documents, write_files, write_shards
from stress.chaos.job import JobRunner
from stress.chaos.monitor import ProcessTree
from stress.chaos.rank import count_small_groups, hash_rows, write_json
from stress.chaos.scenario import MAX_GLOBAL_BATCH, RUN_KINDS, Job, TrainingRun, draw_job
from stress.chaos.storage import (
    Store,
    can_mount,
    damage_caches,
    resize,
)
from testkit.conversions import QUIET
from testkit.disks import unmount
from testkit.trained_tokenizers import save_tokenizer, standard_library_texts, train_tokenizer


class Campaign:
    """A series of training runs of all kinds."""

    def __init__(self, args: argparse.Namespace, folder: Path, stores: Sequence[Store]) -> None:
        self._args, self._folder, self._stores = args, folder, stores
        self._draw, self._report, self._tree = random.Random(args.seed), Report(), ProcessTree()
        count_small_groups()
        cut_small_shards()
        texts = (text[:2_000] for text in islice(standard_library_texts(), 100))
        save_tokenizer(train_tokenizer(texts, 600), folder / "tokenizer")
        self._has_disks = can_mount(folder)

    def run(self) -> Report:
        """Run until there are enough jobs and faults, and report everything."""
        with self._tree.started():
            while not self._is_over():
                self._train(self._args.seed + self._report.numbers["runs"])
                self._report.numbers["runs"] += 1
        return self._report

    def _is_over(self) -> bool:
        numbers, args = self._report.numbers, self._args
        is_enough: bool = numbers["restarts"] >= args.restarts and numbers["faults"] >= args.faults
        return is_enough or self._report.minutes > args.minutes

    def _train(self, number: int) -> None:
        store = self._draw.choice(self._stores)
        run = self._make_run(number, store)
        try:
            trained, stop = self._run_jobs(run, store)
            self._report.numbers["rows"] += compare(run, trained, stop, self._report)
        finally:
            for cache in run.folder.glob("cache-*"):
                unmount(cache)
            shutil.rmtree(run.folder, ignore_errors=True)

    def _make_run(self, number: int, store: Store) -> TrainingRun:
        kind, draw = RUN_KINDS[number % len(RUN_KINDS)], self._draw
        has_lengths = kind.needs_lengths or draw.random() < 0.5
        is_parquet = draw.random() < self._args.parquet
        tokenizer = str(self._folder / "tokenizer" / "tokenizer.json")
        folder = self._folder / f"run-{number}"
        folder.mkdir()
        urls, undisturbed = [], []
        for stream in range(len(kind.proportions or "x")):
            url = store.url(f"{number}/{stream}")
            documents = draw_documents(draw, self._args.documents // (stream + 1))
            if is_parquet:
                undisturbed.append(str(folder / f"undisturbed-{stream}"))
                urls.append(write_files(url, documents, draw, Path(undisturbed[-1])))
            else:
                write_shards(url, documents)
                urls.append(url)
        for url in (*urls, *undisturbed):
            if has_lengths:
                count_tokens(url, tokenizer=tokenizer, tokenizer_backend="hf", **QUIET)
        has_disks = self._has_disks and draw.random() < 0.5
        variables: dict[str, str] = {}
        for each in self._stores:
            variables |= each.server.environment(each.proxy.endpoint)
        return TrainingRun(
            kind,
            number,
            folder,
            tuple(urls),
            tokenizer,
            has_lengths,
            has_disks,
            tuple(undisturbed),
            variables,
        )

    def _run_jobs(self, run: TrainingRun, store: Store) -> tuple[dict[int, str], int]:
        """Run the jobs of a training run.

        Returns the hashes of the rows up to the last checkpoint, by row, and the row at which that
        checkpoint stops.
        """
        trained: dict[int, str] = {}
        seen: dict[int, str] = {}
        start = 0
        for _ in range(self._args.jobs):
            job, outcome = self._run_job(run, store)
            stop = 0
            if run.state_file.exists():
                stop = json.loads(run.state_file.read_text())["rows"]
            found = _rows_of(job)
            self._check_rows(f"{run.kind.name}, job {job.number}", found, seen, range(start, stop))
            trained.update({row: found[row] for row in range(start, stop) if row in found})
            self._report.numbers["rows read again"] += sum(row >= stop for row in found)
            print(
                f"{run.kind.name} on {store.scheme}, job {job.number}: rows {start:,} to "
                f"{stop:,}, {outcome}, {self._report.numbers['faults']:,} faults so far",
                flush=True,
            )
            if self._args.summary:
                write_json(Path(self._args.summary), self._report.summary())
            start = stop
            if run.end_file.exists() or self._is_over():
                break
        return trained, start

    def _run_job(self, run: TrainingRun, store: Store) -> tuple[Job, str]:
        caches = sorted(run.folder.glob("cache-*"))
        for cache in caches:
            resize(cache, None)
        damage_caches(caches, self._draw, self._args.wipe)
        store.set_faults(self._draw, self._args.share)
        self._report.numbers["restarts"] += 1
        job = draw_job(self._draw, self._report.numbers["restarts"], run)
        runner = JobRunner(
            job, store, self._tree, self._report, self._draw, max_delay_s=self._args.max_delay
        )
        return job, runner.run()

    def _check_rows(
        self, what: str, found: dict[int, str], seen: dict[int, str], saved: range
    ) -> None:
        """Check that a job read every row up to its last checkpoint, and that no row changed."""
        for row, row_hash in found.items():
            if seen.setdefault(row, row_hash) != row_hash:
                self._report.fail(f"{what}: row {row} differs from the same row in an earlier job")
        if missing := [row for row in saved if row not in found]:
            self._report.fail(
                f"{what}: rows before the job's last checkpoint are missing ({len(missing)} in "
                f"total): {missing[:5]}"
            )


def compare(run: TrainingRun, trained: dict[int, str], stop: int, report: Report) -> int:
    """Compare the rows that the jobs trained on with those of an undisturbed run.

    Checks rows [0, stop), and records differences in `report`. Returns the number of checked rows.
    """
    expected: dict[int, str] = {}
    # at the end, a job may pad the rows to its global batch, which is smaller than this batch
    with run.open_undisturbed(
        batch_size=MAX_GLOBAL_BATCH,
        num_workers=0,
        local=run.folder / "undisturbed",
        tokenizer_backend="hf",
        lengths="require" if run.kind.needs_lengths else "off",
    ) as loader:
        for batch in loader:
            expected.update(hash_rows(batch))
            if len(expected) >= stop:
                break
    if run.end_file.exists():
        stop = min(stop, len(expected))
        if len(trained) < len(expected) - MAX_GLOBAL_BATCH:
            report.fail(
                f"{run.kind.name}: the run ended after {len(trained)} of {len(expected)} rows"
            )
    if different := [row for row in range(stop) if trained.get(row) != expected.get(row)]:
        report.fail(
            f"{run.kind.name}: rows differ from those of an undisturbed run ({len(different)} in "
            f"total): {different[:5]}"
        )
    return stop


def _rows_of(job: Job) -> dict[int, str]:
    """Read the row hashes that a job's ranks wrote, except lines that a killed rank cut short."""
    rows: dict[int, str] = {}
    for rank in range(job.ranks):
        with contextlib.suppress(FileNotFoundError):
            for line in job.rows_file(rank).read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    rows.update({int(row): row_hash for row, row_hash in json.loads(line).items()})
    return rows
