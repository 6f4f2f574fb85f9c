"""The bytes in use at a row count each shard once, and downloads are added to them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloudload.data.cache.usage import add_downloads, join_overlaps, sum_in_use

Use = tuple[int, int, int]
USES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12), st.integers(0, 6)), max_size=20)
SIZES = np.array([1, 10, 100, 1_000, 10_000])


@given(USES)
def test_a_shard_that_several_uses_need_at_a_row_counts_once(found: list[Use]) -> None:
    shards, firsts, lengths = np.array(found, np.int64).reshape(-1, 3).T
    joined, first, last = join_overlaps(shards, firsts, firsts + lengths)
    rows, levels = sum_in_use(first, last, SIZES[joined])
    in_use = {
        row: sum(
            SIZES[shard]
            for shard in {each for each, start, more in found if start <= row <= start + more}
        )
        for row in range(20)
    }
    assert rows.tolist() == sorted({*first.tolist(), *(last + 1).tolist()})
    for row, level in in_use.items():
        before = np.flatnonzero(rows <= row)
        assert level == (levels[before[-1]] if len(before) else 0)


def test_downloads_come_on_top_of_the_shards_in_use_up_to_all_shards() -> None:
    sizes = np.array([5, 1, 4])
    assert add_downloads(3, sizes, 1) == 3 + 5
    assert add_downloads(3, sizes, 2) == 10
