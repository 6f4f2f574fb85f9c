"""Runs of shards, and the spans of an epoch that canonical nodes read.

shards      3 samples of A, 4 of B         with `repeat` or `choose`, passes and a draw of each
runs        AAA BBBB                       permuted once for all epochs
spans       AAA BB | BB                    cut at the borders of nodes, permuted in each node
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cloudload.order.bijection import CHUNK, group_starts, narrow_dtype, permute_groups
from cloudload.system.arrays import Ids, Words

Weights = Sequence[tuple[int, int]]
"""For each stream, its number of shards, and the number of samples that an epoch reads from it."""


@dataclass(frozen=True)
class Runs:
    """Passes over shards and draws from them, ordered by shard. All arrays are [runs]."""

    sizes: Ids
    """Number of samples in each run."""
    shards: Ids | None = None
    """The shard of each run; None if there is one run per shard."""
    is_draw: Ids | None = None
    """Whether each run is a draw: bool; None if no run is."""


@dataclass(frozen=True)
class Spans:
    """Parts of runs, in the order of the epoch."""

    shards: Ids
    """The shard of each span: [spans]."""
    offsets: Ids
    """The first place of each span within its run: [spans]."""
    starts: Ids
    """The first place of each span within the epoch, then the total: int64 [spans + 1]."""
    is_draw: Ids | None
    """Whether each span is part of a draw: bool [spans]; None if there are no draws."""


def weigh(shard_sizes: Ids, weights: Weights, draw: int) -> Runs:
    """The runs of each shard: one for each full pass over its stream, then a draw.

    The samples that the stream contributes beyond its full passes are divided among the draws of
    its shards. `draw`, a random word of the epoch, decides which draws are rounded up.
    """
    stops = np.cumsum([number for number, _ in weights]).tolist()
    shards, sizes, is_draw = [], [], []
    for stop, (number, chosen) in zip(stops, weights, strict=True):
        of_stream = shard_sizes[stop - number : stop].astype(np.int64)
        passes, rest = divmod(chosen, max(1, int(of_stream.sum())))
        of_runs = np.repeat(of_stream[:, None], passes + 1, axis=1)
        of_runs[:, passes] = _shares(of_stream, rest, draw)
        shards.append(np.repeat(np.arange(stop - number, stop), passes + 1))
        sizes.append(of_runs.ravel())
        is_draw.append(np.tile(np.arange(passes + 1) == passes, number))
    return Runs(np.concatenate(sizes), np.concatenate(shards), np.concatenate(is_draw))


def _shares(sizes: Ids, rest: int, draw: int) -> Ids:
    """Divide `rest` samples among shards in proportion to their sizes: int64 [shards].

    `rest` is less than the sum of `sizes`. No share exceeds its shard's size. `draw` decides which
    shares are rounded up.
    """
    total = max(1, int(sizes.sum()))
    # the product does not overflow if shards have fewer than 2^30 samples (MDS shards are below
    # 4 GiB), and streams fewer than 2^33
    whole, parts = np.divmod(sizes * rest, total)
    marks = np.concatenate([[0], np.cumsum(parts)]) + draw % total
    shares: Ids = whole + np.diff(marks // total)
    return shares


def lay_spans(runs: Runs, bounds: Ids, keys: tuple[Words, Words] | None) -> Spans:
    """Permute the runs, cut them at the nodes' inner `bounds`, and permute each node's spans.

    `keys` are a key for the runs, uint64 [1], and a key for each node's spans, uint64 [nodes]; None
    for no shuffle. Example: runs of 3 and 4 places, a bound at 5, and no keys give shards 0 1 1,
    offsets 0 0 2, starts 0 3 5 7. Arrays are narrow and freed early, because 10^10 samples can have
    millions of spans.
    """
    sizes = runs.sizes.astype(narrow_dtype(int(runs.sizes.max(initial=0))))
    order = (
        np.arange(len(sizes)) if keys is None else permute_groups(np.array([len(sizes)]), keys[0])
    )
    sizes = _take(sizes, order)
    ends = group_starts(sizes)[1:]
    cut_runs = np.searchsorted(ends, bounds, side="right")
    cuts = bounds - np.where(cut_runs > 0, ends[cut_runs - 1], 0)
    del ends
    order, stops = (
        np.insert(order, cut_runs, order[cut_runs]),
        np.insert(sizes, cut_runs, sizes[cut_runs]),
    )
    # a bound ends a span, and the rest of its run follows as the next span
    first_spans = cut_runs + np.arange(1, len(bounds) + 1)
    offsets = np.zeros(len(order), sizes.dtype)
    offsets[first_spans] = stops[first_spans - 1] = cuts
    sizes = stops - offsets
    del stops
    if keys is not None:
        turn = permute_groups(np.diff(np.concatenate([[0], first_spans, [len(order)]])), keys[1])
        order, offsets, sizes = _take(order, turn), _take(offsets, turn), _take(sizes, turn)
        del turn
    shards = order if runs.shards is None else runs.shards[order]
    return Spans(
        shards, offsets, group_starts(sizes), None if runs.is_draw is None else runs.is_draw[order]
    )


def _take(values: Ids, places: Ids) -> Ids:
    """Compute `values[places]` without the int64 copy that NumPy makes of narrow `places`."""
    taken = np.empty(len(places), values.dtype)
    for first in range(0, len(places), CHUNK):
        taken[first : first + CHUNK] = values[places[first : first + CHUNK]]
    return taken
