"""The canonical order: which document stands at which position of an epoch.

    shuffled     what StreamingDataset's shuffle makes of the sample ids:   5 3 4 | 1 0 2     (two canonical nodes)
    order        one id of each canonical node in turn:                     5 1 3 0 4 2

Position `p` belongs to canonical node `p % num_canonical_nodes`. The order knows no world: it is what a `StreamingDataset` yields
to a single worker, less the ids that Streaming repeats to even out its partitions.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cloudload.locks import locked

Ids = np.ndarray[Any, np.dtype[Any]]

# below this, mapping costs more than reading
_MAP_FROM_BYTES = 1 << 16


@dataclass(frozen=True)
class OrderConfig:
    """What the order of every epoch follows from, beside the sizes of the shards."""

    shuffle: bool
    shuffle_algo: str
    shuffle_block_size: int
    num_canonical_nodes: int
    seed: int


def canonical_order(shard_sizes: Ids, config: OrderConfig, epoch: int) -> Ids:
    """The sample id at each position: int64 [samples]."""
    num_samples = int(shard_sizes.sum())
    if not config.shuffle:
        return interleave(np.arange(num_samples, dtype=np.int64), config.num_canonical_nodes)
    # importing Streaming takes seconds and hundreds of MB
    from streaming.base.shuffle import get_shuffle

    shuffled = get_shuffle(
        config.shuffle_algo, shard_sizes, config.num_canonical_nodes, config.seed, epoch, config.shuffle_block_size
    )
    return interleave(shuffled, config.num_canonical_nodes)


def interleave(ids: Ids, num_nodes: int) -> Ids:
    """One id of each node's slice in turn; node `n` has `ids[n * len // num_nodes : (n + 1) * len // num_nodes]`."""
    starts = np.arange(num_nodes + 1) * len(ids) // num_nodes
    rounds = len(ids) // num_nodes
    order = np.empty_like(ids)
    for node in range(num_nodes):
        order[node : rounds * num_nodes : num_nodes] = ids[starts[node] : starts[node] + rounds]
    longer = np.flatnonzero(np.diff(starts) > rounds)
    order[rounds * num_nodes :] = ids[starts[longer + 1] - 1]
    return order


class EpochOrders:
    """The orders of a run, each built once per node, kept in a file and mapped."""

    def __init__(self, folder: Path, shard_sizes: Ids, config: OrderConfig) -> None:
        self._shard_sizes, self._config = shard_sizes, config
        digest = hashlib.sha256(json.dumps(asdict(config), sort_keys=True).encode())
        digest.update(np.ascontiguousarray(shard_sizes, np.int64).tobytes())
        self._folder = folder / digest.hexdigest()[:24]
        self._orders: dict[int, Ids] = {}

    def __call__(self, epoch: int) -> Ids:
        """The sample id at each position of `epoch`: [samples], read-only."""
        if epoch not in self._orders:
            path = self._folder / f"epoch-{epoch}.npy"
            try:
                order = _load(path)
            except FileNotFoundError:
                order = self._build(path, epoch)
            # lanes drift apart by less than an epoch, save on tiny data, where a map costs nothing
            self._orders = {e: kept for e, kept in self._orders.items() if e >= epoch - 2}
            self._orders[epoch] = order
        return self._orders[epoch]

    def _build(self, path: Path, epoch: int) -> Ids:
        self._folder.mkdir(parents=True, exist_ok=True)
        # files are removed under the lock alone, so that this one is still there when it is mapped
        with locked(self._folder / "build.lock"):
            if path.exists():
                return _load(path)
            order = canonical_order(self._shard_sizes, self._config, epoch)
            narrow = np.uint32 if len(order) < 1 << 32 else np.int64
            temporary = path.with_suffix(".tmp")
            with temporary.open("wb") as file:
                np.save(file, order.astype(narrow))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            for old in self._folder.glob("epoch-*.npy"):
                if int(old.stem.removeprefix("epoch-")) < epoch - 2:
                    old.unlink(missing_ok=True)
            return _load(path)


def _load(path: Path) -> Ids:
    order: Ids = np.load(path, mmap_mode="r" if path.stat().st_size > _MAP_FROM_BYTES else None)
    return order
