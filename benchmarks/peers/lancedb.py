"""LanceDB on pre-tokenized documents, with `StreamingDataset` and `StreamingDataLoader` of
`lancedb.streaming`. It shuffles clumps of 64 rows, with one split per worker. It tokenizes nothing,
so its speed is a ceiling.

With `"packing": "packed"`, each table row has one document's IDs, and the loader packs them
(`pack_sequences=2048`). With "rows", each table row has 2,048 IDs, and a `transform` converts them
to tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.peers.racing import Request, serve_batches

ROWS_AT_ONCE = 64  # by default, LanceDB fetches this many rows at a time


def make_table(request: Request, packed: bool) -> Any:
    """Create a table of documents if `packed`, or else of rows of exactly `seq_len` IDs."""
    import lancedb
    import pyarrow as pa

    tokens, offsets = (np.load(request.ids / f"{name}.npy") for name in ("tokens", "offsets"))
    repeats = -(-request.options["tokens"] // len(tokens))
    if packed:
        # drop eos, because the loader appends it
        ids = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(tokens, pa.int32()))
        ids = pa.array(
            [document[:-1] for document in ids.to_numpy(zero_copy_only=False)], pa.list_(pa.int32())
        )
    else:
        whole = len(tokens) // request.seq_len * request.seq_len
        ids = pa.FixedSizeListArray.from_arrays(
            pa.array(tokens[:whole], pa.int32()), request.seq_len
        )
    part = pa.table({"ids": ids})
    table = lancedb.connect(str(request.scratch / "table")).create_table("tokens", part)
    for _ in range(repeats - 1):
        table.add(part)
    return table


def tensors_of(batch: Any) -> Any:
    """Return the rows of a record batch as one tensor, [rows, seq_len]."""
    import torch

    rows = batch.column(0)
    return torch.from_numpy(rows.flatten().to_numpy().reshape(len(rows), -1).copy())


def make_batches(request: Request) -> Iterator[Any]:
    """Yield the IDs of the StreamingDataLoader's batches, epoch after epoch."""
    from lancedb.streaming import StreamingDataLoader, StreamingDataset

    packed = request.options["packing"] == "packed"
    table = make_table(request, packed)
    how: dict[str, Any] = {"transform": tensors_of}
    if packed:
        pad = max(request.specials) + 1_000_000  # an ID that no tokenizer uses
        how = {
            "pack_sequences": request.seq_len,
            "eos_id": request.eos,
            "pad_id": pad,
            "blocks_per_epoch": "auto",
        }
    epoch = 0
    while True:
        dataset = StreamingDataset(
            table,
            columns=["ids"],
            epoch=epoch,
            num_splits=max(1, request.num_workers),
            shuffle_clump_size=ROWS_AT_ONCE,
            **how,
        )
        loader = StreamingDataLoader(
            dataset,
            batch_size=request.batch_size,
            num_workers=request.num_workers,
            multiprocessing_context="forkserver",
        )
        for batch in loader:
            yield batch["input_ids"] if packed else batch
        epoch += 1


if __name__ == "__main__":
    serve_batches(make_batches, ["lancedb", "pylance", "torch"])
