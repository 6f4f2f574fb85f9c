"""The canonical order: which document stands at which position of an epoch.

    shuffled     what StreamingDataset's shuffle makes of the sample ids:   5 3 4 | 1 0 2     (two canonical nodes)
    order        one id of each canonical node in turn:                     5 1 3 0 4 2

Position `p` belongs to canonical node `p % num_canonical_nodes`. The order knows no world: it is what a `StreamingDataset` yields
to a single worker, less the ids that Streaming repeats to even out its partitions. The algorithm "seekable" is our own.

Where streams have a `repeat` or `choose`, what is shuffled is not the sample ids but the reads of an epoch, shard by shard:

    shards       0 1 2 3 | 4 5            two of one stream, which is to give 9 samples an epoch
    runs         0 1 2 3 | 0 2 | 4 5 | 4  each shard once, and a draw of 3 more: two fall on the first, one on the second
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cloudload.arrays import Ids
from cloudload.config import SEEKABLE
from cloudload.errors import CacheError
from cloudload.seekable import SeekableOrder, Shuffle
from cloudload.shuffles import shuffle_nodes
from cloudload.system.background_process import start
from cloudload.system.file_locks import locked, locked_if_free
from cloudload.system.temp_files import lock_of, make_folder, part_of
from cloudload.system.verified_files import is_sealed, seal

logger = logging.getLogger(__name__)

# below this, mapping costs more than reading
_MAP_FROM_BYTES = 1 << 16

# below this, an order is built sooner than a process is started
_BACKGROUND_FROM_POSITIONS = 1 << 20

_DRAWN_AT_ONCE = 1 << 20

_KEPT_POSITIONS, _MOST_KEPT_EPOCHS = 1 << 16, 256


@dataclass(frozen=True)
class OrderConfig:
    """What the order of every epoch follows from, beside the sizes of the shards."""

    shuffle: bool
    shuffle_algo: str
    shuffle_block_size: int
    num_canonical_nodes: int
    seed: int

    @property
    def is_seekable(self) -> bool:
        """Whether orders are found position by position, and not built."""
        return self.shuffle_algo == SEEKABLE


@dataclass(frozen=True)
class Sampling:
    """How many samples each stream gives to an epoch, where that is not each of its samples once.

    A stream of `n` samples gives each of them `choose // n` times, and `choose % n` of them once more: others every epoch.
    """

    shards_per_stream: tuple[int, ...]
    choose: tuple[int, ...]
    """Samples that each stream gives to every epoch."""

    @property
    def num_positions(self) -> int:
        """Samples of an epoch."""
        return sum(self.choose)

    @classmethod
    def of(
        cls,
        samples_per_stream: Sequence[int],
        shards_per_stream: Sequence[int],
        repeat: Sequence[float | None],
        choose: Sequence[int | None],
    ) -> Sampling | None:
        """What StreamingDataset makes of each stream's `repeat` or `choose`; None where each sample is read once.

        Raises `ValueError` where a stream has both, or would give nothing.
        """
        samples = tuple(map(int, samples_per_stream))
        weights = zip(samples, repeat, choose, strict=True)
        chosen = tuple(_chosen(f"streams[{number}]", *weight) for number, weight in enumerate(weights))
        return None if chosen == samples else cls(tuple(map(int, shards_per_stream)), chosen)


def _chosen(stream: str, samples: int, repeat: float | None, choose: int | None) -> int:
    """Samples that a stream gives to an epoch."""
    if repeat is not None and choose is not None:
        raise ValueError(f"{stream} has repeat {repeat!r} and choose {choose!r}. Give one of them")
    if repeat is None and choose is None:
        return samples
    if repeat is not None:
        if not isinstance(repeat, int | float) or isinstance(repeat, bool) or not (math.isfinite(repeat) and repeat > 0):
            raise ValueError(f"{stream} has repeat {repeat!r}; it must be a number above 0")
        # as Streaming has it: 1.15 * 100 is 114.99…, so 114
        choose = int(repeat * samples)
    elif not isinstance(choose, int) or isinstance(choose, bool) or choose < 1:
        raise ValueError(f"{stream} has choose {choose!r}; it must be a whole number of at least 1")
    if not samples or not choose:
        weight = f"choose {choose!r}" if repeat is None else f"repeat {repeat!r}"
        raise ValueError(f"{stream} has {weight}, which is none of its {samples:,} samples. Give it more, or leave it out")
    return choose


def canonical_order(shard_sizes: Ids, config: OrderConfig, epoch: int, sampling: Sampling | None = None) -> Ids:
    """The sample id at each position: int64 [samples], or [sampling.num_positions] with repeats and gaps."""
    if config.is_seekable:
        return np.asarray(seekable_order(shard_sizes, config, epoch, sampling))
    order = np.empty(num_positions(shard_sizes, sampling), np.int64)
    fill_order(order, shard_sizes, config, epoch, sampling)
    return order


def seekable_order(shard_sizes: Ids, config: OrderConfig, epoch: int, sampling: Sampling | None = None) -> SeekableOrder:
    """The order of the algorithm "seekable", of which no array is made."""
    shuffle = Shuffle(config.num_canonical_nodes, config.seed, config.shuffle_block_size if config.shuffle else None)
    weights = None if sampling is None else list(zip(sampling.shards_per_stream, sampling.choose, strict=True))
    return SeekableOrder(shard_sizes, shuffle, epoch, weights)


def num_positions(shard_sizes: Ids, sampling: Sampling | None) -> int:
    """Samples of an epoch."""
    return int(shard_sizes.sum()) if sampling is None else sampling.num_positions


def fill_order(order: Ids, shard_sizes: Ids, config: OrderConfig, epoch: int, sampling: Sampling | None = None) -> None:
    """Write an epoch's order to an array of as many positions, of any type that holds the ids, one canonical node at a time."""
    reads, run_sizes = (None, shard_sizes) if sampling is None else resample(shard_sizes, config, epoch, sampling)
    nodes = config.num_canonical_nodes
    bounds = np.arange(nodes + 1) * len(order) // nodes
    if config.shuffle:
        block = config.shuffle_block_size
        ids = shuffle_nodes(config.shuffle_algo, run_sizes, num_nodes=nodes, seed=config.seed, epoch=epoch, block_size=block)
    else:
        ids = (np.arange(start, stop) for start, stop in itertools.pairwise(bounds))
    for node, of_node in enumerate(ids):
        _deal(order, bounds, node, of_node if reads is None else reads[of_node])


