"""StreamingDataset's shuffles, bit for bit, without importing Streaming.

To save memory, IDs are uint32 if they fit. Except for naive and py2s, each canonical node's IDs are
created only when they are needed.

    shards      permuted by the seed, cut at the borders of nodes      D B1 | B2 A C
    spans       permuted within each node by seed and epoch            B1 D | C B2 A
    py1s        each span's samples are permuted
    py2s        each shard's samples are permuted by the seed alone, then each span's samples
    py1br       a node's samples are permuted within blocks of about `block_size`
    py1e        each span's samples are permuted, then each moves by up to about `block_size` / 2
    naive       all samples are permuted, across all nodes

Tests compare the results with `streaming.base.shuffle.get_shuffle`. They can differ only in ties,
where py1e moves two samples to the same position (at most a few pairs in 10^8). Streaming leaves
ties to NumPy's sort. Here, the earlier sample is first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloudload.system import Ids

_SORTED_AT_ONCE = 1 << 16
_LARGEST_MAPPED = (1 << 25) - (1 << 16)
"""A little less than the largest allocation from which glibc learns."""


def default_block_size(num_nodes: int) -> int:
    """StreamingDataset's default shuffle block size, in samples."""
    return max(4_000_000 // num_nodes, 1 << 18)


@dataclass(frozen=True)
class _Spans:
    """The spans of one node. Each has the IDs [begin, end). Both arrays are int64 [spans]."""

    begins: Ids
    ends: Ids

    @property
    def sizes(self) -> list[int]:
        sizes: list[int] = (self.ends - self.begins).tolist()
        return sizes

    def split(self, num_samples: int) -> tuple[_Spans, _Spans]:
        """The first spans, which have at least `num_samples` samples if there are so many, and the
        others."""
        first = int(np.searchsorted(np.cumsum(self.ends - self.begins), num_samples)) + 1
        head, rest = (slice(first), slice(first, None))
        return _Spans(self.begins[head], self.ends[head]), _Spans(
            self.begins[rest], self.ends[rest]
        )

    def permuted(self, rng: np.random.Generator) -> _Spans:
        indices = _permutation(rng, len(self.begins))
        return _Spans(self.begins[indices], self.ends[indices])


def shuffle_nodes(
    algorithm: str,
    sizes: Ids,
    *,
    num_nodes: int,
    seed: int,
    epoch: int,
    block_size: int,
    most: int | None = None,
) -> Iterator[Ids]:
    """Yield the shuffled IDs of each canonical node: [samples of the node].

    With `most`, yields only the first `most` IDs of each node. This is several times faster for
    py1e, which then only draws the random numbers of the other samples.

    `sizes` is int64 [runs]: the sizes of the shards, or of the runs of `resample`. Ids index the
    samples of all runs, from 0. They are uint32, or int64 beyond 2^32 samples. Only py1br and py1e
    use `block_size`. Raises `ValueError` for an unknown algorithm.
    """
    total = int(sizes.sum())
    narrow = np.dtype(np.uint32 if total <= 1 << 32 else np.int64)
    bounds = np.arange(num_nodes + 1) * total // num_nodes
    rng = np.random.default_rng(seed + epoch)
    if algorithm == "naive":
        ids = np.arange(total, dtype=narrow)
        rng.shuffle(ids)
        yield from (ids[start:stop] for start, stop in itertools.pairwise(bounds))
        return
    run_rng = np.random.default_rng(seed)
    order = _permutation(run_rng, len(sizes))
    if algorithm == "py2s":
        yield from _shuffle_twice(
            sizes[order], (np.cumsum(sizes) - sizes)[order], bounds, (run_rng, rng), narrow
        )
        return
    ends = np.cumsum(sizes)[order]
    nodes = [spans.permuted(rng) for spans in _divide(ends - sizes[order], ends, bounds)]
    if algorithm == "py1s":
        yield from (_shuffled_spans(spans, rng, narrow) for spans in nodes)
    elif algorithm == "py1br":
        staggers = rng.integers(0, int(0.75 * block_size), (num_nodes,)).tolist()
        for spans, stagger in zip(nodes, staggers, strict=True):
            yield _shuffle_blocks(spans, stagger, block_size, rng, narrow)
    elif algorithm == "py1e":
        for spans in nodes:
            total = sum(spans.sizes)
            # later samples do not move to the first positions
            needed = total if most is None else most + 2 * _reach(block_size)
            head, rest = spans.split(needed)
            ids = _shuffled_spans(head, rng, narrow)
            _skip_shuffles(rest.sizes, rng)
            ids = _spread(ids, head.sizes, total, block_size, rng)
            _skip_moves(rest.sizes, block_size, rng)
            yield ids[:most]
    else:
        raise ValueError(f"unknown shuffle_algo {algorithm!r}")


def _permutation(rng: np.random.Generator, size: int) -> Ids:
    # shuffle a list, as Streaming does
    indices = list(range(size))
    rng.shuffle(indices)
    return np.array(indices, np.int64)


def _divide(begins: Ids, ends: Ids, bounds: Ids) -> list[_Spans]:
    """Divide spans of sample IDs among nodes, in the given order, and cut those that cross a bound.

    `bounds` are numbers of samples from the start of the first span, not IDs. Example: spans [0, 3)
    and [9, 13), bounds 0 4 7. The first node gets 4 samples, [0, 3) and [9, 10), and the second
    node gets 3, [10, 13).
    """
    stops = np.cumsum(ends - begins)
    # an empty span at a bound belongs to the earlier node
    whole = np.searchsorted(stops, bounds[1:-1], side="right")
    # the number of samples of the next span that are before the bound; if any are, the span is cut
    over = bounds[1:-1] - np.where(whole > 0, stops[whole - 1], 0)
    is_cut = over > 0
    cut, cuts = whole[is_cut], begins[np.minimum(whole, len(begins) - 1)][is_cut] + over[is_cut]
    # a cut is the end of one span and the beginning of the next
    begins, ends = np.insert(begins, cut + 1, cuts), np.insert(ends, cut, cuts)
    # the spans before a bound are those wholly before it, and one more for each cut up to the bound
    firsts = [0, *(whole + np.cumsum(is_cut)).tolist(), len(begins)]
    return [
        _Spans(begins[first:stop], ends[first:stop]) for first, stop in itertools.pairwise(firsts)
    ]


def _shuffled_spans(spans: _Spans, rng: np.random.Generator, narrow: np.dtype[Any]) -> Ids:
    """The IDs of all spans, shuffled within each span: [samples]."""
    ids = np.empty(sum(spans.sizes), narrow)
    first = 0
    for begin, size in zip(spans.begins.tolist(), spans.sizes, strict=True):
        wide = np.arange(begin, begin + size)  # NumPy shuffles int64 faster than uint32
        rng.shuffle(wide)
        ids[first : first + size] = wide
        first += size
    return ids


def _laid_out(spans: _Spans, narrow: np.dtype[Any]) -> Ids:
    ids = np.empty(sum(spans.sizes), narrow)
    first = 0
    for begin, size in zip(spans.begins.tolist(), spans.sizes, strict=True):
        ids[first : first + size] = np.arange(begin, begin + size, dtype=narrow)
        first += size
    return ids


# ---------------------------------------------------------------- py2s


def _shuffle_twice(
    sizes: Ids,
    begins: Ids,
    bounds: Ids,
    rngs: tuple[np.random.Generator, np.random.Generator],
    narrow: np.dtype[Any],
) -> Iterator[Ids]:
    """Shuffle each run, then yield each node's IDs, shuffled a second time.

    The first generator shuffles within each run. The second one permutes each node's parts of runs,
    and shuffles within each part.
    """
    run_rng, epoch_rng = rngs
    ids = _shuffled_spans(_Spans(begins, begins + sizes), run_rng, narrow)
    ends = np.cumsum(sizes)
    for spans in _divide(ends - sizes, ends, bounds):
        parts = spans.permuted(epoch_rng)
        shuffled = np.empty(sum(parts.sizes), narrow)
        first = 0
        for begin, size in zip(parts.begins.tolist(), parts.sizes, strict=True):
            part = shuffled[first : first + size]
            part[:] = ids[begin : begin + size]
            epoch_rng.shuffle(part)
            first += size
        yield shuffled


# ---------------------------------------------------------------- py1br


def _shuffle_blocks(
    spans: _Spans, stagger: int, block_size: int, rng: np.random.Generator, narrow: np.dtype[Any]
) -> Ids:
    ids = _laid_out(spans, narrow)
    blocks = []
    end = 0
    while end < len(ids):
        length = int(rng.integers(int(0.75 * block_size), int(1.25 * block_size)))
        start, stop = max(end - stagger, 0), min(end + length - stagger, len(ids))
        blocks.append((start, stop))
        # as in Streaming, the first blocks of a node overlap, because `start` is clipped to 0
        end += stop - start
    for start, stop in blocks:
        rng.shuffle(ids[start:stop])
    return ids


# ---------------------------------------------------------------- py1e


def _reach(block_size: int) -> int:
    """The distance by which no sample moves."""
    return int(1.25 * block_size) // 2 + 2


def _spread(
    ids: Ids, sizes: list[int], total: int, block_size: int, rng: np.random.Generator
) -> Ids:
    """Move each sample of a node by a random distance, and sort `ids` in place by new position.

    `ids` are those of the node's first spans, which have these `sizes`, of `total` samples.

    No sample moves by more than `reach`, so positions more than `reach` before the next span are
    final. The node can therefore be sorted in parts.
    """
    reach = _reach(block_size)
    at_once = max(_SORTED_AT_ONCE, 2 * reach)
    _keep_freed_memory()
    landed: list[Ids] = []
    first = written = waiting = 0
    for index, size in enumerate(sizes):
        landed.append(_land(first, size, total, block_size, rng))
        first, waiting = first + size, waiting + size
        is_last = index == len(sizes) - 1
        if waiting < at_once and not is_last:
            continue
        order, points = _sort(np.concatenate(landed))
        done = len(points) if is_last else int(np.searchsorted(points, first - reach))
        # the waiting samples directly follow those already written
        ids[written : written + len(order)] = ids[written : written + len(order)][order]
        landed, waiting, written = [points[done:]], len(points) - done, written + done
    return ids


def _land(first: int, size: int, total: int, block_size: int, rng: np.random.Generator) -> Ids:
    """Draw the new positions of the samples of a span that begins at `first`: float64 [size]."""
    length = _draw_length(block_size, rng)
    # samples of a span at least as long as the block do not move
    cutoff = max(0, (length - size) / 2)
    moves = rng.uniform(max(-cutoff, -first), min(cutoff, total - first - size), size)
    points: Ids = np.arange(first, first + size, dtype=np.float64) + moves
    return points


def _draw_length(block_size: int, rng: np.random.Generator) -> int:
    return int(rng.integers(int(0.75 * block_size), int(1.25 * block_size)))


def _skip_shuffles(sizes: list[int], rng: np.random.Generator) -> None:
    """Draw the random numbers with which spans are shuffled."""
    # shuffling bytes draws the same numbers, and is faster
    scratch = np.empty(max(sizes, default=0), np.uint8)
    for size in sizes:
        rng.shuffle(scratch[:size])


def _skip_moves(sizes: list[int], block_size: int, rng: np.random.Generator) -> None:
    """Skip the random numbers by which the samples of spans are moved, one for each sample."""
    bits: Any = rng.bit_generator
    for size in sizes:
        _draw_length(block_size, rng)
        # advancing would discard the half of a random word that is kept for later
        kept = {name: bits.state[name] for name in ("has_uint32", "uinteger")}
        bits.advance(size)
        bits.state = bits.state | kept


def _sort(points: Ids) -> tuple[Ids, Ids]:
    """Return the stable argsort of `points` (float64 [samples]), int64 [samples], and the points in
    this order.

    This is a two-pass radix sort by 32-bit keys, then swaps of neighbors that share a key.
    """
    low = points.min(initial=np.inf)
    scaled = points - low
    scaled *= ((1 << 32) - 1) / max(1.0, points.max(initial=low) - low)
    keys = scaled.astype(np.uint32)
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    order = order[np.argsort((keys >> np.uint32(16)).astype(np.uint16)[order], kind="stable")]
    ordered = points[order]
    while (wrong := np.flatnonzero(ordered[1:] < ordered[:-1])).size:
        # swap only the first of overlapping pairs
        wrong = wrong[np.diff(wrong, prepend=-2) > 1]
        for swapped in (order, ordered):
            swapped[wrong], swapped[wrong + 1] = swapped[wrong + 1], swapped[wrong]
    return order, ordered


def _keep_freed_memory() -> None:
    """Make glibc reuse the memory of arrays instead of returning it to the kernel after each use.

    Otherwise, a third of the time is spent on new pages. glibc returns memory beyond twice the size
    of the largest mapped allocation that was freed, up to a limit; see mallopt(3).
    """
    np.empty(_LARGEST_MAPPED, np.uint8)
