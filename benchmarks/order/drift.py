"""Simulate how far lanes drift apart when documents differ in size.

All lanes emit the same number of tokens. Lanes with longer documents therefore read fewer of them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import Row
from benchmarks.harness import note
from benchmarks.order.scale import BLOCK, SHARD_BYTES, SHARDS_PER_WINDOW
from cloudload.system.arrays import Ints

NUM_NODES = 64
LOG_MEAN, LOG_SD = 6.2, 1.1
NOISE_SD = 0.15
"""The standard deviation of the logarithm of a document's tokens per byte.

It is the error of a size in tokens that is estimated from a size in bytes."""
DEALT_AT_ONCE = 64
"""The number of documents per lane in a window, whose documents are dealt together."""

Floats = NDArray[np.float64]


def simulate_drift(lane_counts: Sequence[int], documents: float) -> Iterator[Row]:
    """Yield the spread of the lanes after 10^5, 10^6, ... documents, up to `documents`."""
    marks = [10.0**power for power in range(5, 9) if 10.0**power <= documents]
    for lanes in lane_counts:
        start = time.perf_counter()
        read = _read(lanes, [mark / lanes * np.exp(LOG_MEAN + LOG_SD**2 / 2) for mark in marks])
        note(f"simulated {lanes} lanes in {time.perf_counter() - start:.0f} s")
        for policy, (place, mark) in itertools.product(read, enumerate(marks)):
            yield {
                "lanes": lanes,
                "dealt": policy,
                "documents": f"{mark:.0e}",
                **_describe(read[policy][place], lanes),
            }


def _describe(ordinals: Ints, lanes: int) -> Row:
    """Describe how far lanes are apart. `ordinals` is int64 [nodes, lanes of a node]."""
    of_node = lanes // NUM_NODES
    places = ordinals * of_node + np.arange(of_node)
    spread = places.max(axis=1) - places.min(axis=1)
    # count the blocks from the slowest lane to the fastest, at random offsets, plus one edge shard
    staggers = np.random.default_rng(3).integers(0, BLOCK, (64, NUM_NODES))
    blocks = (places.max(axis=1) + staggers) // BLOCK - (places.min(axis=1) + staggers) // BLOCK + 1
    open_shards = blocks * SHARDS_PER_WINDOW + 1
    in_all = float(open_shards.sum(axis=1).mean())
    apart = int(ordinals.max() - ordinals.min())
    return {
        "ordinals: mean, sd": f"{ordinals.mean():,.0f}, {ordinals.std():.1f}",
        "all lanes: fastest minus slowest": f"{apart:,}",
        "the same, in documents of the epoch": f"{apart * lanes:,}",
        "documents between a node's lanes: mean, max": f"{spread.mean():,.0f}, {spread.max():,}",
        "open shards: per node, in total": f"{open_shards.mean():.1f}, {in_all:,.0f}",
        "GB in total": in_all * SHARD_BYTES / 1e9,
    }


def _read(lanes: int, marks: Sequence[float]) -> dict[str, Ints]:
    """Count the documents that each lane has read by the time it has emitted each of `marks`.

    `marks` are numbers of tokens. Returns int64 [marks, nodes, lanes of a node] by policy.
    """
    of_node = lanes // NUM_NODES
    policies: dict[str, Callable[[Floats, Floats], Ints]] = {
        "in turn": _in_turn,
        "bytes, plain snake": _plain_snake,
        "bytes, shuffled snake": _snake,
        "bytes, to the least": _to_the_least,
        "tokens, to the least": _to_the_least,
    }
    emitted = {name: np.zeros((NUM_NODES, of_node)) for name in policies}
    loads = {name: np.zeros((NUM_NODES, of_node)) for name in policies}
    read = {name: np.zeros((len(marks), NUM_NODES, of_node), np.int64) for name in policies}
    rng = np.random.default_rng(5)
    while min(done.min() for done in emitted.values()) <= marks[-1]:
        tokens = np.exp(rng.normal(LOG_MEAN, LOG_SD, (NUM_NODES, of_node * DEALT_AT_ONCE)))
        guessed = tokens * np.exp(rng.normal(0, NOISE_SD, tokens.shape))
        for name, deal in policies.items():
            places = deal(tokens if name.startswith("tokens") else guessed, loads[name])
            sums = np.take_along_axis(tokens, places.reshape(NUM_NODES, -1), 1).reshape(
                places.shape
            )
            np.cumsum(sums, axis=2, out=sums)
            sums += emitted[name][:, :, None]
            for number, mark in enumerate(marks):
                if sums[:, :, -1].max() <= mark:
                    read[name][number] += DEALT_AT_ONCE
                elif emitted[name].min() <= mark:
                    read[name][number] += (sums <= mark).sum(axis=2)
            emitted[name] = sums[:, :, -1].copy()
    return read


def _in_turn(guessed: Floats, loads: Floats) -> Ints:
    """Deal a window's documents to the lanes in turn.

    Returns the indices of each lane's documents, int64 [nodes, lanes of a node, documents].
    `guessed` are the documents' estimated sizes, [nodes, documents of the window]. `loads` are the
    total sizes dealt to each lane so far, [nodes, lanes of a node]. All policies have this
    signature.
    """
    nodes, of_node = loads.shape
    return np.broadcast_to(
        np.arange(guessed.shape[1]).reshape(-1, of_node).T, (nodes, of_node, DEALT_AT_ONCE)
    )


def _plain_snake(guessed: Floats, loads: Floats) -> Ints:
    """Deal documents from the longest to the shortest, to the lanes forward and then backward.

    The first lane always gets the longest document.
    """
    nodes, of_node = loads.shape
    longest = np.argsort(-guessed, axis=1).reshape(nodes, DEALT_AT_ONCE, of_node)
    longest[:, 1::2] = longest[:, 1::2, ::-1].copy()
    return _mixed(longest.transpose(0, 2, 1))


def _snake(guessed: Floats, loads: Floats) -> Ints:
    """Deal like `_plain_snake`, but with the lanes in a different order in every window."""
    order = np.argsort(np.random.default_rng(int(guessed[0, 0] * 1e6)).random(loads.shape), axis=1)
    return np.take_along_axis(_plain_snake(guessed, loads), order[:, :, None], 1)


def _to_the_least(guessed: Floats, loads: Floats) -> Ints:
    """Deal documents from the longest to the shortest, in rounds of one document per lane.

    In each round, the longer documents go to the lanes with the smaller loads. Adds the sizes of
    the documents to `loads`.
    """
    nodes, of_node = loads.shape
    longest = np.argsort(-guessed, axis=1).reshape(nodes, DEALT_AT_ONCE, of_node)
    sizes = np.take_along_axis(guessed, longest.reshape(nodes, -1), 1).reshape(longest.shape)
    dealt = np.empty((nodes, of_node, DEALT_AT_ONCE), np.int64)
    for turn in range(DEALT_AT_ONCE):
        least = np.argsort(loads, axis=1)
        np.put_along_axis(dealt[:, :, turn], least, longest[:, turn], 1)
        np.put_along_axis(loads, least, np.take_along_axis(loads, least, 1) + sizes[:, turn], 1)
    return _mixed(dealt)


def _mixed(dealt: Ints) -> Ints:
    # shuffle each lane's documents, which are sorted by size
    return dealt[:, :, np.random.default_rng(7).permutation(DEALT_AT_ONCE)]