def _deal(order: Ids, bounds: Ids, node: int, ids: Ids) -> None:
    """Write a node's ids to its positions: one of every round, and one of those at the end where it is longer than others."""
    num_nodes = len(bounds) - 1
    rounds = len(order) // num_nodes
    order[node : rounds * num_nodes : num_nodes] = ids[:rounds]
    if len(ids) > rounds:
        order[rounds * num_nodes + int((np.diff(bounds[: node + 1]) > rounds).sum())] = ids[rounds]


def resample(shard_sizes: Ids, config: OrderConfig, epoch: int, sampling: Sampling) -> tuple[Ids, Ids]:
    """The sample ids that an epoch reads, before the shuffle, and the sizes of the runs that it moves.

    A run is one pass through a shard, or the sorted draw that is left over. Seeds are Streaming's: one generator draws
    within the shards of all streams; another, afresh for each stream, divides its draw among its shards, and without
    shuffle it does so alike in every epoch.
    """
    assert sum(sampling.shards_per_stream) == len(shard_sizes)
    within = np.random.default_rng(config.seed + epoch)
    among = config.seed + epoch if config.shuffle else config.seed
    stops = np.cumsum(sampling.shards_per_stream)[:-1]
    starts = np.split(np.cumsum(shard_sizes) - shard_sizes, stops)
    ids = np.empty(sampling.num_positions, _narrow(shard_sizes))
    run_sizes: list[int] = []
    filled = 0
    for first_ids, sizes, choose in zip(starts, np.split(shard_sizes, stops), sampling.choose, strict=True):
        reads = reads_per_shard(sizes, choose, among)
        for first, size, num_reads in zip(first_ids.tolist(), sizes.tolist(), reads.tolist(), strict=True):
            # as in Streaming, a shard without samples is no run
            passes, rest = divmod(num_reads, size) if size else (0, 0)
            whole = passes * size
            ids[filled : filled + whole].reshape(passes, size)[:] = np.arange(first, first + size)
            if rest:
                ids[filled + whole : filled + num_reads] = first + np.sort(within.choice(size, rest, replace=False))
            run_sizes += [size] * passes + [rest] * bool(rest)
            filled += num_reads
    return ids, np.array(run_sizes, np.int64)


