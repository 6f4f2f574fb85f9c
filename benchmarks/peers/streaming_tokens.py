"""MosaicML Streaming on pre-tokenized rows: a shuffled `StreamingDataset` in a torch `DataLoader`.

Each sample is a row of 2,048 tokens. With the encoding "bytes", the IDs are int64. The dataset
reads them with `np.frombuffer` and copies them, as llm-foundry's `StreamingTextDataset` does. With
"ndarray", the IDs are int32, and the dataset converts them to int64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.peers.pretokenized import write_mds
from benchmarks.peers.racing import Request, serve_batches

PREDOWNLOAD = 512


def open_rows(folder: str, batch_size: int, remote: str | None = None) -> Any:
    """Open a shuffled dataset in a folder, whose samples are rows, int64 [seq_len].

    If `remote` is given, its shards are downloaded to the folder.
    """
    import torch
    from streaming import StreamingDataset

    class TokenRows(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, at: Any) -> Any:
            tokens = super().__getitem__(at)["tokens"]
            if isinstance(tokens, bytes):
                return torch.from_numpy(np.frombuffer(tokens, np.int64).copy())
            return torch.from_numpy(tokens.astype(np.int64))

    return TokenRows(
        remote=remote, local=folder, shuffle=True, batch_size=batch_size, predownload=PREDOWNLOAD
    )


def make_batches(request: Request) -> Iterator[Any]:
    """Yield the DataLoader's batches, epoch after epoch."""
    from torch.utils.data import DataLoader

    local = request.scratch / "mds"
    write_mds(request, local, samples="rows", encoding=request.options["encoding"])
    loader: DataLoader[Any] = DataLoader(
        open_rows(str(local), request.batch_size),
        batch_size=request.batch_size,
        num_workers=request.num_workers,
        drop_last=True,
    )
    while True:
        yield from loader


if __name__ == "__main__":
    serve_batches(make_batches, ["mosaicml-streaming", "torch"])
