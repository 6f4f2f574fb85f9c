"""A run over two streams whose documents have IDs, for tests of `trace` and `find`.

read = traced.consume(packing="best_fit")          # 40 steps, once for all tests
trace_steps(read.run, range(8, 10), **read.delivery)
read.places(stream=1, sample=4)                    # where a document is, after the state
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudload import Batch, CloudLoader, Stream
from cloudload.loading.workers.trace import TracedSpan
from cloudload.provenance import Run, open_run
from testkit.corpora import random_documents, write_mds

STEPS, SAVED, BATCH = 40, 7, 6
TEXTS = {"web": random_documents(1, 200), "books": random_documents(2, 30)}
Place = tuple[int, ...]
"""(step, row, epoch, start, stop) of a span."""


def write_streams(folder: Path) -> Path:
    for name, texts in TEXTS.items():
        ids = [f"{name}/{number}" for number in range(len(texts))]
        write_mds(folder / name, texts, shard_bytes=2_000, extra={"id": ("str", ids)})
    return folder


def places_in(
    batches: Iterable[Batch], first_step: int = 1
) -> Counter[tuple[tuple[int, int], Place]]:
    """The document (stream, sample) and the place of each span in the batches."""
    return Counter(
        ((stream, sample), (step, row, epoch, start, stop))
        for step, batch in enumerate(batches, first_step)
        for row, stream, epoch, sample, start, stop in batch.spans.tolist()
    )


def places_of(found: Iterable[Any]) -> list[Place]:
    """The places of the occurrences that `find_document` returns, sorted."""
    return sorted((each.step, each.row, each.epoch, each.start, each.stop) for each in found)


@dataclass(frozen=True)
class Consumed:
    """The batches that a run has read, their spans, and its state after step `SAVED`."""

    batches: list[Batch]
    spans: list[list[TracedSpan]]
    state: dict[str, Any]
    local: str

    @classmethod
    def of(cls, loader: CloudLoader, steps: int = STEPS) -> Consumed:
        """Read at most `steps` batches, and close the loader."""
        batches: list[Batch] = []
        with loader:
            for batch in loader.take(steps):
                batches.append(batch)
                if len(batches) == SAVED:
                    state = json.loads(json.dumps(loader.state_dict()))
            spans = [loader.trace(batch) for batch in batches]
            return cls(batches, spans, state, str(loader.worker_plan().inputs.cache_root))

    @property
    def run(self) -> Run:
        return open_run(self.state)

    @property
    def delivery(self) -> dict[str, Any]:
        """Options of a query that reads in this process."""
        return {"local": self.local, "num_workers": 0}

    @property
    def flags(self) -> list[str]:
        """The flags of a command that reads in its process."""
        return ["--local", self.local, "--workers", "0"]

    def places(self, stream: int, sample: int) -> list[Place]:
        """The places of a document after the state, sorted."""
        return sorted(
            place
            for document, place in places_in(self.batches)
            if document == (stream, sample) and place[0] > SAVED
        )

    def write(self, path: Path) -> Path:
        """Write the state to a file, and return its path."""
        path.write_text(json.dumps(self.state))
        return path


class TracedRuns:
    """Loaders of the two streams. What a run reads is kept for the next test."""

    def __init__(self, folder: Path, tokenizer: Path) -> None:
        self.folder, self._tokenizer = write_streams(folder), tokenizer
        self._consumed: dict[str, Consumed] = {}

    def make(self, data: Any = None, **settings: Any) -> CloudLoader:
        """A loader of `data`: by default, of a mixture, or of one corpus in a finite run."""
        if data is None:
            shares = (None, None) if settings.get("epochs") else (0.8, 0.2)
            data = [
                Stream(str(self.folder / name), name=name, proportion=share)
                for name, share in zip(TEXTS, shares, strict=True)
            ]
        defaults: dict[str, Any] = {"tokenizer": self._tokenizer, "seq_len": 48, "num_lanes": 12}
        defaults |= {"batch_size": BATCH, "num_workers": 0, "local": self.folder / "cache"}
        return CloudLoader(data, **{**defaults, **settings})

    def consume(self, **settings: Any) -> Consumed:
        """What a run with these settings reads."""
        key = repr(settings)
        if key not in self._consumed:
            self._consumed[key] = Consumed.of(self.make(**settings))
        return self._consumed[key]
