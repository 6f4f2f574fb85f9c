"""Readers of the same dataset in one process: StreamingDataset and cloudload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cloudload import CloudLoader
from testkit.corpora import EOS, EOS_ID, byte_tokenizer


def streaming_dataset(kind: type | None = None, **options: Any) -> Any:
    """Remove the shared memory of earlier StreamingDatasets, and return a new one."""
    import streaming

    streaming.base.util.clean_stale_shared_memory()
    return (kind or streaming.StreamingDataset)(**options)


def read_by_cloudload(folder: Path, cache: Path, **options: Any) -> list[str]:
    """The texts of an epoch, by default in the dataset's order. Spaces are removed.

    A row has 32 tokens, so a text may have at most 31 bytes before its eos.
    """
    defaults = {"num_lanes": 1, "num_canonical_nodes": 1, "shuffle": False}
    loader = CloudLoader(
        str(folder),
        tokenizer=byte_tokenizer(),
        eos=EOS,
        seq_len=32,
        batch_size=10,
        packing="one_per_row",
        num_workers=0,
        epochs=1,
        local=cache,
        **{**defaults, **options},
    )
    with loader:
        rows = [row for batch in loader for row in batch["input_ids"].tolist()]
    decode = byte_tokenizer().decode
    return [decode(row[: row.index(EOS_ID)]).replace(" ", "") for row in rows if EOS_ID in row]
