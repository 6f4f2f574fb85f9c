"""cloudload: an endless `CloudLoader` over uncompressed MDS shards on disk, with rows of 2,048
tokens and batches of 8.

All other options have their defaults, except those in the side's name: `tokenizer_backend`,
`packing`, `num_lanes`, `num_workers`, or a `state_dict()` after every batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from benchmarks.peers.racing import Request, serve_batches

if TYPE_CHECKING:
    from cloudload import Batch, CloudLoader

WARM_UP_ROWS_A_LANE = 2


def make_batches(request: Request) -> Iterator[Any]:
    """Yield the IDs of the loader's batches, int64 [8, 2048], after warming up every lane."""
    from cloudload import CloudLoader

    options = dict(request.options)
    state_every_batch = options.pop("state_every_batch", False)
    with CloudLoader(
        str(request.data / "mds"),
        tokenizer=str(request.tokenizer),
        seq_len=request.seq_len,
        batch_size=request.batch_size,
        num_workers=request.num_workers,
        local=request.scratch / "cache",
        **options,
    ) as loader:
        for batch in warm_up(loader):
            if state_every_batch:
                loader.state_dict()
            yield batch["input_ids"]


def warm_up(loader: CloudLoader) -> Iterator[Batch]:
    """Return an iterator over the loader's batches after the first two rows of every lane.

    To make its first row, a lane also reads the rest of the document that the row cuts. The warm-up
    keeps this additional cost out of the measurement.
    """
    batches = iter(loader)
    for _ in range(WARM_UP_ROWS_A_LANE * loader.num_lanes // loader.batch_size):
        next(batches)
    return batches


if __name__ == "__main__":
    serve_batches(make_batches, ["cloudload", "torch", "tokenizers"])
