"""cloudload on pre-tokenized data: an endless `CloudLoader` with `tokens_key` over uncompressed MDS
shards, with rows of 2,048 tokens and batches of 8.

The IDs are `ndarray:uint16` if they all fit, otherwise `ndarray:int32`. With "documents", each
sample is a document, and the loader packs the documents. With "rows", each sample is a row, as
written by llm-foundry's `ConcatTokensDataset`. All other options have their defaults, and no
tokenizer is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.peers.cloudload_text import warm_up
from benchmarks.peers.pretokenized import write_mds
from benchmarks.peers.racing import Request, serve_batches


def make_batches(request: Request) -> Iterator[Any]:
    """Yield the IDs of the loader's batches, int64 [8, 2048], after warming up every lane."""
    from cloudload import CloudLoader

    most = int(np.load(request.ids / "tokens.npy", mmap_mode="r").max())
    data = request.scratch / "mds"
    encoding = "ndarray:uint16" if most < 1 << 16 else "ndarray:int32"
    write_mds(request, data, samples=request.options["samples"], encoding=encoding)
    with CloudLoader(
        str(data),
        tokens_key="tokens",
        seq_len=request.seq_len,
        batch_size=request.batch_size,
        num_workers=request.num_workers,
        local=request.scratch / "cache",
    ) as loader:
        for batch in warm_up(loader):
            yield batch["input_ids"]


if __name__ == "__main__":
    serve_batches(make_batches, ["cloudload", "torch"])
