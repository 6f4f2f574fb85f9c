"""Run one rank of a job that has no model, but writes every row and saves checkpoints."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from cloudload import CloudLoader
from cloudload.batch import Batch
from testkit.conversation_oracle import RowTuple

_TIMEOUT_S = 60


@dataclass(frozen=True)
class Job:
    """A start of a run on a number of ranks. It continues from the run's last checkpoint."""

    folder: Path
    """The folder of the run."""
    number: int
    data: Any
    ranks: int
    save_every: int
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def state_file(self) -> Path:
        """The last checkpoint of the run."""
        return self.folder / "state.json"

    def rows_file(self, rank: int) -> Path:
        """The file of a rank's rows. Each batch is a JSON line that maps row indices to rows."""
        return self.folder / f"job-{self.number}-rank-{rank}.jsonl"

    def log_file(self, rank: int) -> Path:
        """The file of what a rank prints."""
        return self.folder / f"job-{self.number}-rank-{rank}.log"


def run_rank(job: Job, rank: int) -> None:
    """Train one rank from the last checkpoint until the data ends, or until it is killed."""
    with job.log_file(rank).open("w") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    os.environ |= {"LOCAL_WORLD_SIZE": str(job.ranks), "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{job.folder}/job-{job.number}.store",
        rank=rank,
        world_size=job.ranks,
        timeout=timedelta(seconds=_TIMEOUT_S),
    )
    loader = CloudLoader(job.data, local=job.folder / "cache", **job.options)
    if job.state_file.exists():
        loader.load_state_dict(json.loads(job.state_file.read_text()))
    dist.barrier()
    with loader, job.rows_file(rank).open("w") as rows:
        for step, batch in enumerate(loader, 1):
            rows.write(json.dumps(rows_of(batch)) + "\n")
            rows.flush()
            dist.barrier()
            if step % job.save_every == 0 and rank == 0:
                _save(job, loader)
        dist.barrier()
        if rank == 0:
            _save(job, loader)
    dist.destroy_process_group()


def rows_of(batch: Batch) -> dict[int, RowTuple]:
    """The rows of a batch by their index in the run."""
    spans: list[list[Any]] = [[] for _ in batch.rows]
    for place, *span in batch.spans.tolist():
        spans[place].append(tuple(span))
    ids, labels = batch["input_ids"].tolist(), batch["labels"].tolist()
    return {
        row: (ids[place], labels[place], spans[place])
        for place, row in enumerate(batch.rows.tolist())
        if row >= 0  # not a filler row
    }


def _save(job: Job, loader: CloudLoader) -> None:
    new = job.state_file.with_suffix(".new")
    new.write_text(json.dumps(loader.state_dict()))
    new.replace(job.state_file)
