"""A fixture that makes the laws faster: it caches seekable orders of tiny data, which each loader
would compute again. A lane of three documents has hundreds of epochs.

All ranks of a law run in one process, so they share the cache. To use the fixture, import
`quick_laws` into a module of laws.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from cloudload.order import order_cache
from cloudload.order.epoch_order import OrderConfig, Sampling, seekable_order
from cloudload.order.seekable import SeekableOrder
from cloudload.system.arrays import Ids

_MOST_KEPT, _MOST_POSITIONS = 1 << 14, 1 << 10


class _ListedOrder(SeekableOrder):
    """A seekable order whose samples were computed once and are then looked up."""

    def __getitem__(self, positions: Any) -> Any:
        listed = vars(self).get("listed")
        return super().__getitem__(positions) if listed is None else listed[positions]


@pytest.fixture(scope="module", autouse=True)
def quick_laws() -> Iterator[None]:
    """Cache orders while the tests of a module run."""

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
        patch.setattr(order_cache, "seekable_order", keep)
        yield
