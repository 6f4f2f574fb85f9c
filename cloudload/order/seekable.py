"""An order with random access: each sample is computed from the seed, the epoch and its position.

    shards      3 samples of A, 4 of B         with `repeat` or `choose`, passes and a draw of each
    runs        AAA BBBB                       permuted once for all epochs
    spans       AAA BB | BB                    cut at the borders of canonical nodes
    epoch       BB AAA | BB                    the spans of each node, permuted every epoch
    blocks      each node's documents in blocks of `block_size` documents; the first and the last
                block are 0.5 to 1.5 times as large, and a single block is up to 2 times as large
    position    ─► node, index within it ─► block ─► keyed bijection of the block ─► span ─► sample

An order stores a few integers per span and per shard. A canonical node reads the same shards in
every epoch, as with all of StreamingDataset's shuffles except naive. If streams have `repeat` or
`choose`, runs are passes over a shard and draws from it, so the shards at a node's borders vary by
epoch. A draw is also a keyed bijection (`bijection`). NumPy's `SeedSequence` generates the keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloudload.order import bijection
from cloudload.system import Ids, Words

Weights = Sequence[tuple[int, int]]
"""For each stream, its number of shards, and the number of samples that an epoch reads from it."""

# tags that make the keys of the run and of its epochs differ. Without them, the run and epoch 0
# would share keys, because SeedSequence ignores trailing zeros
_OF_RUN, _OF_EPOCH = 1, 2


@dataclass(frozen=True)
class ShardSpans:
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
    """The first index of each span within its run: [spans]."""
    starts: Ids
    """The first index of each span within the epoch, then the total: int64 [spans + 1]."""
    is_draw: Ids | None
    """Whether each span is part of a draw: bool [spans]; None if there are no draws."""


def weigh(shard_sizes: Ids, weights: Weights, draw: int) -> ShardSpans:
    """The runs of each shard: one for each full pass over its stream, then a draw.

    The samples that the stream contributes beyond its full passes are divided among the draws of
    its shards. `draw`, a random word of the epoch, decides which draws are rounded up.
    """
    stops = np.cumsum([num_shards for num_shards, _ in weights]).tolist()
    shards, sizes, is_draw = [], [], []
    for stop, (num_shards, chosen) in zip(stops, weights, strict=True):
        of_stream = shard_sizes[stop - num_shards : stop].astype(np.int64)
        passes, rest = divmod(chosen, max(1, int(of_stream.sum())))
        # a row for each shard: its full passes, then its draw
        of_runs = np.repeat(of_stream[:, None], passes + 1, axis=1)
        of_runs[:, passes] = _shares(of_stream, rest, draw)
        shards.append(np.repeat(np.arange(stop - num_shards, stop), passes + 1))
        sizes.append(of_runs.ravel())
        is_draw.append(np.tile(np.arange(passes + 1) == passes, num_shards))
    return ShardSpans(np.concatenate(sizes), np.concatenate(shards), np.concatenate(is_draw))


def _shares(sizes: Ids, rest: int, draw: int) -> Ids:
    """Divide `rest` samples among shards in proportion to their sizes: int64 [shards].

    `rest` is less than the sum of `sizes`. No share exceeds its shard's size. `draw` decides which
    shares are rounded up.
    """
    total = max(1, int(sizes.sum()))
    # the product does not overflow if shards have fewer than 2^30 samples (MDS shards are below
    # 4 GiB), and streams fewer than 2^33
    whole, parts = np.divmod(sizes * rest, total)
    # carry remainders from shard to shard, beginning with a random one: a share is rounded up where
    # their sum passes a multiple of `total`, so the shares add up to `rest`
    marks = np.concatenate([[0], np.cumsum(parts)]) + draw % total
    shares: Ids = whole + np.diff(marks // total)
    return shares


def lay_spans(runs: ShardSpans, bounds: Ids, keys: tuple[Words, Words] | None) -> Spans:
    """Permute the runs, cut them at the nodes' inner `bounds`, and permute each node's spans.

    `keys` are a key for the runs, uint64 [1], and a key for each node's spans, uint64 [nodes]; None
    for no shuffle. Example: runs of 3 and 4 samples, a bound at 5, and no keys give shards 0 1 1,
    offsets 0 0 2, starts 0 3 5 7. Arrays are narrow and freed early, because 10^10 samples can have
    millions of spans.
    """
    sizes = runs.sizes.astype(bijection.narrow_dtype(int(runs.sizes.max(initial=0))))
    order = (
        np.arange(len(sizes))
        if keys is None
        else bijection.permute_groups(np.array([len(sizes)]), keys[0])
    )
    sizes = _take(sizes, order)
    # find the run that each bound is in, and the bound's index within the run
    ends = bijection.group_starts(sizes)[1:]
    cut_runs = np.searchsorted(ends, bounds, side="right")
    cuts = bounds - np.where(cut_runs > 0, ends[cut_runs - 1], 0)
    del ends
    # a run appears once more for each bound that is in it
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
        turn = bijection.permute_groups(
            np.diff(np.concatenate([[0], first_spans, [len(order)]])), keys[1]
        )
        order, offsets, sizes = _take(order, turn), _take(offsets, turn), _take(sizes, turn)
        del turn
    shards = order if runs.shards is None else runs.shards[order]
    return Spans(
        shards,
        offsets,
        bijection.group_starts(sizes),
        None if runs.is_draw is None else runs.is_draw[order],
    )


def _take(values: Ids, indices: Ids) -> Ids:
    """Compute `values[indices]` without the int64 copy that NumPy makes of narrow `indices`."""
    taken = np.empty(len(indices), values.dtype)
    for first in range(0, len(indices), bijection.CHUNK):
        taken[first : first + bijection.CHUNK] = values[indices[first : first + bijection.CHUNK]]
    return taken


@dataclass(frozen=True)
class Shuffle:
    """The shuffle settings of a seekable order."""

    num_nodes: int
    seed: int
    block_size: int | None
    """Number of documents in a block; None for no shuffle."""


@dataclass(frozen=True)
class BlockUses:
    """The rounds in which canonical nodes read shards. All arrays are int64 [uses].

    Node `nodes[i]` reads shard `shards[i]` in rounds `first_rounds[i]` to `stop_rounds[i] - 1`. A
    round has one document of each node.
    """

    nodes: Ids
    shards: Ids
    first_rounds: Ids
    stop_rounds: Ids


class SeekableOrder:
    """The sample ID at each position of an epoch, indexed like an array: by int, slice, or array.

    `order[position]` is an int, and `order[positions]` is int64 [positions]. Look up many positions
    at once, because a hundred cost about as much as one. `shard_sizes` is int64 [shards]. If
    `weights` is None, an epoch reads each sample once. Raises `IndexError` for a position that is
    out of range or not an integer.
    """

    def __init__(
        self, shard_sizes: Ids, shuffle: Shuffle, epoch: int, weights: Weights | None = None
    ) -> None:
        run_key = (
            np.random.SeedSequence((_OF_RUN, shuffle.seed))
            .generate_state(1, np.uint64)
            .astype(np.uint64)
        )
        # of the epoch: the rounding of draws, and the keys of draws, nodes, spans, and staggers
        words = (
            np.random.SeedSequence((_OF_EPOCH, shuffle.seed, epoch))
            .generate_state(5, np.uint64)
            .astype(np.uint64)
        )
        nodes = np.arange(shuffle.num_nodes, dtype=np.uint64) * bijection.GOLDEN
        self._draw_key, self._node_keys, span_keys = (
            words[1],
            bijection.scramble(words[2] + nodes),
            bijection.scramble(words[3] + nodes),
        )
        runs = (
            ShardSpans(shard_sizes)
            if weights is None
            else weigh(shard_sizes, weights, int(words[0]))
        )
        self._length = int(runs.sizes.sum())
        self._node_starts = np.arange(shuffle.num_nodes + 1) * self._length // shuffle.num_nodes
        self._num_rounds = self._length // shuffle.num_nodes
        self._longer_nodes = np.flatnonzero(np.diff(self._node_starts) > self._num_rounds)
        self._block_size = shuffle.block_size
        if self._block_size is not None:
            # a node's first block has 0.5 to 1.5 times the block size: the high bits of a product
            # of 32 random bits and the size are a random number below the size
            stagger = bijection.scramble(words[4] + nodes) >> bijection.HALF_BITS
            self._first_blocks = self._block_size // 2 + (
                stagger * np.uint64(self._block_size) >> bijection.HALF_BITS
            ).astype(np.int64)
        keys = None if self._block_size is None else (run_key, span_keys)
        self._spans = lay_spans(runs, self._node_starts[1:-1], keys)
        del runs
        self._shard_starts = bijection.group_starts(shard_sizes)

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
            raise IndexError(
                f"the dtype of the index is {wanted.dtype}. Index an order with integers"
            )
        flat = wanted.ravel().astype(np.int64)
        if len(flat) and not (-self._length <= flat.min() and flat.max() < self._length):
            raise IndexError(
                f"positions {flat.min()} to {flat.max()} are out of range for an epoch of "
                f"{self._length:,} samples"
            )
        samples = np.empty(len(flat), np.int64)
        for first in range(0, len(flat), bijection.CHUNK):
            part = flat[first : first + bijection.CHUNK]
            samples[first : first + bijection.CHUNK] = self._samples(
                np.where(part < 0, part + self._length, part)
            )
        return samples.reshape(wanted.shape) if wanted.ndim else int(samples[0])

    def positions_of(self, sample: int) -> Ids:
        """The positions of a sample in the epoch: int64 [occurrences], ascending.

        Scans only the spans, not all positions.
        """
        shard = int(np.searchsorted(self._shard_starts, sample, side="right")) - 1
        spans = np.flatnonzero(self._spans.shards == shard)
        within = np.full(len(spans), sample - self._shard_starts[shard])
        if self._spans.is_draw is not None:
            drawn = self._spans.is_draw[spans]
            within[drawn] = self._draw(
                within[drawn], np.full(int(drawn.sum()), shard), inverse=True
            )
        # a span has only a part of its run, which may be without the sample
        indices = within - self._spans.offsets[spans] + self._spans.starts[spans]
        indices = indices[
            (indices >= self._spans.starts[spans]) & (indices < self._spans.starts[spans + 1])
        ]
        nodes = np.searchsorted(self._node_starts, indices, side="right") - 1
        rounds = self._shuffle(nodes, indices - self._node_starts[nodes], inverse=True)
        # only the longer nodes have a document in the last, partial round
        turns = np.where(
            rounds < self._num_rounds, nodes, np.searchsorted(self._longer_nodes, nodes)
        )
        return np.sort(rounds * len(self._node_keys) + turns)

    def uses(self) -> BlockUses:
        """The rounds in which each node uses each shard, extended to whole shuffle blocks.

        Scans only the spans, not all positions.
        """
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
        return BlockUses(nodes, self._spans.shards[read].astype(np.int64), first, stop)

    # ------------------------------------------------------------ from position to sample

    def _samples(self, positions: Ids) -> Ids:
        nodes, rounds = self._turns(positions)
        indices = self._node_starts[nodes] + self._shuffle(nodes, rounds)
        spans = np.searchsorted(self._spans.starts, indices, side="right") - 1
        shards = self._spans.shards[spans]
        within = indices - self._spans.starts[spans] + self._spans.offsets[spans]
        if self._spans.is_draw is not None:
            drawn = self._spans.is_draw[spans]
            within[drawn] = self._draw(within[drawn], shards[drawn])
        samples: Ids = self._shard_starts[shards] + within
        return samples

    def _turns(self, positions: Ids) -> tuple[Ids, Ids]:
        """The canonical node and the round of each position: int64 [positions] each.

        The round is the index within the node, before the shuffle.
        """
        rounds, nodes = np.divmod(positions, len(self._node_keys))
        is_last = rounds == self._num_rounds
        if is_last.any():
            nodes[is_last] = self._longer_nodes[nodes[is_last]]
        return nodes, rounds

    def _shuffle(self, nodes: Ids, within: Ids, *, inverse: bool = False) -> Ids:
        """Permute indices within their nodes, block by block, or apply the inverse."""
        if self._block_size is None:
            return within
        starts, sizes, blocks = self._blocks(nodes, within)
        keys = blocks.astype(np.uint64) * bijection.GOLDEN
        keys += self._node_keys[nodes]
        bijection.scramble(keys)
        shuffled = bijection.permute(
            (within - starts).astype(np.uint64), sizes.astype(np.uint64), keys, inverse=inverse
        )
        return starts + shuffled.astype(np.int64)

    def _blocks(self, nodes: Ids, within: Ids) -> tuple[Ids, Ids, Ids]:
        """The (start, size, index), within the node, of the shuffle block that contains each index.

        All three are int64 [indices]. A last block that would be smaller than half of `block_size`
        is merged into the block before it.
        """
        assert self._block_size is not None
        block, firsts = self._block_size, self._first_blocks[nodes]
        node_sizes = self._node_starts[nodes + 1] - self._node_starts[nodes]
        # a node has its first block and as many others as fit, where half a block or more counts as
        # one; block 0 begins at 0, and block i at `firsts` + (i - 1) · `block`
        last = np.maximum(0, (node_sizes - firsts + block // 2) // block)
        indices = np.minimum((within - firsts + block) // block, last)
        indices = np.maximum(indices, 0)
        starts = np.where(indices > 0, firsts + (indices - 1) * block, 0)
        stops = np.where(indices < last, firsts + indices * block, node_sizes)
        return starts, stops - starts, indices

    def _draw(self, within: Ids, shards: Ids, *, inverse: bool = False) -> Ids:
        """Map indices in a shard's draw to indices in the shard, or apply the inverse."""
        keys = bijection.scramble(shards.astype(np.uint64) * bijection.GOLDEN + self._draw_key)
        sizes = self._shard_starts[shards.astype(np.int64) + 1] - self._shard_starts[shards]
        return bijection.permute(
            within.astype(np.uint64), sizes.astype(np.uint64), keys, inverse=inverse
        ).astype(np.int64)
