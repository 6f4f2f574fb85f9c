"""The tokens of whole documents, collected from the rows of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cloudload import CloudLoader
from testkit import loaders


def open_epoch(data: Any, local: Path, **settings: Any) -> CloudLoader:
    """Make a loader of one epoch, with 2 lanes and batches of 2 rows."""
    defaults = {"num_lanes": 2, "batch_size": 2, "epochs": 1}
    return loaders.make_loader(data, local=local, **{**defaults, **settings})


def read_all(loader: CloudLoader) -> dict[tuple[int, int], list[int]]:
    """The token IDs of every document, by (stream, sample), joined from the document's spans."""
    found: dict[tuple[int, int], list[tuple[int, list[int]]]] = {}
    with loader:
        for batch in loader:
            place: dict[int, int] = {}
            for row, stream, _, sample, start, stop in batch.spans.tolist():
                first = place.get(row, 0)
                place[row] = first + stop - start
                found.setdefault((stream, sample), []).append(
                    (start, batch["input_ids"][row, first : place[row]].tolist())
                )
    return {
        key: [token for _, tokens in sorted(parts) for token in tokens]
        for key, parts in found.items()
    }
