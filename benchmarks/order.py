"""What orders cost, how well they shuffle, how many shards they hold open, and how far lanes drift
apart.

    python -m benchmarks.order [--only scale quality window drift] [--documents 1e8]

Prints Markdown tables. `scale`: seconds and memory of an epoch's order, each in a process of its
own, beside Streaming's (the extra `streaming`). `quality`: one canonical node's documents,
shuffled. `window`: shards in use by the width of the shuffle. `drift`: lanes that read documents of
log-normal sizes, one row each in turn, and what dealing documents by their bytes does about it.
Shards have 5,000 documents, and 64 MB.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cloudload.order import streaming_shuffles as shuffles
from cloudload.order.seekable import SeekableOrder, Shuffle
from cloudload.order.spec import OrderConfig
from tests.support.reference_order import canonical_order

ROOT = Path(__file__).resolve().parents[1]

Array = np.ndarray[Any, np.dtype[Any]]
Row = dict[str, Any]

PER_SHARD = 5_000
SHARD_BYTES = 64_000_000
SHARDS_PER_WINDOW = 4
NUM_NODES = 64
LOG_MEAN, LOG_SD = 6.2, 1.1
NOISE_SD = 0.15
"""Of the logarithm of tokens per byte, from document to document."""
DEALT_AT_ONCE = 64
"""Documents of each lane that are dealt together."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=["scale", "quality", "window", "drift"], help="some parts"
    )
    parser.add_argument(
        "--documents", type=float, default=1e8, help="of scale and drift (default: %(default)g)"
    )
    parser.add_argument(
        "--drift", action="store_const", const=["drift"], dest="only", help="short for --only drift"
    )
    parser.add_argument("--lanes", nargs="+", type=int, default=[960, 3840], help="of drift")
    options = parser.parse_args()
    parts: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
        "scale": measure_scale,
        "quality": measure_quality,
        "window": measure_windows,
        "drift": simulate_drift,
    }
    for name in options.only or parts:
        print_table(name, list(parts[name](options)))


def print_table(title: str, rows: Sequence[Row]) -> None:
    print(f"\n**{title}**\n\n| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}")
    for row in rows:
        print(
            "| "
            f"{' | '.join(f'{value:,.3g}' if isinstance(value, float) else f'{value}' for value in row.values())} |"
        )
    sys.stdout.flush()


# ---------------------------------------------------------------- scale

_BUILD = r"""
import re, statistics, sys, tempfile, threading, time
from pathlib import Path
import numpy as np
from cloudload.order.epoch_orders import EpochOrders
from cloudload.order.spec import OrderConfig
algorithm, documents, nodes, block = sys.argv[1], *map(int, sys.argv[2:])
anonymous = [0]
def watch():
    while True:
        anonymous[0] = max(anonymous[0], int(re.search(r"RssAnon:\s+(\d+)", open("/proc/self/status").read())[1]) >> 10)
        time.sleep(0.02)
threading.Thread(target=watch, daemon=True).start()
with tempfile.TemporaryDirectory() as folder:
    orders = EpochOrders(Path(folder), np.full(documents // 5_000, 5_000), OrderConfig(True, algorithm, block, nodes, 17))
    start, before = time.perf_counter(), time.process_time()
    order = orders(0)
    built, used = time.perf_counter() - start, time.process_time() - before
    middle = documents // 2
    order[middle + np.arange(10_000)]
    first = time.perf_counter() - start
    times = [time.perf_counter()]
    for batch in range(200):
        order[middle + batch + np.arange(1_000) * 960 % (documents - middle - 200)]
        times.append(time.perf_counter())
    each = statistics.median(np.diff(times)) / 1_000
peak = int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) >> 10
print(built, used, first, peak, anonymous[0], each * 1e9)
"""

_STREAMINGS = r"""
import re, sys, time
import numpy as np
from streaming.base.shuffle import get_shuffle
algorithm, documents, nodes, block = sys.argv[1], *map(int, sys.argv[2:])
start, before = time.perf_counter(), time.process_time()
order = get_shuffle(algorithm, np.full(documents // 5_000, 5_000), nodes, 17, 0, block)
built = time.perf_counter() - start
print(built, time.process_time() - before, 0, int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) >> 10, 0, 0)
"""


