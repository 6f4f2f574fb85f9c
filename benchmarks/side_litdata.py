"""LitData on documents that were tokenized before: `optimize` wrote their ids with a
`TokensLoader`, outside of the timing; a `StreamingDataset` with `TokensLoader(block_size=2048)`,
shuffled, is read through a `StreamingDataLoader`. It tokenizes nothing: a ceiling.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.side import Request, serve_batches

ROWS_A_CHUNK = 4096


class Cut:
    """Give the ids of each document, once for every repeat; `optimize` wants a picklable
    callable."""

    def __init__(self, tokens: str, offsets: str) -> None:
        self.tokens, self.offsets = tokens, offsets

    def __call__(self, repeat: int) -> Iterator[Any]:
        import torch

        tokens, offsets = np.load(self.tokens, mmap_mode="r"), np.load(self.offsets)
        for start, stop in itertools.pairwise(offsets):
            yield torch.from_numpy(np.array(tokens[start:stop]))


def make_batches(request: Request) -> Iterator[Any]:
    """The batches of the StreamingDataLoader, epoch after epoch."""
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
