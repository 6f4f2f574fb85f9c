"""Measure the time and memory to plan and finish a conversion of a million files.

    python -m benchmarks.scale.conversion --files 1_000_000

A simulated store lists the files and returns the notes of finished segments, so no file is
converted. A segment has ten files. Each row of the result describes one process:

plan      lists the files, then makes and stores the plan
worker    reads the plan, as one job of an array does
finish    joins the notes of the segments, and writes the index

CPU seconds and the peak resident set include the simulated store's work, which is to list the files
and, in `finish`, to make the notes. The last column is a hash of the objects that the process
wrote, except its report.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from benchmarks.figures import Row
from benchmarks.harness import memory_of, note, run_child
from benchmarks.options import Options
from cloudload import convert_to_mds
from cloudload.data.storage import locations
from cloudload.data.storage.base import Backend, ObjectStream, StoredObject
from cloudload.errors import FailureKind, WorkerError
from cloudload.tools.convert.conversion_plan import ConversionPlan

RAW, OUT = "s3://simulated/raw", "s3://simulated/out"
FILE_BYTES = 26_500_000
FILES_PER_SEGMENT = 10
SHARD_BYTES = 20_000_000


class SimulatedStore(Backend):
    """A store of made-up input files. It saves only the plan, as a file in `folder`."""

    def __init__(self, folder: Path, files: int, shards: int, digest: str) -> None:
        super().__init__(timeout_s=1)
        self._folder, self._files, self._shards, self._digest = folder, files, shards, digest
        self.written: dict[str, bytes] = {}
        """Maps the URL of each uploaded object to the SHA-256 of its bytes."""

    def list(self, url: str) -> Iterator[StoredObject]:
        if url == RAW:
            for number in range(self._files):
                name = f"{RAW}/crawl-{number // 1000:04}/part-{number:07}.jsonl.gz"
                yield StoredObject(name, FILE_BYTES + number % 997, f'"{number:032x}"')
        elif self._plan.exists() and url in (OUT, f"{OUT}/.convert"):
            yield StoredObject(f"{OUT}/.convert/plan.json", 1, "")
            for segment in range(self._segments if self._digest else 0):
                yield StoredObject(f"{OUT}/.convert/{segment:05}.done.json", 1, f'"{segment:032x}"')
                for shard in range(self._shards if url == OUT else 0):
                    name = f"{OUT}/{segment:05}/{_shard_name(shard)}"
                    yield StoredObject(name, SHARD_BYTES, f'"{segment:032x}"')

    def open(
        self, url: str, start: int = 0, tag: str = "", stop: int | None = None
    ) -> ObjectStream:
        if url == f"{OUT}/.convert/plan.json" and self._plan.exists():
            return ObjectStream(self._plan.open("rb", buffering=0))
        if self._digest and url.endswith(".done.json"):
            return ObjectStream(_Bytes(self._note(int(url.rpartition("/")[2].partition(".")[0]))))
        raise FileNotFoundError(url)

    def upload(self, path: Path, url: str, deadline_s: float) -> None:
        written = hashlib.sha256()
        with path.open("rb") as file:
            while data := file.read(1 << 20):
                written.update(data)
        self.written[url] = written.digest()

    def create(self, path: Path, url: str, deadline_s: float) -> None:
        self._plan.write_bytes(path.read_bytes())
        self.upload(path, url, deadline_s)

    def delete(self, url: str) -> None:
        pass

    def peek(self, url: str) -> Iterator[str]:
        return iter(())

    def failure_kind(self, error: BaseException) -> FailureKind:
        is_missing = isinstance(error, FileNotFoundError)
        return FailureKind.MISSING_OBJECT if is_missing else FailureKind.OTHER

    @property
    def _plan(self) -> Path:
        return self._folder / "plan.json"

    @property
    def _segments(self) -> int:
        return -(-self._files // FILES_PER_SEGMENT)

    def _note(self, segment: int) -> bytes:
        entries = [_entry(segment, shard) for shard in range(self._shards)]
        counts = {"documents": 9000 * self._shards, "empty": 1, "bad": 0, "bad_records": []}
        counts |= {"input_bytes": FILES_PER_SEGMENT * FILE_BYTES, "text_bytes": 10**9}
        note = {"plan": self._digest, "entries": {"": entries}, "counts": counts}
        return json.dumps(note).encode()


class _Bytes(io.RawIOBase):
    """A raw stream that reads bytes from memory."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        return self._stream.readinto(buffer)


def _shard_name(shard: int) -> str:
    return f"shard.{shard:05}.mds.zstd"


def _entry(segment: int, shard: int) -> dict[str, object]:
    hashes = {"xxh64": f"{segment * 1000 + shard:016x}", "samples-xxh128": f"{segment:032x}"}
    raw = {"basename": f"shard.{shard:05}.mds", "bytes": 67_108_000, "hashes": hashes}
    stored = {"basename": _shard_name(shard), "bytes": SHARD_BYTES, "hashes": hashes}
    return {
        "column_encodings": ["str", "str"],
        "column_names": ["id", "text"],
        "column_sizes": [None, None],
        "compression": "zstd",
        "format": "mds",
        "hashes": ["xxh64"],
        "raw_data": raw,
        "samples": 9000,
        "size_limit": 67_108_864,
        "version": 2,
        "zip_data": stored,
    }


# ---------------------------------------------------------------- processes


class _Stopping(Executor):
    """An executor that raises an error for the first unit, so that nothing is converted."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        raise RuntimeError("stop")


OWN_OPTIONS: dict[str, dict[str, Any]] = {
    "plan": {},
    "worker": {"worker": "0/1000"},
    "finish": {"finish": True},
}
"""The options of `convert_to_mds` that differ between the steps."""


def measure(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Run each step in a new process, and yield the table. Prints the plan's size to stderr."""
    shape = {"folder": str(folder), "files": int(args.files), "shards": int(args.shards)}
    rows: list[Row] = []
    for step in OWN_OPTIONS:
        if step == "finish":
            plan = ConversionPlan.parse((folder / "plan.json").read_bytes())
            (folder / "digest").write_text(plan.digest)
            del plan
        rows.append(run_child(run_step, None, step=step, **shape))
    size = (folder / "plan.json").stat().st_size
    note(f"the size of the plan is {size / 1e6:,.1f} MB")
    yield f"{args.files:,.0f} files", rows


def run_step(step: str, folder: str, files: int, shards: int) -> Row:
    """Run a step in this process, and return its figures."""
    digest = Path(folder, "digest").read_text() if step == "finish" else ""
    store = SimulatedStore(Path(folder), files, shards, digest)
    locations.BACKENDS["s3"] = lambda _: store
    began, before = time.process_time(), memory_of("VmHWM")
    # `_Stopping` makes the conversion fail at its first unit
    with contextlib.suppress(WorkerError):
        convert_to_mds(RAW, OUT, progress=False, executor=_Stopping(), **OWN_OPTIONS[step])
    digests = hashlib.sha256(
        b"".join(value for name, value in sorted(store.written.items()) if "report" not in name)
    )
    return {
        "step": step,
        "CPU s": time.process_time() - began,
        "MiB before": before / (1 << 20),
        "peak MiB": memory_of("VmHWM") / (1 << 20),
        "written": digests.hexdigest()[:16],
    }


def main() -> None:
    options = Options(__doc__)
    options.add_amount("files", 1_000_000, 1_000, "number of input files")
    options.add_amount("shards", 10, 2, "number of shards in each segment")
    options.run(measure)


if __name__ == "__main__":
    main()
