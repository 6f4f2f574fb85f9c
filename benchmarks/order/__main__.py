"""Measure the cost of orders, how well they shuffle, their open shards, and the drift of lanes.

    python -m benchmarks.order [--only scale quality window drift] [--documents 1e8]

scale     seconds and memory to build the order of an epoch, and to build the same order with
          Streaming (needs the extra `streaming`). Each order is built in a new process.
quality   how well the documents of one canonical node are shuffled
window    the number of shards in use for each width of the shuffle window
drift     how far lanes drift apart if document sizes are log-normal and the lanes emit one row each
          in turn, and whether dealing the documents by their bytes helps

Shards have 5,000 documents and 64 MB.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from benchmarks.figures import Row, print_tables
from benchmarks.harness import Options, exit_on_sigterm
from benchmarks.order.drift import simulate_drift
from benchmarks.order.quality import measure_quality
from benchmarks.order.scale import measure_scale
from benchmarks.order.window import measure_windows


def main() -> None:
    options = Options(__doc__)
    options.add_argument(
        "--only",
        nargs="+",
        choices=["scale", "quality", "window", "drift"],
        help="run only these parts",
    )
    options.add_argument(
        "--drift", action="store_const", const=["drift"], dest="only", help="same as --only drift"
    )
    options.add_amount("documents", 1e8, 5e5, "number of documents in `scale` and `drift`")
    options.add_amount(
        "shards", 2_560, 128, "number of shards in `window` and, up to 400, in `quality`"
    )
    options.add_argument(
        "--lanes",
        nargs="+",
        type=int,
        default=[960, 3840],
        help="numbers of lanes in `drift` (default: 960 3840)",
    )
    args = options.parse()
    exit_on_sigterm()
    print_tables(measure(args), as_json=args.json)


def measure(args: argparse.Namespace) -> Iterator[tuple[str, list[Row]]]:
    """Measure the chosen parts, and yield the title and the rows of each part's table."""
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "scale": lambda: measure_scale(int(args.documents)),
        "quality": lambda: measure_quality(min(400, args.shards)),
        "window": lambda: measure_windows(args.shards),
        "drift": lambda: simulate_drift(args.lanes, args.documents),
    }
    for name in args.only or parts:
        yield name, list(parts[name]())


if __name__ == "__main__":
    main()
