"""An order that can be entered anywhere: which document stands at a position follows from the seed,
the epoch and the position.

    runs        the shards, permuted once for all epochs             D B A C
    spans       runs, cut where canonical nodes meet                 D B1 | B2 A C
    epoch       the spans of each node, permuted afresh              B1 D | C B2 A
    blocks      each node's documents, block by block; the first and the last of half to one and a half `block_size`
    position    ─► node and place in it ─► block ─► a keyed bijection of the block's places ─► span ─► sample id

All that is kept is three numbers a span. As with StreamingDataset's shuffles, a canonical node
reads the same shards in every epoch. Where streams have a `repeat` or `choose`, runs are passes
through a shard, and draws from it, which are bijections, too.

The bijection of 0 … n - 1 is a Feistel network on a grid of barely n cells, rows x columns: rows
are moved by amounts that depend on the column, then columns by amounts that depend on the row, and
so on; who lands beyond n moves on until he does not. All randomness is 64-bit arithmetic on keys of
`SeedSequence`, the same in every version of NumPy and on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloudload.arrays import Ids, Words
from cloudload.order.bijection import (
    _AT_ONCE,
    _GOLDEN,
    _HALF,
    group_starts,
    narrow_dtype,
    permute,
    permute_groups,
    scramble,
)

Weights = Sequence[tuple[int, int]]

# never zero: SeedSequence does not see zeros at an end
_OF_RUN, _OF_EPOCH = 1, 2

# ---------------------------------------------------------------- runs and spans


@dataclass(frozen=True)
class _Runs:
    """Passes through shards, and draws from them, in the order of the shards."""

    sizes: Ids
    shards: Ids | None = None
    """None: one run of each shard."""
    is_draw: Ids | None = None


@dataclass(frozen=True)
class _Spans:
    """Stretches of runs, one after the other."""

    shards: Ids
    """Of which shard each is: [spans]."""
    offsets: Ids
    """Where in its run each begins: [spans]."""
    starts: Ids
    """At which place of the whole sequence each begins, and the number of places: int64 [spans +
    1]."""
    is_draw: Ids | None
    """Which are of draws: bool [spans]; None where none is."""


def _weigh(shard_sizes: Ids, weights: Weights, draw: int) -> _Runs:
    """Of each shard as many passes as its stream goes round, then what it gives beyond, drawn.

    That is its share of the stream's remainder, rounded up or down by `draw`, a random word of the
    epoch.
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
    return _Runs(np.concatenate(sizes), np.concatenate(shards), np.concatenate(is_draw))


