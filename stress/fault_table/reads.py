"""Read damaged caches, data and states, for the sections `cache`, `data` and `state`.

Each read is a process that constructs a loader with 2 workers and reads an epoch, or fails. The
datasets of `cache` are on S3. Those of `data` and `state` are in a local folder.

seen        the error's class and message, or the number of rows and whether they equal those of
            undamaged data, followed by leftovers and warnings, if there are any
seconds     from the construction of the loader to the end of the epoch, or to the error
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cloudload import CloudLoader
from cloudload.data.storage.locations import Location
from stress.fault_table.markdown import shorten, table
from testkit.corpora import EOS, byte_tokenizer, random_documents, write_mds
from testkit.left_behind import left_overs, orphans, shared_memory
from testkit.servers import start_s3

HEADS = ("fault", "seconds:", "seen")
MOST_S = 200.0
DOCUMENTS = random_documents(3, 300)
OTHERS = random_documents(4, 300)
State = dict[str, Any]


@dataclass
class Workspace:
    """The folders and datasets of a section, and a way to read the datasets."""

    folder: Path
    root: str
    """The URL or folder of the datasets."""
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def new_path(self, kind: str = "cache") -> Path:
        """Return a new path in the folder, such as `cache-7`, where nothing exists yet."""
        return self.folder / f"{kind}-{next(self.numbers)}"

    def data(self, documents: list[str] = DOCUMENTS, **settings: Any) -> str:
        """Write a new dataset to the section's store, and return its location."""
        return write_mds(
            f"{self.root}/mds-{next(self.numbers)}",
            documents,
            **{"shard_bytes": 4_000, "compression": "zstd", **settings},
        )

    def read(
        self,
        data: Any,
        cache: Path | None = None,
        *,
        meanwhile: Callable[[], object] | None = None,
        **settings: Any,
    ) -> Outcome:
        """Read an epoch in a new process, which calls `meanwhile` once the loader is created."""
        before, cache = shared_memory(), cache or self.new_path()
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        log = self.new_path("log")
        process = context.Process(
            target=_read, args=(theirs, log, meanwhile, {"data": data, "local": cache, **settings})
        )
        process.start()
        theirs.close()
        outcome = Outcome(MOST_S, "the read hung", "")
        if ours.poll(MOST_S):
            with contextlib.suppress(EOFError):
                seconds, message = ours.recv()
                outcome = Outcome(seconds, message, log.read_text())
        process.join(10)
        process.kill()
        files = [] if cache.is_mount() else left_overs(cache)
        if left := [*sorted(orphans(before)), *(path.name for path in files)]:
            outcome = replace(outcome, message=f"{outcome.message}. LEFT: {left}")
        return outcome

    def state(self, data: str, **settings: Any) -> State:
        """Return the state of a run after its first three batches."""
        loader = _make_loader(
            {"data": data, "local": self.new_path(), "num_workers": 0, **settings}
        )
        with loader:
            list(loader.take(3))
            return dict(loader.state_dict())


@dataclass(frozen=True)
class Outcome:
    """The outcome of a read: its seconds, its rows or error, and the warnings in its log."""

    seconds: float
    message: str
    warnings: str


def _make_loader(settings: Mapping[str, Any]) -> CloudLoader:
    rows = {"tokenizer": byte_tokenizer(), "eos": EOS, "seq_len": 64, "num_lanes": 12, "epochs": 1}
    given = {**rows, "batch_size": 4, "num_workers": 2, **settings}
    return CloudLoader(given.pop("data"), **given)


def _read(
    answer: Connection, log: Path, meanwhile: Callable[[], object] | None, settings: dict[str, Any]
) -> None:
    """Read an epoch in a separate process, and send (seconds, message) to `answer`."""
    logging.basicConfig(filename=log, format="%(levelname)s %(message)s", level=logging.WARNING)
    log.touch()
    state, began, digest, rows = settings.pop("state", None), time.monotonic(), hashlib.sha256(), 0
    try:
        with _make_loader(settings) as loader:
            if state is not None:
                loader.load_state_dict(state)
            if meanwhile is not None:
                meanwhile()
            for batch in loader:
                digest.update(batch["input_ids"].numpy().tobytes())
                rows += len(batch["input_ids"])
        message = f"{rows} rows #{digest.hexdigest()[:8]}"
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    answer.send((time.monotonic() - began, message))


def measure_reads(
    section: str, cases: Mapping[str, Case], names: Sequence[str], folder: Path
) -> str:
    """Measure the named faults of a section, or all if there are no names, and return the table."""
    with contextlib.ExitStack() as running:
        root = str(folder / "store")
        if section == "cache":
            server = running.enter_context(start_s3())
            os.environ.update(server.environment())
            root = "s3://cloudload/files"
        work = Workspace(folder, root)
        work.state(work.data())  # imports modules once, for all forked reads
        sound = {
            work.read(work.data(documents)).message: kind
            for documents, kind in ((DOCUMENTS, ""), (OTHERS, "new "))
        }
        rows = [
            (name, *_show(act(work), sound))
            for name, act in cases.items()
            if not names or name in names
        ]
    return table(section.capitalize(), HEADS, rows)


def _show(outcome: Outcome, sound: Mapping[str, str]) -> tuple[str, str]:
    message = outcome.message
    if message in sound:
        message = f"every {sound[message]}row, as from undamaged data"
    lines = sorted(set(outcome.warnings.splitlines()))
    warnings = "".join(f". Log: {shorten(line)}" for line in lines)
    return f"{outcome.seconds:.1f}", f"{shorten(message)}{warnings}"


Case = Callable[[Workspace], Outcome]
"""A function that causes a fault, reads, and returns the outcome."""


def change(path: Path, damage: Callable[[bytes], bytes]) -> None:
    """Replace the bytes of a file with the result of `damage`."""
    path.write_bytes(damage(path.read_bytes()))


def flip(data: bytes) -> bytes:
    """Return the data with one bit flipped in its middle byte."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def read_index(url: str) -> dict[str, Any]:
    """Read the index of a dataset."""
    return dict(json.loads(Location(f"{url}/index.json").read()))


def zipped_name(url: str, number: int) -> str:
    """Return the name of a stored shard, by the shard's index."""
    return str(read_index(url)["shards"][number]["zip_data"]["basename"])
