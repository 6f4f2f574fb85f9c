"""Pretrain on ranks that may die and return, without restarting the other ranks.

Start a job, and then kill one of the processes whose PIDs it prints:

    python examples/train_elastic.py s3://bucket/corpus --steps 300 --global-batch 16
    kill -9 PID

The launcher starts ELASTIC_RANKS (default: 4) processes, and announces worlds, which are lists of
live processes. If a rank loses communication with another rank, it joins the next world, which
computes the step again. The launcher restarts a dead process, which joins a world when it is ready.

    world 1: a b c d ── c dies ──► world 2: a b d ── c is ready ──► world 3: a b c d

The example trains on CPUs with gloo, which fails immediately if a process dies. NCCL does not, so
its communicator must be aborted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from tiny_gpt import GPT, parse_arguments

from cloudload import CloudLoader
from cloudload.errors import RanksDisagreeError

NUM_RANKS = int(os.environ.get("ELASTIC_RANKS", "4"))
RANK_COMMAND = [sys.executable, __file__]
# if a rank is killed while it connects, the other ranks detect this only after the timeout
_TIMEOUT = timedelta(seconds=30)
_POLL_S = 0.02


def say(line: str) -> None:
    """Print a line with a single write, so that lines of several processes do not mix."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


# ---------------------------------------------------------------- the launcher


class Launcher:
    """The launcher, which starts the ranks' processes and announces worlds in a store."""

    def __init__(self) -> None:
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.members = [f"rank-{number}" for number in range(NUM_RANKS)]
        self.world, self.has_finished = 0, False

    @property
    def joining(self) -> set[str]:
        """The names of restarted ranks that are not ready yet."""
        return self.processes.keys() - set(self.members)

    def run(self) -> None:
        """Start the ranks, restart those that die, and return when all have finished."""
        for name in self.members:
            self.start(name)
        self.announce()
        while self.processes:
            for name, process in list(self.processes.items()):
                if process.poll() == 0:
                    self.has_finished = True
                if self.has_finished and (process.returncode is not None or name in self.joining):
                    process.kill()  # a rank that joined now would be alone in its world
                    del self.processes[name]
                elif process.returncode is not None:
                    say(f"{name} died")
                    if name in self.members:
                        self.members.remove(name)
                        self.announce()
                    self.start(name)
            for name in self.joining:
                if self.store.delete_key(f"{name} is ready"):
                    self.members.append(name)
                    self.announce()
            time.sleep(_POLL_S)

    def start(self, name: str) -> None:
        """Start the process of a rank, which waits for a later world that includes the rank."""
        variables = {
            "ELASTIC_STORE": str(self.store.port),
            "ELASTIC_NAME": name,
            "ELASTIC_WORLD": str(self.world),
        }
        self.store.delete_key(f"{name} is ready")
        self.processes[name] = subprocess.Popen(
            [*RANK_COMMAND, *sys.argv[1:]],
            env={"OMP_NUM_THREADS": "1", **os.environ, **variables},  # torchrun also sets 1 thread
        )

    def announce(self) -> None:
        """Announce the next world, which consists of the current members."""
        self.world += 1
        say(f"world {self.world}: {', '.join(self.members)}")
        self.store.set(f"world {self.world}", " ".join(self.members))


# ---------------------------------------------------------------- a rank


@dataclass
class Progress:
    """The last step whose averaged gradients this rank has received, and the row after it."""

    step: int = 0
    rows: int = 0

    def commit(self, rows: int) -> None:
        """Record that a step is done. `rows` is the row of the run after the step's batch."""
        self.step, self.rows = self.step + 1, rows


