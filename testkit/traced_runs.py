"""A run over two streams whose documents have IDs, for tests of `trace` and `find`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloudload import CloudLoader, Stream
from testkit.corpora import random_documents, write_mds

STEPS, SAVED, BATCH = 40, 7, 6
TEXTS = {"web": random_documents(1, 200), "books": random_documents(2, 30)}
MakeLoader = Callable[..., CloudLoader]


def write_streams(folder: Path) -> Path:
    for name, texts in TEXTS.items():
        ids = [f"{name}/{number}" for number in range(len(texts))]
        write_mds(folder / name, texts, shard_bytes=2_000, extra={"id": ("str", ids)})
    return folder


def loaders_of(folder: Path, tokenizer: Path) -> MakeLoader:
    def make_loader(**settings: Any) -> CloudLoader:
        streams = [
            Stream(str(folder / name), name=name, proportion=share)
            for name, share in (("web", 0.8), ("books", 0.2))
        ]
        if settings.get("epochs"):
            streams = [Stream(str(folder / name), name=name) for name in TEXTS]
        defaults: dict[str, Any] = {
            "tokenizer": tokenizer,
            "seq_len": 48,
            "num_lanes": 12,
            "batch_size": BATCH,
            "num_workers": 0,
        }
        return CloudLoader(streams, local=folder / "cache", **{**defaults, **settings})

    return make_loader


def consume(loader: CloudLoader, steps: int = STEPS) -> tuple[list[Any], dict[str, Any]]:
    """Read at most `steps` batches. Returns them, and the loader's state after the first 7."""
    batches = []
    for batch in loader.take(steps):
        batches.append(batch)
        if len(batches) == SAVED:
            state = json.loads(json.dumps(loader.state_dict()))
    return batches, state
