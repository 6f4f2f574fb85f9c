"""Measure the cost of the exchange between ranks, and predict it for more processes.

    python -m benchmarks.scale.exchange --processes 2 4 8 16 32 64

Real processes gather each other's messages, as ranks do once per batch. A message describes a
rank's 8 rows, or is a single integer if token lengths are known. Each gather is measured in groups
of at most 64, 16 (the default), and 8 processes. CPU time includes the process's gloo threads, and
other work on the machine hardly affects it. The model is

    CPU seconds of a gather = a + b · (messages that the process sends) + c · (bytes it receives)

One process is enough to measure the time to decode N messages, so it is measured for any N.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch.distributed as dist

from benchmarks.figures import Row
from benchmarks.harness import note
from benchmarks.options import Options
from cloudload.loading.delivery import all_gather
from cloudload.loading.delivery.all_gather import Gather, wait_for_all
from cloudload.loading.delivery.progress import Report, Update, Window, move_lanes
from cloudload.run.position import LaneArrays
from cloudload.stats import COUNTS
from cloudload.system.arrays import NEVER

_FORK = multiprocessing.get_context("fork")
_TIMEOUT_S = 600.0
_ROW_INTS = 3
_HEADER_INTS = 16
"""Integers in a message besides its rows: its size, 3 fields, and one stream's statistics."""
_LARGE = 4_000
"""Integers in a message that is large enough to show the cost per byte."""


def main() -> None:
    options = Options(__doc__)
    text = "numbers of processes that gather (default: 2 4 8 16 32 64; with --quick: 2 3)"
    options.add_argument("--processes", type=int, nargs="+", help=text)
    options.add_amount("rounds", 100, 3, "number of gathers in each case")
    options.add_amount("rows", 8, 8, "rows in each rank's batch")
    options.run(measure_all)


def measure_all(args: argparse.Namespace, _: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield the measured gathers, the fitted model, and the predicted cost."""
    counts = args.processes or ([2, 3] if args.quick else [2, 4, 8, 16, 32, 64])
    sizes = [1, _HEADER_INTS + _ROW_INTS * args.rows]
    found = []
    for most in (64, 16, 8):
        for processes in counts:
            if processes > most or most == 64:
                for size in sizes if args.quick else [*sizes, _LARGE]:
                    found.append(measure(processes, most, size, args.rounds))
                    note(json.dumps(found[-1]))
    yield "measured", [{**each} for each in found]
    factors = fit(found)
    yield "seconds per", [{**factors}]
    yield (
        "predicted",
        [
            predict(processes, size, factors, args.rows)
            for processes in (100, 1_000, 10_000)
            for size in sizes
        ],
    )


def predict(processes: int, size: int, factors: dict[str, float], rows: int) -> Row:
    """Predict the cost of a gather from the model, and measure that of decoding it."""
    of_gather = np.array(terms(processes, all_gather.MOST_MEMBERS, size)) @ list(factors.values())
    return {
        "processes": processes,
        "bytes each": 8 * size,
        "CPU ms for a gather": 1e3 * float(of_gather),
        "CPU ms to decode it": 1e3 * measure_decoding(processes, rows) if size > 1 else 0.0,
        "MB": 8 * size * processes / 1e6,
    }


def terms(processes: int, most: int, size: int) -> tuple[float, float, float]:
    """Return the terms of the model for the first process, which takes part in every level.

    In a group of n, a process sends n - 1 messages, and receives the n - 1 arrays that the other
    members gathered in the levels below.
    """
    sent, received, below = 0, 0, 1
    while below < processes:
        members = min(most, -(-processes // below))
        sent += members - 1
        received += (members - 1) * below * size * 8
        below *= most
    while (below := below // most) > 1:
        sent += min(most, processes // below).bit_length()  # the broadcast is a binary tree
        received += processes * size * 8
    return 1, sent, received


def fit(found: list[dict[str, Any]]) -> dict[str, float]:
    """Fit a, b and c to the first process's median CPU seconds, with the least squared error.

    The errors are relative to the measured seconds.
    """
    seconds = np.array([each["cpu_ms"] / 1e3 for each in found])
    matrix = np.array([terms(each["processes"], each["most"], each["size"]) for each in found])
    factors, *_ = np.linalg.lstsq(matrix / seconds[:, None], np.ones(len(seconds)), rcond=None)
    return dict(zip(["gather", "message", "byte"], factors.tolist(), strict=True))


def measure(processes: int, most: int, size: int, rounds: int) -> dict[str, Any]:
    """Gather `rounds` times with real processes, and return the first process's figures."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with mock.patch.object(all_gather, "MOST_MEMBERS", most):
        pipes = []
        for rank in range(processes):
            receiver, sender = _FORK.Pipe(duplex=False)
            arguments = ((port, rank, processes), size, rounds, sender)
            process = _FORK.Process(target=_gather, args=arguments)
            process.start()
            pipes.append((process, receiver))
        figures = [receiver.recv() for _, receiver in pipes]
        for process, _ in pipes:
            process.join()
    return {"processes": processes, "most": most, "size": size, **figures[0]}


def _gather(job: tuple[int, int, int], size: int, rounds: int, sender: Connection) -> None:
    port, rank, processes = job
    store = dist.TCPStore("127.0.0.1", port, processes, rank == 0, timedelta(seconds=_TIMEOUT_S))
    wait_for_all(store, rank, processes, _TIMEOUT_S)
    began = time.perf_counter()
    tree = Gather(store, rank, processes, _TIMEOUT_S)
    own = np.full(size, rank, np.int64)
    tree.start(own)()
    connected_s = time.perf_counter() - began
    walls, cpus = [], []
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        tree.start(own)()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    sockets = count_sockets()
    tree.start(own)()  # wait until all processes have finished
    sender.send(
        {
            "wall_ms": round(1e3 * statistics.median(walls), 3),
            "cpu_ms": round(1e3 * statistics.median(cpus), 3),
            "connect_s": round(connected_s, 2),
            "sockets": sockets,
        }
    )
    time.sleep(1.0)  # the first process serves the store until the others have exited
    os._exit(0)


def measure_decoding(ranks: int, rows: int) -> float:
    """Return the CPU seconds to decode the messages of all ranks and apply them to the lanes."""
    counts = np.zeros((1, len(COUNTS)), np.int64)
    recipe = mock.Mock(num_lanes=4 * ranks)
    recipe.components_of = lambda all_rows: np.zeros(len(all_rows), np.int64)
    window = Window(0, ranks * rows, ranks, recipe)
    messages = [
        window._encode(
            Report(window.stop, rank, NEVER, counts, np.ones((rows, _ROW_INTS), np.int64), [])
        )
        for rank in range(ranks)
    ]
    lanes = np.zeros((1, recipe.num_lanes, _ROW_INTS), np.int64)
    arrays = LaneArrays(lanes, None, counts)
    times = []
    for _ in range(5):
        began = time.process_time()
        joined = window._join(messages, counts.shape)
        window.first_dry(joined)
        move_lanes(arrays, [Update(recipe, joined, window.stop)])
        times.append(time.process_time() - began)
    return statistics.median(times)


def count_sockets() -> int:
    count = 0
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing is closed
            count += str(file.readlink()).startswith("socket:")
    return count


if __name__ == "__main__":
    main()