class Rank:
    """One rank, with its model, optimizer, loader, and progress."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.name = args, os.environ["ELASTIC_NAME"]
        self.loader = CloudLoader(
            args.data,
            tokenizer=args.tokenizer,
            seq_len=args.seq_len,
            batch_size=args.global_batch // NUM_RANKS,
            seed=args.seed,
            num_workers=args.workers,
            local=args.cache,
            lengths="require",
            exchange_timeout_s=_TIMEOUT.total_seconds(),
            # a world of one rank, until `join` sets the real world
            dp_rank=0,
            dp_world_size=1,
        )
        self.model = GPT(self.loader.vocab_size, args)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr, betas=(0.9, 0.95))
        self.progress, self.world = Progress(), int(os.environ["ELASTIC_WORLD"])
        self.store = dist.TCPStore("127.0.0.1", int(os.environ["ELASTIC_STORE"]), is_master=False)

    def run(self) -> None:
        """Train in one world after another, until the last step is done."""
        say(f"{self.name} is process {os.getpid()}")
        self.store.set(f"{self.name} is ready", "")
        with self.loader:
            while self.progress.step < self.args.steps:
                members = self.next_world()
                try:
                    self.join(members)
                    self.train()
                except (RuntimeError, RanksDisagreeError) as error:
                    print(
                        f"{self.name} left world {self.world} after an error: {error}",
                        file=sys.stderr,
                    )
                finally:
                    if dist.is_initialized():
                        dist.destroy_process_group()

    def next_world(self) -> list[str]:
        """Wait for the next world that includes this rank, and return its members."""
        members: list[str] = []
        while self.name not in members:
            self.world += 1
            self.store.wait([f"world {self.world}"], timedelta(hours=1))
            members = self.store.get(f"world {self.world}").decode().split()
        return members

    def join(self, members: list[str]) -> None:
        """Form a process group. Ranks that are behind copy the state of the most advanced rank."""
        rank, size = members.index(self.name), len(members)
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(f"group {self.world}", self.store),
            rank=rank,
            world_size=size,
            timeout=_TIMEOUT,
        )
        steps = [0] * size
        dist.all_gather_object(steps, self.progress.step)
        source, is_behind = steps.index(max(steps)), self.progress.step < max(steps)
        if not is_behind:
            # return to the row after the last step, because more batches may have been delivered
            self.loader.set_world(rank, size, rows=self.progress.rows)
        if min(steps) < max(steps):
            states: list[Any] = [self.state_dict() if rank == source else None]
            dist.broadcast_object_list(states, src=source)
            if is_behind:
                self.load_state_dict(states[0])
                self.loader.set_world(rank, size)

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
            "step": self.progress.step,
        }

    def load_state_dict(self, states: dict[str, Any]) -> None:
        self.model.load_state_dict(states["model"])
        self.optimizer.load_state_dict(states["optimizer"])
        self.loader.load_state_dict(states["loader"])
        self.progress.step, self.progress.rows = states["step"], self.loader.rows

    def train(self) -> None:
        """Train until the last step is done, or until a new world is announced."""
        is_over = False
        for batch in self.loader:
            self.optimizer.zero_grad()
            loss = self.model(**batch)["loss"]
            loss.backward()
            is_over = self.average(loss.detach())
            self.optimizer.step()
            self.progress.commit(self.loader.rows)
            if dist.get_rank() == 0:
                size = dist.get_world_size()
                say(f"step {self.progress.step}  loss {loss:.3f}  {size} ranks")
            if is_over or self.progress.step == self.args.steps:
                return

    def average(self, loss: torch.Tensor) -> bool:
        """Average the gradients over all ranks. Returns whether any rank has seen a new world."""
        gradients = [each.grad for each in self.model.parameters() if each.grad is not None]
        has_next = torch.tensor([float(self.store.check([f"world {self.world + 1}"]))])
        flat = torch.cat([*(each.flatten() for each in gradients), has_next.to(loss.dtype)])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        sizes = [*(each.numel() for each in gradients), 1]
        *averages, seen = torch.split(flat, sizes)
        for gradient, average in zip(gradients, averages, strict=True):
            gradient.copy_(average.view_as(gradient))
        return bool(seen > 0)


def main() -> None:
    args = parse_arguments(__doc__)
    if "ELASTIC_STORE" in os.environ:
        Rank(args).run()
    else:
        Launcher().run()


if __name__ == "__main__":
    main()
