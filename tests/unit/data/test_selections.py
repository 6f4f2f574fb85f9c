"""The bits of a selection, packed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from cloudload.data.selections.bits import Selection


def test_documents_of_a_selection_are_packed_and_pickled_alike() -> None:
    flags = np.random.default_rng(1).random(1_003) < 0.3
    selection = Selection.join([flags], len(flags))
    assert (selection.of(np.arange(1_003)) == flags).all()
    assert selection.num_selected == flags.sum()
    bounds = np.array([0, 1, 1, 9, 500, 1_003])
    counts = [flags[start:stop].sum() for start, stop in pairwise(bounds)]
    assert selection.count_between(bounds).tolist() == counts
    part = selection.take(101)
    assert part is not None
    assert part.digest == Selection.join([flags[:101]], 101).digest != selection.digest
