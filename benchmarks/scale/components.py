"""Measure mixtures of many components: the start, the state, memory, and the speed.

    python -m benchmarks.scale.components [--components 10 300 1000 3000]

Each component is a dataset with its own proportion, and has a cursor in every lane. All have the
same documents. `local` reads them from a folder, and `S3` from a server on this machine, through a
proxy that delays every request by --latency-ms. The loader has one worker. Each row is measured in
its own process, with an empty cache. Memory is the processes' own (RssAnon and RssShmem), in MB of
2^20 bytes. The state is JSON, in MB of 10^6 bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.documents import TOKENIZER
from benchmarks.figures import Row
from benchmarks.harness import note, run_child
from benchmarks.options import Options
from benchmarks.scale.memory import split_memory
from benchmarks.scale.simulated_store import short_texts
from testkit.fault_proxy import Fault, start_fault_proxy
from testkit.servers import BUCKET, start_s3

GLOBAL_BATCH, SEQ_LEN = 64, 64
_LOCAL, _S3 = "local", "S3"


def main() -> None:
    options = Options(__doc__)
    options.add_parts((_LOCAL, _S3))
    text = "numbers of components"
    options.add_argument("--components", type=int, nargs="+", metavar="N", help=text)
    options.add_amount("lanes", 960, 12, "number of lanes")
    options.add_amount("documents", 20_000, 60, "number of documents in each dataset")
    options.add_amount("batches", 60, 2, "number of batches whose speed is measured")
    options.add_amount("latency-ms", 20.0, 2.0, "delay of every request, in milliseconds")
    options.run(measure)


def measure(args: argparse.Namespace, work: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield the table of each store."""
    from cloudload import convert_to_mds

    numbers = args.components or ([2, 3] if args.quick else [10, 300, 1_000, 3_000])
    texts = ({"text": text} for text in short_texts(args.documents))
    convert_to_mds(texts, work / "one", progress=False)
    files = {path.name: path for path in (work / "one").iterdir()}
    for name in args.only:
        with contextlib.ExitStack() as stack:
            write = _write_local if name == _LOCAL else _write_s3
            root, environment = (
                (str(work / "many"), {})
                if name == _LOCAL
                else stack.enter_context(_delayed_s3(args.latency_ms / 1e3))
            )
            for index in range(max(numbers)):
                write(files, f"{root}/{index:05}")
            yield name, [_measure_one(root, environment, number, args, work) for number in numbers]


def _write_local(files: dict[str, Path], folder: str) -> None:
    Path(folder).mkdir(parents=True)
    for name, path in files.items():
        Path(folder, name).hardlink_to(path)


def _write_s3(files: dict[str, Path], url: str) -> None:
    from cloudload.data import Location

    with ThreadPoolExecutor(len(files)) as threads:
        for name, path in files.items():
            threads.submit(Location(f"{url}/{name}").upload, path)


@contextlib.contextmanager
def _delayed_s3(delay_s: float) -> Iterator[tuple[str, dict[str, str]]]:
    with start_s3(BUCKET) as server, start_fault_proxy(server.endpoint) as proxy:
        os.environ.update(server.environment())
        proxy.set_faults([Fault("", "delay", seconds=delay_s)])
        yield f"s3://{BUCKET}/components", server.environment(proxy.endpoint)


def _measure_one(
    root: str, environment: dict[str, str], number: int, args: argparse.Namespace, work: Path
) -> Row:
    row: Row = {"components": number}
    row |= run_child(
        run_loader,
        environment,
        root=root,
        number=number,
        cache=str(work / f"cache-{len(environment)}-{number}"),
        lanes=args.lanes,
        batches=args.batches,
    )
    note(f"{row}")
    return row


def run_loader(root: str, number: int, cache: str, lanes: int, batches: int) -> dict[str, Any]:
    """Open a mixture, read batches, and resume from its state."""
    from cloudload import CloudLoader, Stream

    streams = [f"{root}/{index:05}" for index in range(number)]

    def open_loader(urls: list[str], local: str) -> CloudLoader:
        return CloudLoader(
            [Stream(url, proportion=1) for url in urls],
            tokenizer=str(TOKENIZER),
            seq_len=SEQ_LEN,
            global_batch_size=GLOBAL_BATCH,
            num_lanes=lanes,
            num_workers=1,
            local=local,
        )

    open_loader(streams[:1], f"{cache}-of-one").close()  # imports, and the tokenizer
    began = time.perf_counter()
    with open_loader(streams, cache) as loader:
        opened = time.perf_counter()
        rows = iter(loader)
        next(rows)
        first = time.perf_counter()
        for _ in range(batches):
            next(rows)
        read = time.perf_counter()
        state = json.dumps(loader.state_dict())
        saved = time.perf_counter()
        [worker] = multiprocessing.active_children()
        own = [split_memory(pid)[0] for pid in (None, worker.pid)]
    with open_loader(streams, cache) as loader:
        reopened = time.perf_counter()
        loader.load_state_dict(json.loads(state))
        next(iter(loader))
        resumed = time.perf_counter()
    return {
        "open, s": opened - began,
        "first batch, s": first - opened,
        "batches/s": batches / (read - first),
        "state, s": saved - read,
        "state, MB": len(state) / 1e6,
        "trainer's own, MB": own[0],
        "worker's own, MB": own[1],
        "resume, s": resumed - reopened,
    }


if __name__ == "__main__":
    main()
