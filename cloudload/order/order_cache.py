"""The orders of a run's epochs, in files that one process builds for all processes of a machine.

    orders(3) ─► in memory? ─► file complete? load it ─► else take the file's lock, build, load
    from the middle of epoch 2: a background process builds epoch 3, if that is slow
    at the start of a run: likewise, and `find` computes the first positions of py1e itself

Files of 64 KiB or more are mapped, and smaller files are copied to memory. This is the only module
of `order` that touches the disk. A seekable order needs no file.

Other orders come from NumPy's random generators, whose streams NumPy may change. Therefore
`identify_order` compares the order of fixed shards with a known hash:

    fixed shards ─► order of an epoch ─► hash ─► "" if it is the known one

Every version of NumPy so far gives the known hashes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from cloudload.errors import CacheError
from cloudload.order.epoch_order import (
    OrderConfig,
    Sampling,
    count_first,
    fill_order,
    first_rounds,
    id_dtype,
    num_positions,
    seekable_order,
)
from cloudload.order.seekable import SeekableOrder
from cloudload.system import (
    NEVER,
    Ids,
    Ints,
    activity,
    child_processes,
    file_locks,
    machine,
    temp_files,
    verified_files,
)

# below this, mapping a file takes longer than reading it
_MAP_FROM_BYTES = 1 << 16
# below this, building an order is faster than starting a process
BACKGROUND_FROM_POSITIONS = 1 << 20
_LARGEST_SHARD = 1 << 22
_KEPT_POSITIONS, _MOST_KEPT_EPOCHS = 1 << 20, 256

KNOWN_VERSIONS = "NumPy 1.24 to 2.4"
_SHARD_SIZES = np.array([40, 7, 64, 31, 90, 12], np.int64)
_SAMPLING = Sampling((3, 3), (150, 60))
_KNOWN = {
    ("py1e", False): "46cecfe87156a68d",
    ("py1e", True): "399fc4bbb1a9ef0d",
    ("py1br", False): "ff9a24017032be55",
    ("py1br", True): "47d7db44b007cb53",
    ("py1s", False): "380480ec8bf4d149",
    ("py1s", True): "ed184efb88a244fd",
    ("py2s", False): "72aae6156a25dc29",
    ("py2s", True): "96bef1ea0d94a175",
    ("naive", False): "3b27f78b399b6a46",
    ("naive", True): "8886d44af7024df1",
    ("seekable", False): "75a536d3f1596db9",
    ("seekable", True): "46025a6ae0a8121c",
    ("", False): "156945f6db3cab90",
    ("", True): "c59a47ebe884787c",
}
"""The hash for each shuffle algorithm, "" without shuffle, and for whether samples are drawn."""


class EpochOrders:
    """The orders of one component. Call it with an epoch to get that epoch's order.

    `shard_sizes` is int64 [shards]. Orders of different inputs are in different subfolders of
    `folder`.
    """

    def __init__(
        self, folder: Path, shard_sizes: Ids, config: OrderConfig, sampling: Sampling | None = None
    ) -> None:
        self._parent, self._shard_sizes = folder, shard_sizes
        self._config, self._sampling = config, sampling
        digest = hashlib.sha256(json.dumps(asdict(config), sort_keys=True).encode())
        digest.update(np.ascontiguousarray(shard_sizes, np.int64).tobytes())
        if sampling is not None:
            digest.update(json.dumps(asdict(sampling), sort_keys=True).encode())
        # a version of NumPy that shuffles differently must not use the files of another one
        digest.update(identify_order(config, sampling).encode())
        self._folder = folder / digest.hexdigest()[:24]
        self._orders: dict[int, Ids | SeekableOrder] = {}
        # whole shards at the first positions are shuffled
        is_fast = config.shuffle_algo == "py1e" and shard_sizes.max(initial=0) <= _LARGEST_SHARD
        has_first = config.shuffle and sampling is None and is_fast
        self._num_first = count_first(shard_sizes, config) if has_first else 0
        """How many of the first positions can be computed without the others."""
        self._first_rounds: dict[int, Ids] = {}
        self._num_positions = num_positions(shard_sizes, sampling)
        # lanes are rarely epochs apart, except on small data, above all with a sparse selection,
        # where many orders are cheap to keep
        self._kept_epochs = min(
            _MOST_KEPT_EPOCHS, max(2, _KEPT_POSITIONS // max(1, self._num_positions))
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle no orders, and a folder that another process finds."""
        folder = self._parent.absolute()
        return EpochOrders, (folder, self._shard_sizes, self._config, self._sampling)

    def __call__(self, epoch: int) -> Ids | SeekableOrder:
        """The sample ID at each position of `epoch`: integer [positions], read-only.

        A seekable order is a `SeekableOrder` instead of an array. Raises `CacheError` if the order
        has no usable file and cannot be built.
        """
        order = self._orders.get(epoch)
        if order is None:
            order = self._seek(epoch) if self._config.is_seekable else self._open(epoch)
            # replace the dict instead of changing it, because other threads may read it
            first = epoch - self._kept_epochs
            kept = {each: old for each, old in self._orders.items() if each >= first}
            self._orders, self._first_rounds = {**kept, epoch: order}, {}
        return order

    def find(self, epoch: int, positions: Ints) -> Ints:
        """The sample ID at each of `positions` of an epoch: int64 [positions].

        While the order is being built, computes the first positions, instead of waiting. Raises the
        errors of `__call__`.
        """
        is_near = positions.max(initial=0) < self._num_first and not self.is_ready(epoch)
        order = self._open_first(epoch) if is_near else self(epoch)
        samples: Ints = np.asarray(order[positions], np.int64)
        return samples

    def _open_first(self, epoch: int) -> Ids:
        """The samples at the first positions of an epoch."""
        first = self._first_rounds.get(epoch)
        if first is None:
            with activity.doing(f"building the start of the order of epoch {epoch}"):
                first = first_rounds(self._shard_sizes, self._config, epoch)
            self._first_rounds = {epoch: first}
        return first

    def samples_at(self, epochs: Ints, positions: Ints) -> Ints:
        """The sample at each position of its epoch: int64 [positions].

        Raises the errors of `__call__`.
        """
        first, last = int(epochs.min(initial=NEVER)), int(epochs.max(initial=-1))
        if first == last:
            return self.find(first, positions)
        samples = np.empty(len(epochs), np.int64)
        for epoch in np.unique(epochs).tolist():
            own = epochs == epoch
            samples[own] = self.find(epoch, positions[own])
        return samples

    def is_ready(self, epoch: int) -> bool:
        """Whether the order of `epoch` is in memory, is on disk, or is cheap to build."""
        is_cheap = self._config.is_seekable or self._num_positions < BACKGROUND_FROM_POSITIONS
        return is_cheap or epoch in self._orders or self._find(self._path(epoch)) is not None

    def build_in_background(self, epoch: int) -> bool:
        """Start a process that builds the order of `epoch` ahead of time, and return immediately.

        Returns whether a process was started. Does nothing if the order exists, is being built, or
        is cheap to build. If the process fails or cannot start, `__call__` builds the order.
        """
        if self.is_ready(epoch):
            return False
        return child_processes.run_detached(
            partial(self.build, epoch), self._path(epoch), f"the order of epoch {epoch}"
        )

    def build(self, epoch: int) -> None:
        """Write the order of an epoch to its file, unless the file is complete.

        The caller must hold the file's lock. Once every `_kept_epochs` epochs, this also removes
        old orders. Raises `OSError` if the file cannot be written.
        """
        path = self._path(epoch)
        if self._find(path) is not None:
            return
        narrow = id_dtype(self._shard_sizes)
        shape = (self._num_positions,)
        with verified_files.open_verified(path) as file:
            header = {"descr": narrow.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)  # type: ignore[no-untyped-call]
            machine.allocate(file.fileno(), file.tell(), self._num_positions * narrow.itemsize)
            order = np.memmap(file, narrow, "r+", file.tell(), shape)
            fill_order(order, self._shard_sizes, self._config, epoch, self._sampling)
            order.flush()
        if epoch % self._kept_epochs == 0:
            self._remove_before(epoch - self._kept_epochs)

    def _seek(self, epoch: int) -> SeekableOrder:
        return seekable_order(self._shard_sizes, self._config, epoch, self._sampling)

    def _open(self, epoch: int) -> Ids:
        path = self._path(epoch)
        found = self._find(path)
        if found is not None:
            return found
        try:
            temp_files.make_folder(self._folder)
            # files are removed only under their lock, so this one exists until it is mapped
            what = f"the order of epoch {epoch}"
            with (
                file_locks.locked(
                    temp_files.lock_path(path), what=f"build {what}", is_reentrant=True
                ),
                activity.doing(f"building {what} ({self._num_positions:,} documents)"),
            ):
                self.build(epoch)
                return self._load(path)
        except (OSError, MemoryError) as error:
            order = f"the order of epoch {epoch} ({self._num_positions:,} documents)"
            if isinstance(error, MemoryError) or error.errno == errno.ENOMEM:
                raise CacheError(
                    f"not enough memory to build {order}: {error!r}. Free memory. A "
                    "new run can also use shuffle_algo='seekable', which needs no order in memory "
                    "(a saved run cannot switch to it)"
                ) from error
            raise CacheError(
                f"cannot write {order} to {self._folder}: {error!r}. Free disk space, or set "
                "`local` to a different folder. A new run can also use shuffle_algo='seekable', "
                "which needs no file (a saved run cannot switch to it)"
            ) from error

    def _find(self, path: Path) -> Ids | None:
        """Load an order from its file, or return None if the file is not complete or readable."""
        with contextlib.suppress(OSError):
            if verified_files.has_unmodified(path):
                return self._load(path)
        return None

    def _load(self, path: Path) -> Ids:
        """Load an order from its file, which is in version 1.0 of NumPy's file format.

        `np.load` would parse the header as Python code. On some versions of Python 3.11, that fails
        if two threads do it at once (python/cpython#106905). Raises `OSError` if the file cannot be
        read or is too short.
        """
        dtype, shape = id_dtype(self._shard_sizes), (self._num_positions,)
        with path.open("rb") as file:
            start = 10 + int.from_bytes(file.read(10)[8:], "little")
            if os.fstat(file.fileno()).st_size < start + self._num_positions * dtype.itemsize:
                raise OSError(f"{path} is too short")
            order = np.memmap(file, dtype, "r", start, shape).view(np.ndarray)
        if order.nbytes < _MAP_FROM_BYTES:
            order = order.copy()
            order.flags.writeable = False  # a mapped order is read-only, too
        return order  # a plain array, because indexing a memmap is slow

    def _path(self, epoch: int) -> Path:
        return self._folder / f"epoch-{epoch}.npy"

    def _remove_before(self, epoch: int) -> None:
        """Remove the files of orders before `epoch`, except those that are locked."""
        for old in self._folder.glob("epoch-*.npy"):
            if int(old.stem.removeprefix("epoch-")) < epoch:
                with file_locks.locked(temp_files.lock_path(old), wait=False) as is_free:
                    if is_free:
                        old.unlink(missing_ok=True)


def identify_order(config: OrderConfig, sampling: Sampling | None) -> str:
    """The hash of the order of fixed shards, or "" if it is the one that all versions so far give.

    It depends on the shuffle algorithm and on whether samples are drawn, not on the data.
    """
    way = config.shuffle_algo if config.shuffle else "", sampling is not None
    found = hash_fixed_order(*way)
    return "" if found == _KNOWN.get(way) else found


@cache
def hash_fixed_order(shuffle_algo: str, is_sampled: bool) -> str:
    """The hash of the order of fixed shards. `shuffle_algo` is "" without shuffle."""
    config = OrderConfig(
        shuffle=bool(shuffle_algo),
        shuffle_algo=shuffle_algo,
        shuffle_block_size=32,
        num_canonical_nodes=2,
        seed=17,
    )
    sampling = _SAMPLING if is_sampled else None
    size = num_positions(_SHARD_SIZES, sampling)
    order = np.empty(size, np.int64)
    if config.is_seekable:
        order[:] = seekable_order(_SHARD_SIZES, config, 1, sampling)[np.arange(size)]
    else:
        fill_order(order, _SHARD_SIZES, config, 1, sampling)
    return hashlib.sha256(order.astype("<i8").tobytes()).hexdigest()[:16]
