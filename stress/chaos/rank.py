"""Run one rank of a training job that has no model, but hashes every row and saves checkpoints."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from cloudload import CloudLoader, Retry
from cloudload.loading.delivery import all_gather, exchange
from cloudload.run.lengths import lengths_index
from stress.chaos.datasets import cut_small_shards
from stress.chaos.scenario import Job


def run_rank(job: Job, rank: int) -> None:
    """Train one rank from the last checkpoint, for `job.steps` steps or to the end of the data."""
    with job.log_file(rank).open("w") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    # on SIGUSR1, print the stack to the log, to show where the process hangs
    faulthandler.register(signal.SIGUSR1)
    local = {"LOCAL_WORLD_SIZE": str(job.ranks_per_node), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ.update(job.run.environment | local)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{job.run.folder}/job-{job.number}.store",
        rank=rank,
        world_size=job.ranks,
        timeout=timedelta(seconds=job.scenario.timeout_s),
    )
    count_small_groups()
    cut_small_shards()
    if job.killed_while_connecting is not None and job.killed_while_connecting[0] == rank:
        _die_while_connecting(job.killed_while_connecting[1])
    loader = _make_loader(job, rank)
    if job.run.state_file.exists():
        loader.load_state_dict(json.loads(job.run.state_file.read_text()))
    has_ended = _train(job, rank, loader)
    dist.barrier()
    if rank == 0:
        write_json(job.run.state_file, loader.state_dict())
        if has_ended:
            job.run.end_file.touch()
    loader.close()
    dist.barrier()
    dist.destroy_process_group()


def count_small_groups() -> None:
    """Make this process count lengths in groups of about 100 kB of shards."""
    vars(lengths_index)["_GROUP_BYTES"] = 100_000


def _die_while_connecting(delay_s: float) -> None:
    connect = all_gather.Gather

    def die(*arguments: Any) -> all_gather.Gather:
        threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return connect(*arguments)

    vars(exchange)["Gather"] = die


def _make_loader(job: Job, rank: int) -> CloudLoader:
    timeout_s = job.scenario.timeout_s
    return job.run.open(
        local=job.caches[rank // job.ranks_per_node],
        exchange_timeout_s=timeout_s,
        retry=Retry(timeout_s=2.0, deadline_s=timeout_s / 2, pause_s=0.02),
        **job.options,
    )


def _train(job: Job, rank: int, loader: CloudLoader) -> bool:
    """Write the row hashes of each batch, and save checkpoints. Returns whether the data ended."""
    with job.rows_file(rank).open("w") as rows:
        for step, batch in enumerate(loader, 1):
            rows.write(json.dumps(hash_rows(batch)) + "\n")
            rows.flush()
            dist.barrier()
            if step % job.save_every == 0 and rank == 0:
                write_json(job.run.state_file, loader.state_dict())
            if step == job.steps:
                return False
    return True


def hash_rows(batch: Any) -> dict[int, str]:
    """Map each row's index in the run to a hash of the row's IDs and labels."""
    ids, labels = batch["input_ids"].numpy(), batch["labels"].numpy()
    return {
        row: hashlib.sha256(ids[at].tobytes() + labels[at].tobytes()).hexdigest()[:24]
        for at, row in enumerate(batch.rows.tolist())
        if row >= 0  # not a filler row
    }


def write_json(path: Path, value: Any) -> None:
    """Replace a file with a value as JSON, at once."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value))
    new.replace(path)
