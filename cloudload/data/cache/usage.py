"""Compute how many bytes of shards are in use at each row, from the rows at which shards are used.

shard A   ───────            rows       0   2   4   7   9
shard B       ───────        in use     A   AB  B   -
                             a shard that is used twice at a row counts once
"""

from __future__ import annotations

import numpy as np

from cloudload.system import Ints


def join_overlaps(shards: Ints, firsts: Ints, lasts: Ints) -> tuple[Ints, Ints, Ints]:
    """Shorten uses of shards so that no two uses of a shard share a row.

    A use is (shard, first row, last row). All arrays are int64 [uses]. A use whose rows are all
    covered by earlier uses is left out.
    """
    order = np.lexsort([firsts, shards])
    shards, firsts, lasts = shards[order], firsts[order], lasts[order]
    most = int(lasts.max(initial=0)) + 2
    ends = np.maximum.accumulate(shards * most + lasts + 1) - shards * most
    is_same = np.diff(shards, prepend=-1) == 0
    firsts = np.maximum(firsts, np.where(is_same, np.roll(ends, 1), 0))
    is_left = firsts <= lasts
    return shards[is_left], firsts[is_left], lasts[is_left]


def sum_in_use(firsts: Ints, lasts: Ints, amounts: Ints) -> tuple[Ints, Ints]:
    """The rows at which the total of all amounts in use changes, and the new total at each row.

    Each amount, such as a number of bytes, is in use from its first to its last row. All arrays are
    int64 [uses], and the results int64 [rows].
    """
    rows, indices = np.unique(np.concatenate([firsts, lasts + 1]), return_inverse=True)
    changes = np.zeros(len(rows), np.int64)
    np.add.at(changes, indices, np.concatenate([amounts, -amounts]))
    return rows, np.cumsum(changes)


def add_downloads(in_use: int, sizes: Ints, downloads_at_once: int) -> int:
    """Add the bytes of the `downloads_at_once` largest shards to the bytes in use.

    The result is at most the bytes of all shards, because no shard is both in use and being
    downloaded. `sizes` (int64 [shards]) has the bytes of each shard.
    """
    return min(in_use + int(np.sort(sizes)[-downloads_at_once:].sum()), int(sizes.sum()))
