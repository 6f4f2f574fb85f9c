"""Pretrain with torchft on replicas that may die and return. Each reads its part of every batch.

Run the third command once per replica. Then kill a replica, and start it again:

    torchft_lighthouse --min_replicas 1 --bind 127.0.0.1:29510 &
    export TORCHFT_LIGHTHOUSE=http://127.0.0.1:29510
    python examples/train_torchft.py s3://bucket/corpus --steps 300 --global-batch 16 &
    kill -9 PID

A quorum decides which replicas participate in a step. If the quorum has changed, the loader's world
is set before the step. A step that is not committed is computed again, from the same row. The
replicas' loaders do not communicate, because each finds its rows from token lengths.
`--global-batch` is the number of rows per replica.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from tiny_gpt import GPT, parse_arguments
from torchft import Manager, ProcessGroupGloo

from cloudload import CloudLoader


class Replica:
    """One replica, with its model, optimizer and loader, and the row after the last commit."""

    def __init__(self, args: Any) -> None:
        self.loader = CloudLoader(
            args.data,
            tokenizer=args.tokenizer,
            seq_len=args.seq_len,
            batch_size=args.global_batch,
            seed=args.seed,
            num_workers=args.workers,
            local=args.cache,
            lengths="require",
            dp_rank=0,  # a world of one rank, until the first quorum
            dp_world_size=1,
        )
        self.model = GPT(self.loader.vocab_size, args)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr, betas=(0.9, 0.95))
        self.rows, self.world = 0, (0, 0)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last committed step, which torchft sends to new replicas."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
        }

    def load_state_dict(self, states: dict[str, Any]) -> None:
        self.model.load_state_dict(states["model"])
        self.optimizer.load_state_dict(states["optimizer"])
        self.loader.load_state_dict(states["loader"])
        self.rows, self.world = self.loader.rows, (0, 0)


def main() -> None:
    args = parse_arguments(__doc__)
    replica = Replica(args)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=20)),
        min_replica_size=1,
        # a step's batch depends on the world, so the quorum must be known before the forward pass
        use_async_quorum=False,
        state_dict=replica.state_dict,
        load_state_dict=replica.load_state_dict,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=f"replica_{os.getpid()}_",
    )
    while manager.current_step() < args.steps:
        train_step(manager, replica)
    manager.shutdown()


def train_step(manager: Manager, replica: Replica) -> None:
    """Train one step on the quorum's replicas. If one of them fails, the step has no effect."""
    manager.start_quorum()
    world = manager.participating_rank(), manager.num_participants()
    if world != replica.world or replica.loader.rows != replica.rows:
        replica.loader.set_world(*world, rows=replica.rows)
        replica.world = world
    batch = next(iter(replica.loader.take(1)))
    replica.optimizer.zero_grad()
    loss = replica.model(**batch)["loss"]
    loss.backward()
    for parameter in replica.model.parameters():
        manager.allreduce(parameter.grad).wait()
    if manager.should_commit():
        replica.optimizer.step()
        replica.rows = replica.loader.rows
        rank, size = world
        print(f"step {manager.current_step()}  loss {loss:.3f}  rank {rank} of {size}", flush=True)


if __name__ == "__main__":
    main()
