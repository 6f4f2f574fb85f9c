"""Run one rank of a training job that has no model, but hashes every row and saves checkpoints."""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import json
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from cloudload import CloudLoader, Retry, Stream
from cloudload.loading.delivery import exchange, gather
from cloudload.run.lengths import index
from stress.chaos.kinds import NONE


@dataclass(frozen=True)
class Campaign:
    """A run that a sequence of jobs continues: its data and the options that determine its rows."""

    name: str
    folder: Path
    urls: tuple[str, ...]
    tokenizer: str
    settings: dict[str, Any] = field(default_factory=dict)
    proportions: tuple[float, ...] | None = None
    lengths: str = NONE
    """Whether the datasets have token lengths. It is one of the values of `Kind.lengths`."""
    has_disks: bool = False
    """Whether each cache of the campaign is a separate file system, which may be filled."""

    @property
    def is_finite(self) -> bool:
        """Whether the run ends, after a number of epochs."""
        return "epochs" in self.settings

    @property
    def needs_lengths(self) -> bool:
        """Whether the run is a finite mixture, which cannot run without token lengths."""
        return self.is_finite and self.proportions is not None

    @property
    def state_file(self) -> Path:
        """The file of the campaign's last checkpoint."""
        return self.folder / "state.json"

    def make_loader(self, **settings: Any) -> CloudLoader:
        """Create a loader for the campaign's rows. `settings` are additional options."""
        shares = self.proportions or (None,) * len(self.urls)
        streams = [
            Stream(url, proportion=share) for url, share in zip(self.urls, shares, strict=True)
        ]
        return CloudLoader(
            streams, tokenizer=self.tokenizer, seq_len=64, **self.settings, **settings
        )


@dataclass(frozen=True)
class Job:
    """One start of a campaign's run, with its world and its delivery options."""

    number: int
    ranks: int
    ranks_per_node: int
    workers: int
    batch_size: int
    steps: int
    save_every: int
    cache_limit: int | None
    verify: str
    start_method: str
    tokenizer_backend: str
    lengths: str
    exchange_every: int
    patience_s: float
    """Seconds that a rank waits for others. Requests are retried for half of this time."""
    dies: tuple[int, float] | None
    """The rank that kills itself while it connects, and the seconds after its first attempt."""
    environment: dict[str, str]

    @property
    def nodes(self) -> int:
        """The number of nodes. The last one may have fewer ranks than the others."""
        return -(-self.ranks // self.ranks_per_node)

    def cache(self, campaign: Campaign, node: int) -> Path:
        """The cache folder of a node."""
        return campaign.folder / f"cache-{node}"

    def rows_file(self, campaign: Campaign, rank: int) -> Path:
        """The file of a rank's row hashes. Each batch is a JSON line that maps rows to hashes."""
        return campaign.folder / f"job-{self.number}-rank-{rank}.jsonl"

    def log_file(self, campaign: Campaign, rank: int) -> Path:
        """The file to which a rank and its workers write stdout and stderr."""
        return campaign.folder / f"job-{self.number}-rank-{rank}.log"


def run_rank(campaign: Campaign, job: Job, rank: int) -> None:
    """Train one rank from the last checkpoint, for `job.steps` steps or to the end of the data."""
    with job.log_file(campaign, rank).open("w") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    # on SIGUSR1, print the stack to the log, to show where the process hangs
    faulthandler.register(signal.SIGUSR1)
    os.environ.update(
        job.environment | {"LOCAL_WORLD_SIZE": str(job.ranks_per_node), "GLOO_SOCKET_IFNAME": "lo"}
    )
    torch.set_num_threads(1)
    store = campaign.folder / f"job-{job.number}.store"
    timeout = timedelta(seconds=job.patience_s)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=job.ranks, timeout=timeout
    )
    make_lengths_small()
    if job.dies is not None and job.dies[0] == rank:
        _die_while_connecting(job.dies[1])
    loader = _make_loader(campaign, job, rank)
    if campaign.state_file.exists():
        loader.load_state_dict(json.loads(campaign.state_file.read_text()))
    has_ended = _train(campaign, job, rank, loader)
    dist.barrier()
    if rank == 0:
        _save(campaign, loader, has_ended=has_ended)
    loader.close()
    dist.barrier()
    dist.destroy_process_group()


def make_lengths_small() -> None:
    """Make this process count lengths in groups of about 100 kB of shards."""
    vars(index)["_GROUP_BYTES"] = 100_000


def _die_while_connecting(delay_s: float) -> None:
    connect = gather.Gather

    def die(*arguments: Any) -> gather.Gather:
        threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return connect(*arguments)

    vars(exchange)["Gather"] = die


def _make_loader(campaign: Campaign, job: Job, rank: int) -> CloudLoader:
    return campaign.make_loader(
        batch_size=job.batch_size,
        num_workers=job.workers,
        local=job.cache(campaign, rank // job.ranks_per_node),
        cache_limit=job.cache_limit,
        verify=job.verify,
        start_method=job.start_method,
        tokenizer_backend=job.tokenizer_backend,
        lengths=job.lengths,
        exchange_every=job.exchange_every,
        exchange_timeout_s=job.patience_s,
        retry=Retry(timeout_s=2.0, deadline_s=job.patience_s / 2, pause_s=0.02),
    )


def _train(campaign: Campaign, job: Job, rank: int, loader: CloudLoader) -> bool:
    """Write the row hashes of each batch, and save checkpoints. Returns whether the data ended."""
    with job.rows_file(campaign, rank).open("w") as rows:
        for step, batch in enumerate(loader, 1):
            rows.write(json.dumps(hash_rows(batch)) + "\n")
            rows.flush()
            dist.barrier()
            if step % job.save_every == 0 and rank == 0:
                _save(campaign, loader)
            if step == job.steps:
                return False
    return True


def hash_rows(batch: Any) -> dict[int, str]:
    """Map each row's index in the run to a hash of the row's IDs and labels."""
    rows = zip(
        batch.rows.tolist(), batch["input_ids"].numpy(), batch["labels"].numpy(), strict=True
    )
    return {
        row: hashlib.sha256(ids.tobytes() + labels.tobytes()).hexdigest()[:24]
        for row, ids, labels in rows
    }


def _save(campaign: Campaign, loader: CloudLoader, *, has_ended: bool = False) -> None:
    part = campaign.state_file.with_suffix(".new")
    part.write_text(json.dumps(loader.state_dict()))
    part.replace(campaign.state_file)
    if has_ended:
        (campaign.folder / "ended").touch()


def describe(job: Job) -> dict[str, Any]:
    """Return the fields of a job, for messages, without its long environment."""
    described = asdict(job)
    with contextlib.suppress(KeyError):
        del described["environment"]
    return described