def _narrow(shard_sizes: Ids) -> np.dtype[Any]:
    """What holds a sample id."""
    return np.dtype(np.uint32 if shard_sizes.sum() < 1 << 32 else np.int64)


def reads_per_shard(shard_sizes: Ids, choose: int, seed: int) -> Ids:
    """How many of a stream's `choose` samples come from each of its shards: Streaming's `get_sampling`, sample by sample."""
    num_samples = int(shard_sizes.sum())
    passes, rest = divmod(choose, max(1, num_samples))
    reads: Ids = shard_sizes * passes
    if rest:
        # what `permutation` does, in half of the memory
        drawn, stops = np.arange(num_samples, dtype=_narrow(shard_sizes)), np.cumsum(shard_sizes)
        np.random.default_rng(seed).shuffle(drawn)
        for start in range(0, rest, _DRAWN_AT_ONCE):
            of_shards = np.searchsorted(stops, drawn[start : min(start + _DRAWN_AT_ONCE, rest)], side="right")
            reads += np.bincount(of_shards, minlength=len(shard_sizes))
    return reads


def interleave(ids: Ids, num_nodes: int) -> Ids:
    """One id of each node's slice in turn; node `n` has `ids[n * len // num_nodes : (n + 1) * len // num_nodes]`."""
    bounds = np.arange(num_nodes + 1) * len(ids) // num_nodes
    order = np.empty_like(ids)
    for node in range(num_nodes):
        _deal(order, bounds, node, ids[bounds[node] : bounds[node + 1]])
    return order


def positions_of(order: Ids | SeekableOrder, sample: int) -> Ids:
    """Where a sample stands in an order: int64 [times], ascending."""
    return order.positions_of(sample) if isinstance(order, SeekableOrder) else np.flatnonzero(order == sample)