def measure_scale(options: argparse.Namespace) -> Iterator[Row]:
    documents = int(options.documents)
    block = SHARDS_PER_WINDOW * PER_SHARD
    cases = [
        ("get_shuffle", _STREAMINGS, "py1e", documents, 64, block),
        ("get_shuffle", _STREAMINGS, "py1br", documents, 64, block),
        ("EpochOrders", _BUILD, "py1e", documents, 64, block),
        ("EpochOrders", _BUILD, "py1e", documents, 1, block),
        ("EpochOrders", _BUILD, "py1e", documents, 1, 4_000_000),
        ("EpochOrders", _BUILD, "py1br", documents, 64, block),
        ("EpochOrders", _BUILD, "py1br", documents, 1, block),
        ("EpochOrders", _BUILD, "seekable", documents, 64, block),
        ("EpochOrders", _BUILD, "seekable", 100 * documents, 64, block),
    ]
    for name, script, *case in cases:
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{script}"
        command = [sys.executable, "-W", "ignore", "-c", code, *map(str, case)]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        built, used, first, peak, anonymous, each = map(float, printed.split())
        yield {
            "order": name,
            "algorithm": case[0],
            "documents": f"{case[1]:.0e}",
            "nodes": case[2],
            "block": f"{case[3]:,}",
            "build, s": built,
            "CPU, s": used,
            "with 10,000 read, s": first or "-",
            "peak RSS, MB": int(peak),
            "of it not the file, MB": int(anonymous) or "-",
            "ns a document in thousands": round(each) or "-",
        }


# ---------------------------------------------------------------- quality


def measure_quality(_: argparse.Namespace) -> Iterator[Row]:
    """Of one canonical node of 400 shards: where documents go, of where their shards stood before
    the shuffle."""
    sizes, block = np.full(400, PER_SHARD), SHARDS_PER_WINDOW * PER_SHARD
    for algorithm in ("py1e", "py1br", "seekable"):
        travels, distinct, same = [], [], []
        for epoch in range(3):
            ids = canonical_order(sizes, OrderConfig(True, algorithm, block, 1, 17), epoch)
            places = np.empty(len(ids), np.int64)
            places[_unshuffled(algorithm, sizes, epoch, block)] = np.arange(len(ids))
            inner = slice(2 * block, -2 * block)
            travels.append(np.abs(places[ids] - np.arange(len(ids)))[inner])
            shards = ids // PER_SHARD
            distinct += [
                len(np.unique(shards[start : start + 2_048]))
                for start in range(2 * block, len(ids) - 2 * block, 2_048)
            ]
            same.append((shards[1:] == shards[:-1])[inner].mean())
        travel = np.concatenate(travels)
        yield {
            "algorithm": algorithm,
            "median travel / block": float(np.median(travel) / block),
            "mean / block": float(travel.mean() / block),
            "largest / block": float(travel.max() / block),
            "shards in 2,048 "
            "documents": f"{np.mean(distinct):.2f} ({min(distinct)} to {max(distinct)})",
            "neighbours of one shard": float(np.mean(same)),
            "χ² where a block's documents land": _uniformity(algorithm, block),
        }


def _unshuffled(algorithm: str, sizes: Array, epoch: int, block: int) -> Array:
    """The ids of one node, its spans in the epoch's order and nothing within them moved."""
    if algorithm == "seekable":
        spans = SeekableOrder(sizes, Shuffle(1, 17, block), epoch)._spans
        begins = (np.cumsum(sizes) - sizes)[spans.shards] + spans.offsets
        return np.concatenate(
            [np.arange(b, b + n) for b, n in zip(begins, np.diff(spans.starts), strict=True)]
        )
    order = shuffles._permutation(np.random.default_rng(17), len(sizes))
    ends = np.cumsum(sizes)[order]
    [spans] = shuffles._divide(ends - sizes[order], ends, np.array([0, sizes.sum()]))
    return shuffles._laid_out(spans.permuted(np.random.default_rng(17 + epoch)), np.dtype(np.int64))


