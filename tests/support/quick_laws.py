"""Cache values that each loader would compute again, for all ranks and examples of a law.

    seekable orders of tiny data    a lane of three documents has hundreds of epochs
    versions of packages            read from files for each loader

The ranks of a law are in one process. Import `quick_laws` into a module of laws.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest

from cloudload.arrays import Ids
from cloudload.order import epoch_orders
from cloudload.order.canonical import seekable_order
from cloudload.order.seekable import SeekableOrder
from cloudload.order.spec import OrderConfig, Sampling
from cloudload.tokenization import backend, kept_files

_MOST_KEPT, _MOST_POSITIONS = 1 << 14, 1 << 10


class _ListedOrder(SeekableOrder):
    """A seekable order that looks up its samples in a list."""

    def __getitem__(self, positions: Any) -> Any:
        listed = vars(self).get("listed")
        return super().__getitem__(positions) if listed is None else listed[positions]


@pytest.fixture(scope="module", autouse=True)
def quick_laws() -> Iterator[None]:
    """Cache orders and versions while the tests of a module run."""

    @lru_cache(_MOST_KEPT)
    def find(
        sizes: bytes, config: OrderConfig, epoch: int, sampling: Sampling | None
    ) -> SeekableOrder:
        order = seekable_order(np.frombuffer(sizes, np.int64), config, epoch, sampling)
        if len(order) <= _MOST_POSITIONS:
            vars(order)["listed"] = order[:]
            order.__class__ = _ListedOrder
        return order

    def keep(
        shard_sizes: Ids, config: OrderConfig, epoch: int, sampling: Sampling | None = None
    ) -> SeekableOrder:
        return find(shard_sizes.astype(np.int64).tobytes(), config, epoch, sampling)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epoch_orders, "seekable_order", keep)
        for module in (backend, kept_files):
            patch.setattr(module, "version", cache(version))
        yield
