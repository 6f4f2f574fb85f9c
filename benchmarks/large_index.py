"""Measure the cost of opening a dataset of very many shards on the ranks of a node.

    python -m benchmarks.large_index [--shards 1000000] [--ranks 2] [--only index requests]

index      CPU time, peak memory, and proportional set size (PSS) of ranks with one worker each, in
           a first start, and in later starts with the same cache
requests   requests to a real S3 server until every rank of a node has its first batch

`index` reads from a simulated store, in which the index is real and all shards have the same bytes.
Memory is in MB of 10^6 bytes. PSS divides a shared page among the processes that share it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.convert.sampling import high_water_mark
from benchmarks.figures import Row, print_tables
from benchmarks.harness import ONE_THREAD, ROOT, Options, descendants, exit_on_sigterm, exit_within
from benchmarks.node import pss_of
from benchmarks.simulated_store import URL, short_texts, use_store, write_dataset
from testkit.fault_proxy import FaultProxy, start_fault_proxy
from testkit.servers import BUCKET, start_s3

_TOKENIZER = ROOT / "examples" / "tokenizer"
_REAL_URL = f"s3://{BUCKET}/index"
_KINDS = {"of the index": "/index.json", "of lengths": "/lengths/", "of shards": ".mds"}
_OPTIONS: dict[str, Any] = {
    "tokenizer": str(_TOKENIZER),
    "seq_len": 256,
    "batch_size": 4,
    "num_workers": 1,
    "shuffle_algo": "seekable",
    "tokenizer_backend": "hf",
}
_DOCUMENTS, _SETTLED_S = 20_000, 3.0


def main() -> None:
    options = Options(__doc__)
    options.add_argument(
        "--only", nargs="+", choices=["index", "requests"], help="run only these parts"
    )
    options.add_amount("shards", 1_000_000, 20_000, "number of shards in the dataset")
    options.add_amount("samples", 10_000, 20, "number of documents per shard")
    options.add_amount("ranks", 2, 2, "number of ranks in the part `index`")
    options.add_amount("requesting", 8, 2, "number of ranks in the part `requests`")
    options.add_argument("--request", type=json.loads, help=argparse.SUPPRESS)
    args = options.parse()
    if args.request:
        serve(**args.request)
        return
    exit_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="cloudload-bench-") as folder:
        print_tables(measure(args, Path(folder)), as_json=args.json)


def measure(args: argparse.Namespace, work: Path) -> Iterator[tuple[str, list[Row]]]:
    """Measure the chosen parts, and yield the title and the rows of each part's table."""
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "index": lambda: measure_index(work / "many", args.shards, args.samples, args.ranks),
        "requests": lambda: count_requests(work, args.requesting),
    }
    for name in args.only or parts:
        yield name, list(parts[name]())


def measure_index(folder: Path, shards: int, samples: int, ranks: int) -> Iterator[Row]:
    """Yield each rank's figures in a first and two later starts, highest CPU time first."""
    folder.mkdir()
    write_dataset(folder, shards, samples)
    index_mb = (folder / "index.json").stat().st_size / 1e6
    for start, number in (("first", ranks), ("later", ranks), ("later", 1)):
        found = _run_ranks(number, {"cache": str(folder / "cache"), "store": str(folder)}, {})
        kept_mb = sum(each.stat().st_size for each in (folder / "cache").glob("indexes/*")) / 1e6
        sizes = {"index, MB": index_mb, "file in the cache, MB": kept_mb}
        for each in sorted(found, key=_cpu_s, reverse=True):
            yield {"start": start, "ranks": number, "shards": shards, **sizes, **each}


def _cpu_s(row: Row) -> float:
    return float(str(row["CPU s"]))


def count_requests(work: Path, ranks: int) -> Iterator[Row]:
    """Count the requests of a node by kind, in a first start and in a later start."""
    from cloudload import convert_to_mds

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(start_s3(BUCKET))
        proxy = stack.enter_context(start_fault_proxy(server.endpoint))
        os.environ.update(server.environment())
        texts = ({"text": text} for text in short_texts(_DOCUMENTS))
        convert_to_mds(texts, _REAL_URL, shard_bytes=10_000, progress=False)
        time.sleep(
            _SETTLED_S
        )  # ranks share an index only if it was written at least two seconds ago
        for start in ("first", "later"):
            proxy.set_faults([])
            _run_ranks(ranks, {"cache": str(work / "cache")}, server.environment(proxy.endpoint))
            yield {"start": start, "ranks": ranks, **_sum(proxy)}


def _sum(proxy: FaultProxy) -> dict[str, int]:
    requests = proxy.requests()
    found = {
        name: sum(part in request.line for request in requests) for name, part in _KINDS.items()
    }
    of_index = [request.body_bytes for request in requests if "/index.json" in request.line]
    others = len(requests) - sum(found.values())
    return {**found, "others": others, "bytes of the index": sum(of_index)}


def _run_ranks(ranks: int, request: Mapping[str, Any], variables: Mapping[str, str]) -> list[Row]:
    """Run the ranks of a node. Returns each rank's figures, and its PSS once all have a batch."""
    processes = [
        _start({**request, "rank": rank, "size": ranks}, variables) for rank in range(ranks)
    ]
    try:
        found = [_read_line(process) for process in processes]
        for row, process in zip(found, processes, strict=True):
            family = [process.pid, *descendants(process.pid)]
            row["PSS of the rank and its worker, MB"] = sum(map(pss_of, family))
        return found
    finally:
        for process in processes:
            process.communicate()


def _start(request: Mapping[str, Any], variables: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.large_index", "--request", json.dumps(request)],
        cwd=ROOT,
        env={**os.environ, **ONE_THREAD, **variables, "LOCAL_WORLD_SIZE": str(request["size"])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _read_line(process: subprocess.Popen[str]) -> Row:
    assert process.stdout
    line = process.stdout.readline()
    if not line:
        raise SystemExit(
            f"a rank exited with status {process.wait()} before its first batch. See its output "
            "above"
        )
    found: Row = json.loads(line)
    return found


# ---------------------------------------------------------------- a rank


def serve(*, cache: str, rank: int, size: int, store: str | None = None) -> None:
    """Run one rank: open the dataset, read a batch, print the figures, and wait for EOF."""
    from cloudload import CloudLoader
    from cloudload.data.mds import open_index

    open_index._MOST_WAIT_S = math.inf  # only one rank parses the index, however busy it is
    if store is None:
        open_index._SHARED_FROM_BYTES = 0  # ranks share even the small index of this dataset
    else:
        use_store(Path(store))
    url = _REAL_URL if store is None else URL
    before_s, before_mb = time.process_time(), high_water_mark(os.getpid()) / 1e6
    with CloudLoader(url, **_OPTIONS, local=cache, dp_rank=rank, dp_world_size=size) as loader:
        figures = {
            "CPU s": time.process_time() - before_s,
            "peak before, MB": before_mb,
            "peak, MB": high_water_mark(os.getpid()) / 1e6,
        }
        next(iter(loader))
        print(json.dumps(figures), flush=True)
        sys.stdin.read()
        exit_within(10)


if __name__ == "__main__":
    main()
