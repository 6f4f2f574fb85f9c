"""What orders cost, how well they shuffle, how many shards they hold open, and how far lanes drift
apart.

    python -m benchmarks.order [--only scale quality window drift] [--documents 1e8]

scale     seconds and memory of an epoch's order, each in a process, beside Streaming's (the extra
          `streaming`)
quality   one canonical node's documents, shuffled
window    shards in use, by the width of the shuffle
drift     lanes that read documents of log-normal sizes, one row each in turn, and the effect of
          dealing documents by their bytes

Shards have 5,000 documents, and 64 MB.
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
        "--only", nargs="+", choices=["scale", "quality", "window", "drift"], help="some parts"
    )
    options.add_argument(
        "--drift", action="store_const", const=["drift"], dest="only", help="short for --only drift"
    )
    options.add_amount("documents", 1e8, 5e5, "of scale and drift")
    options.add_amount("shards", 2_560, 128, "of window; of quality, 400 at most")
    options.add_argument(
        "--lanes", nargs="+", type=int, default=[960, 3840], help="of drift (default: 960 3840)"
    )
    args = options.parse()
    exit_on_sigterm()
    print_tables(measure(args), as_json=args.json)


def measure(args: argparse.Namespace) -> Iterator[tuple[str, list[Row]]]:
    """The tables of all parts."""
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