def _shares(sizes: Ids, rest: int, draw: int) -> Ids:
    """`rest` divided among shards by their sizes: int64 [shards], each at most its shard's size."""
    total = max(1, int(sizes.sum()))
    # sizes are below 2^30, as MDS shards are below 4 GiB, and totals below 2^33
    whole, parts = np.divmod(sizes * rest, total)
    marks = np.concatenate([[0], np.cumsum(parts)]) + draw % total
    shares: Ids = whole + np.diff(marks // total)
    return shares


def _lay_spans(runs: _Runs, bounds: Ids, keys: tuple[Words, Words] | None) -> _Spans:
    """Runs permuted by the first key, cut at the inner `bounds` of nodes, and permuted within each
    node by its own key.

    Arrays are narrow, and freed early: at 10^10 samples each byte of a span takes 2 MB.
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
    # a bound ends the span before it, and the rest of the run follows
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
    return _Spans(
        shards, offsets, group_starts(sizes), None if runs.is_draw is None else runs.is_draw[order]
    )


def _take(values: Ids, places: Ids) -> Ids:
    """`values[places]`, without the int64 copy that NumPy makes of narrow places."""
    taken = np.empty(len(places), values.dtype)
    for first in range(0, len(places), _AT_ONCE):
        taken[first : first + _AT_ONCE] = values[places[first : first + _AT_ONCE]]
    return taken


# ---------------------------------------------------------------- the order


@dataclass(frozen=True)
class Shuffle:
    """How an order is shuffled."""

    num_nodes: int
    seed: int
    block_size: int | None
    """None: not at all."""


@dataclass(frozen=True)
class Uses:
    """Stretches of rounds in which a canonical node reads of a shard; a round is one document of
    each node: int64 [uses] each."""

    nodes: Ids
    shards: Ids
    first_rounds: Ids
    stop_rounds: Ids


class SeekableOrder:
    """The sample id at each position of an epoch, asked as an array is: by number, by slice, by an
    array of positions.

    `order[position]` is an int, `order[positions]` is int64 [positions]. Ask for many at once: a
    hundred cost as much as one. `weights`: of each stream, its shards and the samples that it gives
    to an epoch; None: each sample once.
    """

    def __init__(
        self, shard_sizes: Ids, shuffle: Shuffle, epoch: int, weights: Weights | None = None
    ) -> None:
        run_key = (
            np.random.SeedSequence((_OF_RUN, shuffle.seed))
            .generate_state(1, np.uint64)
            .astype(np.uint64)
        )
        words = (
            np.random.SeedSequence((_OF_EPOCH, shuffle.seed, epoch))
            .generate_state(5, np.uint64)
            .astype(np.uint64)
        )
        nodes = np.arange(shuffle.num_nodes, dtype=np.uint64) * _GOLDEN
        self._draw_key, self._node_keys, span_keys = (
            words[1],
            scramble(words[2] + nodes),
            scramble(words[3] + nodes),
        )
        runs = (
            _Runs(shard_sizes) if weights is None else _weigh(shard_sizes, weights, int(words[0]))
        )
        self._length = int(runs.sizes.sum())
        self._node_starts = np.arange(shuffle.num_nodes + 1) * self._length // shuffle.num_nodes
        self._num_rounds = self._length // shuffle.num_nodes
        self._longer_nodes = np.flatnonzero(np.diff(self._node_starts) > self._num_rounds)
        self._block_size = shuffle.block_size
        if self._block_size is not None:
            stagger = scramble(words[4] + nodes) >> _HALF
            self._first_blocks = self._block_size // 2 + (
                stagger * np.uint64(self._block_size) >> _HALF
            ).astype(np.int64)
        keys = None if self._block_size is None else (run_key, span_keys)
        self._spans = _lay_spans(runs, self._node_starts[1:-1], keys)
        del runs
        self._shard_starts = group_starts(shard_sizes)

    def __len__(self) -> int:
        return self._length

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Ids:
        whole: Ids = self[:]
        return whole if dtype is None else whole.astype(dtype)

    def __getitem__(self, positions: Any) -> Any:
        if isinstance(positions, slice):
            positions = np.arange(*positions.indices(self._length))
        wanted = np.asarray(positions)
        if wanted.dtype.kind not in "iu" and wanted.size:
            raise IndexError(f"an order is asked by whole numbers, not by {wanted.dtype}")
        flat = wanted.ravel().astype(np.int64)
        if len(flat) and not (-self._length <= flat.min() and flat.max() < self._length):
            raise IndexError(
                f"positions {flat.min()} to {flat.max()} are not all among the "
                f"{self._length} of the epoch"
            )
        samples = np.empty(len(flat), np.int64)
        for first in range(0, len(flat), _AT_ONCE):
            part = flat[first : first + _AT_ONCE]
            samples[first : first + _AT_ONCE] = self._samples(
                np.where(part < 0, part + self._length, part)
            )
        return samples.reshape(wanted.shape) if wanted.ndim else int(samples[0])

    def positions_of(self, sample: int) -> Ids:
        """Where a sample stands in the epoch: int64 [times], ascending. A pass over the spans, not
        over the epoch."""
        shard = int(np.searchsorted(self._shard_starts, sample, side="right")) - 1
        spans = np.flatnonzero(self._spans.shards == shard)
        within = np.full(len(spans), sample - self._shard_starts[shard])
        if self._spans.is_draw is not None:
            drawn = self._spans.is_draw[spans]
            within[drawn] = self._draw(
                within[drawn], np.full(int(drawn.sum()), shard), inverse=True
            )
        places = within - self._spans.offsets[spans] + self._spans.starts[spans]
        places = places[
            (places >= self._spans.starts[spans]) & (places < self._spans.starts[spans + 1])
        ]
        nodes = np.searchsorted(self._node_starts, places, side="right") - 1
        rounds = self._shuffle(nodes, places - self._node_starts[nodes], inverse=True)
        # in the last round only the longer nodes are left
        turns = np.where(
            rounds < self._num_rounds, nodes, np.searchsorted(self._longer_nodes, nodes)
        )
        return np.sort(rounds * len(self._node_keys) + turns)

    def uses(self) -> Uses:
        """When which shard is in use, without a pass over the epoch: from the start of its first
        block to the end of its last."""
        starts, stops = self._spans.starts[:-1], self._spans.starts[1:]
        read = np.flatnonzero(stops > starts)
        nodes = np.searchsorted(self._node_starts, starts[read], side="right") - 1
        first, stop = (
            starts[read] - self._node_starts[nodes],
            stops[read] - self._node_starts[nodes],
        )
        if self._block_size is not None:
            last_starts, last_sizes, _ = self._blocks(nodes, stop - 1)
            first, stop = self._blocks(nodes, first)[0], last_starts + last_sizes
        return Uses(nodes, self._spans.shards[read].astype(np.int64), first, stop)

    # ------------------------------------------------------------ from position to sample

    def _samples(self, positions: Ids) -> Ids:
        nodes, rounds = self._turns(positions)
        places = self._node_starts[nodes] + self._shuffle(nodes, rounds)
        spans = np.searchsorted(self._spans.starts, places, side="right") - 1
        shards = self._spans.shards[spans]
        within = places - self._spans.starts[spans] + self._spans.offsets[spans]
        if self._spans.is_draw is not None:
            drawn = self._spans.is_draw[spans]
            within[drawn] = self._draw(within[drawn], shards[drawn])
        samples: Ids = self._shard_starts[shards] + within
        return samples

    def _turns(self, positions: Ids) -> tuple[Ids, Ids]:
        """The canonical node of each position, and how many of its own positions come before."""
        rounds, nodes = np.divmod(positions, len(self._node_keys))
        is_last = rounds == self._num_rounds
        if is_last.any():
            nodes[is_last] = self._longer_nodes[nodes[is_last]]
        return nodes, rounds

    def _shuffle(self, nodes: Ids, within: Ids, *, inverse: bool = False) -> Ids:
        """Where places within nodes go within their blocks, or what comes to them."""
        if self._block_size is None:
            return within
        starts, sizes, numbers = self._blocks(nodes, within)
        keys = numbers.astype(np.uint64) * _GOLDEN
        keys += self._node_keys[nodes]
        scramble(keys)
        shuffled = permute(
            (within - starts).astype(np.uint64), sizes.astype(np.uint64), keys, inverse=inverse
        )
        return starts + shuffled.astype(np.int64)

    def _blocks(self, nodes: Ids, within: Ids) -> tuple[Ids, Ids, Ids]:
        """The block of each place within its node: start, size, number. A last block of less than
        half joins the one before."""
        assert self._block_size is not None
        block, firsts = self._block_size, self._first_blocks[nodes]
        node_sizes = self._node_starts[nodes + 1] - self._node_starts[nodes]
        last = np.maximum(0, (node_sizes - firsts + block // 2) // block)
        numbers = np.minimum((within - firsts + block) // block, last)
        numbers = np.maximum(numbers, 0)
        starts = np.where(numbers > 0, firsts + (numbers - 1) * block, 0)
        stops = np.where(numbers < last, firsts + numbers * block, node_sizes)
        return starts, stops - starts, numbers

    def _draw(self, within: Ids, shards: Ids, *, inverse: bool = False) -> Ids:
        """From the place in a shard's draw to that in the shard, or back."""
        keys = scramble(shards.astype(np.uint64) * _GOLDEN + self._draw_key)
        sizes = self._shard_starts[shards.astype(np.int64) + 1] - self._shard_starts[shards]
        return permute(
            within.astype(np.uint64), sizes.astype(np.uint64), keys, inverse=inverse
        ).astype(np.int64)
