"""LitData on pre-tokenized documents.

Before timing starts, `optimize` writes the token IDs of the documents with a `TokensLoader`. A
`StreamingDataLoader` then reads a shuffled `StreamingDataset` with `TokensLoader(block_size=2048)`.
This side does not tokenize, so its speed is an upper bound of LitData's speed on raw text.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.peers.racing import Request, serve_batches

ROWS_A_CHUNK = 4096


class Cut:
    """A picklable function for `optimize`, each call of which yields all documents' IDs once."""

    def __init__(self, tokens: str, offsets: str) -> None:
        self.tokens, self.offsets = tokens, offsets

    def __call__(self, repeat: int) -> Iterator[Any]:
        import torch

        tokens, offsets = np.load(self.tokens, mmap_mode="r"), np.load(self.offsets)
        for start, stop in itertools.pairwise(offsets):
            yield torch.from_numpy(np.array(tokens[start:stop]))


def make_batches(request: Request) -> Iterator[Any]:
    """Yield the StreamingDataLoader's batches, epoch after epoch."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader, optimize

    tokens, offsets = (str(request.ids / f"{name}.npy") for name in ("tokens", "offsets"))
    repeats = -(-request.options["tokens"] // len(np.load(tokens, mmap_mode="r")))
    folder = str(request.scratch / "optimized")
    optimize(
        fn=Cut(tokens, offsets),
        inputs=list(range(repeats)),
        output_dir=folder,
        chunk_size=ROWS_A_CHUNK * request.seq_len,
        item_loader=TokensLoader(),
        num_workers=1,
        verbose=False,
    )
    dataset = StreamingDataset(
        folder, item_loader=TokensLoader(block_size=request.seq_len), shuffle=True
    )
    loader = StreamingDataLoader(
        dataset, batch_size=request.batch_size, num_workers=request.num_workers, drop_last=True
    )
    while True:
        yield from loader


if __name__ == "__main__":
    serve_batches(make_batches, ["litdata", "torch"])
