"""Measure the ranks of a node that open one dataset at the same time, each in its own process.

Run as a module, this is a rank: it opens a loader, reads the first batches if asked to, prints its
figures, and stays alive until its stdin ends, so that shared memory can be measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.convert.sampling import high_water_mark
from benchmarks.figures import Row
from benchmarks.harness import ONE_THREAD, ROOT, descendants, exit_within, family_cpu, note
from benchmarks.node import pss_of
from benchmarks.scale.simulated import URL, count_opened, use_store

SEQ_LEN, BATCH_SIZE = 2_048, 8
TOKENIZER = ROOT / "examples" / "tokenizer"
_MB = 1e6


def measure_ranks(folder: Path, ranks: int, steps: int) -> Iterator[Row]:
    """Yield the figures of a first start, with an empty cache, and of a later one."""
    for start in ("first", "later"):
        count_opened(folder, "")
        began = time.perf_counter()
        found, memory = _run(folder, ranks, steps if start == "later" else 0)
        wall = max(each["opened_at"] for each in found) - began
        openings = sorted(each["CPU s"] for each in found)
        yield {
            "start": start,
            "ranks": ranks,
            "s until all are open": wall,
            "CPU s, most": openings[-1],
            "CPU s, least": openings[0],
            "peak MB, most": max(each["peak MB"] for each in found),
            "peak MB, least": min(each["peak MB"] for each in found),
            "PSS of a rank and its workers, MB": sum(memory) / ranks,
            "reads of the index": count_opened(folder, "index.json"),
            "s to the first batch": found[0].get("s to the first batch"),
            "CPU ms per step": found[0].get("CPU ms per step"),
        }


def _run(folder: Path, ranks: int, steps: int) -> tuple[list[dict[str, Any]], list[float]]:
    """The figures of each rank, and its proportional set size in MB while all are alive."""
    request = {"folder": str(folder), "size": ranks, "steps": steps}
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(_start({**request, "rank": rank})) for rank in range(ranks)
        ]
        found = [_read_line(process) for process in processes]
        memory = [
            sum(map(pss_of, [process.pid, *descendants(process.pid)])) for process in processes
        ]
        note(f"  {found[0]}, PSS {memory[0]:.0f} MB")
        for process in processes:
            process.communicate()
    return found, memory


def _start(request: Mapping[str, Any]) -> subprocess.Popen[str]:
    variables = {"LOCAL_WORLD_SIZE": str(request["size"])}
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.scale.ranks", json.dumps(request)],
        cwd=ROOT,
        env=os.environ | ONE_THREAD | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _read_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a rank ended with status {process.wait()}. See its output above")
    found: dict[str, Any] = json.loads(line)
    return found


# ---------------------------------------------------------------- a rank


def serve(*, folder: str, rank: int, size: int, steps: int) -> None:
    """Open a loader, read `steps` batches, print the figures, and wait for the end of stdin."""
    from cloudload import CloudLoader

    use_store(Path(folder))
    cpu, options = time.process_time(), loader_options(Path(folder))
    with CloudLoader(URL, **options, dp_rank=rank, dp_world_size=size) as loader:
        figures = {
            "opened_at": time.perf_counter(),
            "CPU s": time.process_time() - cpu,
            "peak MB": high_water_mark(os.getpid()) / _MB,
            "samples": loader.num_samples,
        }
        if steps:
            figures |= read_steps(loader, steps)
        print(json.dumps(figures), flush=True)
        sys.stdin.read()
        exit_within(10)


def loader_options(folder: Path) -> dict[str, Any]:
    """The options of a loader of the simulated dataset."""
    return {
        "tokenizer": str(TOKENIZER),
        "seq_len": SEQ_LEN,
        "batch_size": BATCH_SIZE,
        "local": str(folder / "cache"),
        "num_workers": 1,
        "shuffle_algo": "seekable",
        "tokenizer_backend": "hf",
    }


def read_steps(loader: Any, steps: int) -> dict[str, float]:
    """Read the first batches; returns the seconds to the first, and the CPU time of the others."""
    began, batches = time.perf_counter(), iter(loader)
    next(batches)
    first_s, cpu = time.perf_counter() - began, family_cpu()
    for _ in range(steps):
        next(batches)
    return {
        "s to the first batch": first_s,
        "CPU ms per step": 1e3 * (family_cpu() - cpu) / steps,
    }


def main(arguments: Sequence[str]) -> None:
    serve(**json.loads(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
