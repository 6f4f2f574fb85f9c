"""Compare cloudload's downloads from S3 and GCS with those of other clients, on the same server.

    python -m benchmarks.throughput.store_reads --python .bench/stores/bin/python

The servers are SeaweedFS and fake-gcs-server on this machine. s3fs and obstore are not in
cloudload's environment, so they run with the interpreter --python. A client that is not installed
there is skipped. CPU time is that of the client's process. The clients take turns, so other work on
the machine slows all of them equally.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.figures import Row
from benchmarks.harness import Side, SideFailedError, note
from benchmarks.options import Options
from benchmarks.peers.store_clients import CLIENTS
from cloudload.data.storage.locations import Location
from testkit.servers import BUCKET, start_gcs, start_s3

SERVERS: dict[str, tuple[Any, str]] = {"s3": (start_s3, "s3"), "gcs": (start_gcs, "gs")}
OWN = ("cloudload", "boto3", "google-cloud-storage")
"""Clients in cloudload's environment. All others run with the interpreter --python."""


def main() -> None:
    options = Options(__doc__)
    text = "default: %(default)s"
    options.add_argument(
        "--stores", nargs="+", choices=list(SERVERS), default=list(SERVERS), help=text
    )
    text = "object sizes (default: 8 64 256; with --quick: 1)"
    options.add_argument("--sizes", nargs="+", type=int, metavar="MB", help=text)
    text = "numbers of concurrent downloads (default: 1 4 16; with --quick: 2)"
    options.add_argument("--at-once", nargs="+", type=int, metavar="N", help=text)
    text = "Python interpreter for s3fs and obstore (default: this one)"
    options.add_argument("--python", default=sys.executable, help=text)
    options.add_amount("rounds", 3, 1, "number of turns per client")
    options.add_amount("megabytes", 512, 4, "minimum megabytes per turn")
    options.run(measure)


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Measure each client on each store, and yield the store's name and rows."""
    sizes = args.sizes or ([1] if args.quick else [8, 64, 256])
    counts = args.at_once or ([2] if args.quick else [1, 4, 16])
    for store in args.stores:
        start_server, scheme = SERVERS[store]
        with ExitStack() as stack:
            os.environ.update(stack.enter_context(start_server()).environment())
            keys = {size: write_objects(scheme, size, args.megabytes) for size in sizes}
            sides = start_clients(store, args.python, folder, stack)
            rows = [
                row
                for size in sizes
                for at_once in counts
                for row in race(sides, keys[size], size, at_once, args)
            ]
        yield store, rows


def start_clients(store: str, python: str, folder: Path, stack: ExitStack) -> dict[str, Side]:
    """Start a process for each client, except for those that are not installed."""
    sides: dict[str, Side] = {}
    for client in CLIENTS[store]:
        own = folder / f"{store}-{client}"
        side = stack.enter_context(
            Side(
                "benchmarks.peers.store_clients",
                python=sys.executable if client in OWN else python,
                log=own.with_suffix(".log"),
            )
        )
        try:
            side.start({"store": store, "client": client, "bucket": BUCKET, "folder": str(own)})
        except SideFailedError as error:
            note(f"  skipped {client}, because it did not start: {error}")
        else:
            sides[client] = side
    return sides


def write_objects(scheme: str, size: int, most: int) -> list[str]:
    """Store up to 16 objects of `size` MB, up to `most` / 2 MB in all, and return their keys."""
    data = os.urandom(size * 10**6)
    keys = [f"{size}-{number}" for number in range(min(16, max(1, most // size // 2)))]
    for key in keys:
        Location(f"{scheme}://{BUCKET}/{key}").write(data)
    return keys


def race(
    sides: dict[str, Side], keys: list[str], size: int, at_once: int, args: argparse.Namespace
) -> Iterator[Row]:
    """Let the clients take turns to download the same objects, and yield a row per client."""
    number = max(at_once, -(-args.megabytes // size))
    question = {"keys": [keys[job % len(keys)] for job in range(number)], "at_once": at_once}
    turns: dict[str, list[dict[str, float]]] = {client: [] for client in sides}
    for side in sides.values():  # import and connect before the timed turns
        side.take_turn({"keys": keys[:1], "at_once": 1})
    for _ in range(args.rounds):
        for client, side in sides.items():
            try:
                turns[client].append(side.take_turn(question))
            except SideFailedError as error:
                note(f"  {client} failed because {error}")
    for client, found in turns.items():
        if found:
            row: Row = {
                "MB": size,
                "at once": at_once,
                "client": client,
                "MB/s": [turn["bytes"] / turn["wall"] / 1e6 for turn in found],
                "CPU s per GB": [1e9 * turn["cpu"] / turn["bytes"] for turn in found],
            }
            note(f"  {row}")
            yield row


if __name__ == "__main__":
    main()
