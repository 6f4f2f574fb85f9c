"""Find the selected documents of an epoch by their index among them.

    order      5 3 4 1 | 0 2 7 6      samples of an epoch, in blocks
    selected   5 . 4 . | . 2 7 .
    starts     0         2         4  selected documents before each block

    index 3 ─► block 1 ─► its samples ─► the selected ones, 2 7 ─► 7

Only the starts are kept, so an epoch takes a 32nd of a byte for each of its documents.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cloudload.data import selections
from cloudload.order import EpochOrders
from cloudload.system import Ints

_BLOCK = 256
"""The number of positions in a block."""
_POSITIONS_AT_ONCE = 1 << 20
_INDICES_AT_ONCE = 1 << 12
_KEPT_BLOCKS = 1 << 22
_FEWEST_KEPT_EPOCHS = 2  # at the end of an epoch, documents of two are read in turn


class SelectedOrder:
    """The selected documents of each epoch, in the order of the epoch. Can be pickled.

    An epoch has `num_positions` documents, of which `num_selected` are selected.
    """

    def __init__(
        self, selection: selections.CorpusSelection, num_positions: int, num_selected: int
    ) -> None:
        self._selection = selection
        self._num_positions, self._num_selected = num_positions, num_selected
        self._starts_by_epoch = dict[int, Ints]()

    def __reduce__(self) -> tuple[Any, ...]:
        return SelectedOrder, (self._selection, self._num_positions, self._num_selected)

    def samples_at(self, orders: EpochOrders, epochs: Ints, indices: Ints) -> Ints:
        """The sample at each index among the selected documents of its epoch: int64 [indices].

        `epochs` is int64 [indices]. Raises the errors of `orders`.
        """
        samples = np.empty_like(indices)
        for epoch in np.unique(epochs).tolist():
            own = np.flatnonzero(epochs == epoch)
            for first in range(0, len(own), _INDICES_AT_ONCE):
                part = own[first : first + _INDICES_AT_ONCE]
                samples[part] = self._find(orders, epoch, indices[part])
        return samples

    def _find(self, orders: EpochOrders, epoch: int, indices: Ints) -> Ints:
        starts = self._starts(orders, epoch)
        blocks = np.searchsorted(starts, indices, side="right") - 1
        read, which = np.unique(blocks, return_inverse=True)
        positions = (read[:, None] * _BLOCK + np.arange(_BLOCK)).ravel()
        samples = orders(epoch)[positions[positions < self._num_positions]]
        selected = samples[self._selection.of(samples)]
        sizes = starts[read + 1] - starts[read]
        found: Ints = selected[(np.cumsum(sizes) - sizes)[which] + indices - starts[blocks]]
        return found

    def _starts(self, orders: EpochOrders, epoch: int) -> Ints:
        """The number of selected documents before each block: int64 [blocks + 1]."""
        starts = self._starts_by_epoch.get(epoch)
        if starts is None:
            starts = self._count(orders, epoch)
            most = max(_FEWEST_KEPT_EPOCHS, _KEPT_BLOCKS // len(starts))
            kept = list(self._starts_by_epoch.items())[1 - most :]
            # replace the dict instead of changing it, because other threads may read it
            self._starts_by_epoch = {**dict(kept), epoch: starts}
        return starts

    def _count(self, orders: EpochOrders, epoch: int) -> Ints:
        order, counts = orders(epoch), list[Ints]()
        for first in range(0, self._num_positions, _POSITIONS_AT_ONCE):
            is_selected = self._selection.of(order[first : first + _POSITIONS_AT_ONCE])
            blocks = np.arange(0, len(is_selected), _BLOCK)
            counts.append(np.add.reduceat(is_selected.astype(np.int64), blocks))
        starts: Ints = np.append(0, np.cumsum(np.concatenate(counts)))
        assert starts[-1] == self._num_selected
        return starts