class EpochOrders:
    """The orders of a run, each built once per node, kept in a file and mapped; a seekable one needs no file."""

    def __init__(self, folder: Path, shard_sizes: Ids, config: OrderConfig, sampling: Sampling | None = None) -> None:
        self._parent, self._shard_sizes, self._config, self._sampling = folder, shard_sizes, config, sampling
        digest = hashlib.sha256(json.dumps(asdict(config), sort_keys=True).encode())
        digest.update(np.ascontiguousarray(shard_sizes, np.int64).tobytes())
        if sampling is not None:
            digest.update(json.dumps(asdict(sampling), sort_keys=True).encode())
        self._folder = folder / digest.hexdigest()[:24]
        self._orders: dict[int, Ids | SeekableOrder] = {}
        self._num_positions = num_positions(shard_sizes, sampling)
        # lanes drift apart by less than an epoch, save on tiny data, where keeping many costs nothing
        self._kept_epochs = min(_MOST_KEPT_EPOCHS, max(2, _KEPT_POSITIONS // max(1, self._num_positions)))

    def __call__(self, epoch: int) -> Ids | SeekableOrder:
        """The sample id at each position of `epoch`: [samples], read-only."""
        if epoch not in self._orders:
            order = self._seek(epoch) if self._config.is_seekable else self._open(epoch)
            self._orders = {e: kept for e, kept in self._orders.items() if e >= epoch - self._kept_epochs}
            self._orders[epoch] = order
        return self._orders[epoch]

    def is_ready(self, epoch: int) -> bool:
        """Whether the order of `epoch` takes next to no time."""
        is_cheap = self._config.is_seekable or self._num_positions < _BACKGROUND_FROM_POSITIONS
        return is_cheap or epoch in self._orders or is_whole(self._path(epoch))

    def build_in_background(self, epoch: int) -> bool:
        """Have another process build the order of `epoch` before it is needed; returns at once: whether one was started.

        None is started where the order is there or being built, or costs little. Nothing is lost if it fails: `__call__` builds.
        """
        if self.is_ready(epoch):
            return False
        try:
            make_folder(self._folder)
            return start("cloudload.order:build_as_asked", self._request(epoch), lock_of(self._path(epoch)))
        except OSError as error:
            logger.info("the order of epoch %d is not built ahead: %s", epoch, error)
            return False

    def build(self, epoch: int) -> None:
        """Write the order of an epoch to its file; its lock is held."""
        path = self._path(epoch)
        if is_whole(path):
            return
        narrow = _narrow(self._shard_sizes)
        with part_of(path) as part:
            with part.open("wb+") as file:
                header = {"descr": narrow.str, "fortran_order": False, "shape": (self._num_positions,)}
                np.lib.format.write_array_header_1_0(file, header)  # type: ignore[no-untyped-call]
                # a full disk is an error here; found out in writing to the map, it would be the end of the process
                os.posix_fallocate(file.fileno(), file.tell(), self._num_positions * narrow.itemsize)
                order = np.memmap(file, narrow, "r+", file.tell(), (self._num_positions,))
                fill_order(order, self._shard_sizes, self._config, epoch, self._sampling)
                order.flush()
                os.fsync(file.fileno())
            seal(part)
            part.replace(path)
        if epoch % self._kept_epochs == 0:
            self._remove_before(epoch - self._kept_epochs)

    def _seek(self, epoch: int) -> SeekableOrder:
        return seekable_order(self._shard_sizes, self._config, epoch, self._sampling)

    def _open(self, epoch: int) -> Ids:
        path = self._path(epoch)
        with contextlib.suppress(FileNotFoundError):
            if is_whole(path):
                return _load(path)
        try:
            make_folder(self._folder)
            # files are removed under their lock alone, so that this one is still there when it is mapped
            with locked(lock_of(path)):
                self.build(epoch)
                return _load(path)
        except (OSError, MemoryError) as error:
            raise CacheError(
                f"cannot write the order of epoch {epoch} ({self._num_positions:,} documents) to {self._folder}: {error!r}. "
                "Free some room if there is none, choose another `local`, or take shuffle_algo='seekable', which needs none"
            ) from error

    def _path(self, epoch: int) -> Path:
        return self._folder / f"epoch-{epoch}.npy"

    def _remove_before(self, epoch: int) -> None:
        """Remove older orders."""
        for old in self._folder.glob("epoch-*.npy"):
            if int(old.stem.removeprefix("epoch-")) < epoch:
                with locked_if_free(lock_of(old)) as is_free:
                    if is_free:
                        old.unlink(missing_ok=True)

    def _request(self, epoch: int) -> bytes:
        settings = {
            "folder": str(self._parent.absolute()),
            "config": asdict(self._config),
            "sampling": None if self._sampling is None else asdict(self._sampling),
            "epoch": epoch,
        }
        return json.dumps(settings).encode() + b"\n" + np.ascontiguousarray(self._shard_sizes, "<i8").tobytes()


def build_as_asked(request: bytes) -> None:
    """What a background process does: `EpochOrders.build`."""
    text, _, sizes = request.partition(b"\n")
    asked = json.loads(text)
    sampling = asked["sampling"] and Sampling(**{name: tuple(value) for name, value in asked["sampling"].items()})
    shard_sizes = np.frombuffer(sizes, "<i8").astype(np.int64)
    EpochOrders(Path(asked["folder"]), shard_sizes, OrderConfig(**asked["config"]), sampling).build(asked["epoch"])


def is_whole(path: Path) -> bool:
    """Whether an order is there, as it was built."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return is_sealed(path.stat())
    return False


def _load(path: Path) -> Ids:
    order: Ids = np.load(path, mmap_mode="r" if path.stat().st_size > _MAP_FROM_BYTES else None)
    return order.view(np.ndarray)  # a memmap is slow to index
