"""Remove documents from a position that a changed selection no longer selects.

    lane 0   row | row | aa·····        at token 2 of document a, which is not selected now
                         └─► document b

    residue  [a b] [c]                  open rows of best_fit
             └─► b c wait, and are packed again

Other documents stay where they are, so no token of theirs is lost or read twice.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from cloudload.data import selections
from cloudload.order import EpochOrders
from cloudload.rows import encode_residue, residue_spans, tables
from cloudload.run.components import Component
from cloudload.run.position import LaneArrays
from cloudload.run.recipe import Recipe
from cloudload.stats import DESELECTED
from cloudload.system import Flags, Ints

logger = logging.getLogger("cloudload.resume")


def drop_deselected(recipe: Recipe, arrays: LaneArrays, cache_root: Path) -> LaneArrays:
    """Drop the rest of each document that a lane has begun, but that the recipe does not select.

    The orders in the cache folder `cache_root` tell which documents these are. Raises `CacheError`
    if an order cannot be built.
    """
    if recipe.selection is None:
        return arrays
    arrays, num_dropped = arrays.copy(), 0
    for index, component in enumerate(recipe.components):
        removal = _Removal(component, component.orders(cache_root), recipe.selection)
        num_dropped += removal.move_cursors(arrays, recipe, index)
        num_dropped += removal.clean_residues(arrays, index)
    if num_dropped:
        logger.info(
            "select changed, so the run drops the rest of %s documents that it had begun to read",
            f"{num_dropped:,}",
        )
    return arrays


class _Removal:
    """Removes documents from the lanes of one component."""

    def __init__(
        self, component: Component, orders: EpochOrders, selection: selections.CorpusSelection
    ) -> None:
        self._component, self._orders, self._selection = component, orders, selection

    def _find_gone(self, lanes: Ints, ordinals: Ints) -> tuple[Flags, Ints]:
        """Whether each document is not selected, and its sample in the corpus."""
        _, samples = self._component.find_samples(self._orders, lanes, ordinals)
        return ~self._selection.of(samples), samples

    def move_cursors(self, arrays: LaneArrays, recipe: Recipe, index: int) -> int:
        """Move cursors in removed documents to the next ones, and return their number."""
        cursors = arrays.cursors[index]
        lanes = np.flatnonzero(cursors[:, tables.CURSOR_OFFSET] > 0)
        is_gone, samples = self._find_gone(lanes, cursors[lanes, tables.CURSOR_ORDINAL])
        cursors[lanes[is_gone], tables.CURSOR_ORDINAL] += 1
        cursors[lanes[is_gone], tables.CURSOR_OFFSET :] = 0
        np.add.at(arrays.counts[:, DESELECTED], recipe.corpus.streams_of(samples[is_gone]), 1)
        return int(is_gone.sum())

    def clean_residues(self, arrays: LaneArrays, index: int) -> int:
        """Remove the spans of removed documents from residues, and return their number."""
        if arrays.residues is None:
            return 0
        num_gone = 0
        for lane, residue in enumerate(arrays.residues[index]):
            spans = residue_spans(residue, int(arrays.cursors[index, lane, tables.CURSOR_ORDINAL]))
            if spans:
                ordinals = np.array([ordinal for ordinal, _, _ in spans], np.int64)
                is_gone, _ = self._find_gone(np.full_like(ordinals, lane), ordinals)
                kept = [
                    span for span, gone in zip(spans, is_gone.tolist(), strict=True) if not gone
                ]
                if len(kept) < len(spans):
                    arrays.residues[index, lane] = encode_residue(kept) if kept else b""
                    num_gone += len(spans) - len(kept)
        return num_gone
