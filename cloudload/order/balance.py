"""Balance the rows of a step among the ranks of a machine, by the work that each row is.

    work of 8 rows    9 3 3 2 | 2 2 2 1     2 ranks, 2 micro-batches of 2 rows each
    rank 0            9     2 |     2 1     14
    rank 1              3 3   | 2 2         10

The rows with the most work come first. Each goes to the rank with the least work so far, among
those with a seat left in the micro-batch. So all ranks have equally many rows, and the k-th
micro-batches of all ranks have rows of similar work, because ranks may wait for each other after
each.

In the end, the work of two ranks differs by at most the largest difference between two rows of the
same micro-batch. To prove this for a micro-batch, subtract its least work from all of its rows,
which changes no difference between ranks. Consider only the rows of two ranks. While both have
seats, each row goes to the one with less work, so they differ by at most one row, or by as much as
before. Then one is full. It had less work before its last row, so it is ahead by at most that row.
The other one gets the last rows. Since the two last had equally many rows, each of its rows came
after one of the full rank's, and so is no more work. So it is ahead by at most as much as then.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cloudload.system import NEVER, Ints


def deal_by_work(work: Ints, num_ranks: int, sizes: Sequence[int]) -> Ints:
    """Deal the rows of steps to the ranks of a machine.

    `work` is int64 [steps, rows], and `sizes` is the number of rows in each of a rank's
    micro-batches. Returns the indices of each rank's rows, in the order of its micro-batches:
    int64 [steps, ranks, rows of a rank]. Of rows with equal work, the first one is dealt first, and
    of ranks with equal work, the first one gets it.
    """
    steps, order = np.arange(len(work)), np.argsort(-work, axis=1, kind="stable")
    dealt = np.empty((len(work), num_ranks, sum(sizes)), np.int64)
    loads = np.zeros((len(work), num_ranks), np.int64)
    first = 0
    for size in sizes:
        taken = np.zeros_like(loads)
        for column in range(first * num_ranks, (first + size) * num_ranks):
            rows = order[:, column]
            ranks = np.where(taken < size, loads, NEVER).argmin(axis=1)
            dealt[steps, ranks, first + taken[steps, ranks]] = rows
            taken[steps, ranks] += 1
            loads[steps, ranks] += work[steps, rows]
        first += size
    return dealt
