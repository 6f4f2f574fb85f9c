"""Readers of the same dataset in one process: StreamingDataset and cloudload."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cloudload import CloudLoader
from testkit.corpora import EOS_ID, byte_tokenizer, write_mds
from testkit.loaders import make_loader, rows_of


def streaming_dataset(kind: type | None = None, **options: Any) -> Any:
    """Remove the shared memory of earlier StreamingDatasets, and return a new one."""
    import streaming

    streaming.base.util.clean_stale_shared_memory()
    return (kind or streaming.StreamingDataset)(**options)


def texts_in(dataset: Any) -> list[str]:
    """The texts of a StreamingDataset, read by index."""
    return [dataset[number]["text"] for number in range(dataset.num_samples)]


def read_by_cloudload(folder: Path, cache: Path, **options: Any) -> list[str]:
    """The texts of an epoch, by default in the dataset's order. Spaces are removed.

    A row has 32 tokens, so a text may have at most 31 bytes before its eos.
    """
    defaults: dict[str, Any] = {
        "num_lanes": 1,
        "num_canonical_nodes": 1,
        "shuffle": False,
        "batch_size": 10,
    }
    defaults |= {"packing": "one_per_row", "seq_len": 32, "epochs": 1}
    with make_loader(str(folder), local=cache, **{**defaults, **options}) as loader:
        return decode(rows_of(loader))


def decode(rows: Iterable[list[int]]) -> list[str]:
    """The texts of rows that have one document each. A row without an eos is padding."""
    return [
        byte_tokenizer().decode(row[: row.index(EOS_ID)]).replace(" ", "")
        for row in rows
        if EOS_ID in row
    ]


# ---------------------------------------------------------------- numbered documents


def write_numbered(folder: str | Path, shards: Sequence[int], first: int = 0) -> str:
    """Write a dataset of shards of these sizes. The text of each document is its number."""
    return write_mds(folder, map(str, range(first, first + sum(shards))), shard_samples=shards)


def open_numbered(data: Any, **options: Any) -> CloudLoader:
    """A loader of numbered documents, whose rows have one document each."""
    return make_loader(data, **{"packing": "one_per_row", "seq_len": 8, "num_lanes": 8, **options})


def numbers_in(batches: Iterable[Any]) -> list[int]:
    """The numbers of the documents in the batches."""
    return list(map(int, decode(rows_of(batches))))