def _uniformity(algorithm: str, block: int) -> str:
    """From which sixteenth of a block to which: χ² of the 256 counts, in standard deviations from
    its mean, of 800 blocks."""
    if algorithm == "py1e":
        return "- (by design not uniform)"
    table = np.zeros((16, 16), np.int64)
    rng = np.random.default_rng(1)
    order = SeekableOrder(np.array([block * 802]), Shuffle(1, 17, block), 0)
    first = int(order._first_blocks[0])
    for number in range(800):
        start = first + number * block
        ids = (
            order[start : start + block] - start
            if algorithm == "seekable"
            else rng.permutation(block)
        )
        np.add.at(table, (np.asarray(ids) * 16 // block, np.arange(block) * 16 // block), 1)
    expected = table.sum() / 256
    freedom = 15 * 15
    return (
        f"{(((table - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom):+.1f} "
        f"sd of {freedom}"
    )


# ---------------------------------------------------------------- windows


def measure_windows(_: argparse.Namespace) -> Iterator[Row]:
    """2,560 shards in a row of steps: one document of each canonical node a step."""
    sizes = np.full(2_560, PER_SHARD)
    cases = [
        (nodes, f"{window}", window * PER_SHARD)
        for nodes in (1, 8, 64)
        for window in (1, 2, 4, 8, 16)
    ]
    for nodes in (1, 8, 64):
        block = max(4_000_000 // nodes, 1 << 18)
        cases.append((nodes, f"{block / PER_SHARD:.0f} (Streaming's)", block))
    for nodes, window, block in sorted(cases, key=lambda case: (case[0], case[2])):
        row: Row = {"nodes": nodes, "window, shards": window}
        for algorithm in ("py1e", "seekable"):
            shards = (
                canonical_order(sizes, OrderConfig(True, algorithm, block, nodes, 17), 0).astype(
                    np.int32
                )
                // PER_SHARD
            )
            most = _most_open(shards, nodes)
            row[f"{algorithm}: in the first 2,048"] = len(np.unique(shards[:2_048]))
            row[f"{algorithm}: open at once"] = most
            row[f"{algorithm}: GB"] = round(most * SHARD_BYTES / 1e9, 1)
            row[f"{algorithm}: a shard's documents from their middle"] = (
                f"{_spread(shards[::nodes]):,.0f}"
            )
        yield row


def _most_open(shards: Array, nodes: int) -> int:
    """Shards that are between their first and their last step, at the most."""
    steps = np.arange(len(shards)) // nodes
    first, last = np.empty(shards.max() + 1, np.int64), np.empty(shards.max() + 1, np.int64)
    last[shards] = steps
    first[shards[::-1]] = steps[::-1]
    events = np.zeros(steps[-1] + 2, np.int64)
    np.add.at(events, first, 1)
    np.add.at(events, last + 1, -1)
    return int(np.cumsum(events).max())


def _spread(shards: Array) -> float:
    """The mean distance of a node's documents from the middle of their shard's, of whole shards."""
    counts = np.bincount(shards)
    places = np.arange(len(shards))
    middles = np.bincount(shards, places) / np.maximum(1, counts)
    whole = counts[shards] == PER_SHARD
    return float(np.abs(places - middles[shards])[whole].mean())


# ---------------------------------------------------------------- drift


def simulate_drift(options: argparse.Namespace) -> Iterator[Row]:
    """Every lane has emitted the same number of tokens: where do they stand?"""
    marks = [10.0**power for power in range(5, 9) if 10.0**power <= options.documents]
    for lanes in options.lanes:
        start = time.perf_counter()
        read = _read(lanes, [mark / lanes * np.exp(LOG_MEAN + LOG_SD**2 / 2) for mark in marks])
        print(f"{lanes} lanes: {time.perf_counter() - start:.0f} s", file=sys.stderr)
        for policy, (place, mark) in itertools.product(read, enumerate(marks)):
            yield {
                "lanes": lanes,
                "dealt": policy,
                "documents": f"{mark:.0e}",
                **_describe(read[policy][place], lanes),
            }


def _describe(ordinals: Array, lanes: int) -> Row:
    """`ordinals`: documents that each lane has read: [nodes, lanes of a node]."""
    of_node = lanes // NUM_NODES
    places = ordinals * of_node + np.arange(of_node)
    spread = places.max(axis=1) - places.min(axis=1)
    block = SHARDS_PER_WINDOW * PER_SHARD
    # whole blocks from the slowest lane's to the fastest's, wherever they begin, and one shard on
    # their edges
    staggers = np.random.default_rng(3).integers(0, block, (64, NUM_NODES))
    blocks = (places.max(axis=1) + staggers) // block - (places.min(axis=1) + staggers) // block + 1
    open_shards = blocks * SHARDS_PER_WINDOW + 1
    apart = int(ordinals.max() - ordinals.min())
    return {
        "ordinals: mean, sd": f"{ordinals.mean():,.0f}, {ordinals.std():.1f}",
        "all lanes: fastest less slowest": f"{apart:,}",
        "in documents of an epoch": f"{apart * lanes:,}",
        "a node's lanes, documents apart: mean, most": f"{spread.mean():,.0f}, {spread.max():,}",
        "shards open: a "
        "node, in all": f"{open_shards.mean():.1f}, {open_shards.sum(axis=1).mean():,.0f}",
        "GB in all": float(open_shards.sum(axis=1).mean() * SHARD_BYTES / 1e9),
    }


def _read(lanes: int, marks: Sequence[float]) -> dict[str, Array]:
    """Documents that each lane has read when it has emitted as many tokens: [marks, nodes, lanes of
    a node] by policy."""
    of_node = lanes // NUM_NODES
    policies: dict[str, Callable[[Array, Array], Array]] = {
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


def _in_turn(guessed: Array, loads: Array) -> Array:
    """Which documents of the window each lane reads: [nodes, lanes of a node, documents]."""
    nodes, of_node = loads.shape
    return np.broadcast_to(
        np.arange(guessed.shape[1]).reshape(-1, of_node).T, (nodes, of_node, DEALT_AT_ONCE)
    )


def _plain_snake(guessed: Array, loads: Array) -> Array:
    """From the longest to the shortest, to the lanes there and back again, so that the first always
    has the longest."""
    nodes, of_node = loads.shape
    longest = np.argsort(-guessed, axis=1).reshape(nodes, DEALT_AT_ONCE, of_node)
    longest[:, 1::2] = longest[:, 1::2, ::-1].copy()
    return _mixed(longest.transpose(0, 2, 1))


def _snake(guessed: Array, loads: Array) -> Array:
    """Likewise, the lanes in another order in every window."""
    order = np.argsort(np.random.default_rng(int(guessed[0, 0] * 1e6)).random(loads.shape), axis=1)
    return np.take_along_axis(_plain_snake(guessed, loads), order[:, :, None], 1)


def _to_the_least(guessed: Array, loads: Array) -> Array:
    """From the longest to the shortest, as many as there are lanes at a time, the longer to those
    that have less so far."""
    nodes, of_node = loads.shape
    longest = np.argsort(-guessed, axis=1).reshape(nodes, DEALT_AT_ONCE, of_node)
    sizes = np.take_along_axis(guessed, longest.reshape(nodes, -1), 1).reshape(longest.shape)
    dealt = np.empty((nodes, of_node, DEALT_AT_ONCE), np.int64)
    for turn in range(DEALT_AT_ONCE):
        least = np.argsort(loads, axis=1)
        np.put_along_axis(dealt[:, :, turn], least, longest[:, turn], 1)
        np.put_along_axis(loads, least, np.take_along_axis(loads, least, 1) + sizes[:, turn], 1)
    return _mixed(dealt)


def _mixed(dealt: Array) -> Array:
    # a lane reads its share in no order of sizes
    return dealt[:, :, np.random.default_rng(7).permutation(DEALT_AT_ONCE)]


if __name__ == "__main__":
    main()
