"""cloudload: `CloudLoader` over the MDS shards, uncompressed on the disk; rows of 2,048
tokens, batches of 8, endless.

Everything else has its default, except as the side's name says: `tokenizer_backend`, `packing`,
`num_lanes`, `num_workers`, or a `state_dict()` after every batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from benchmarks.harness import UnavailableError
from benchmarks.side import Request, serve_batches

WARM_UP_ROWS_A_LANE = 2


def make_batches(request: Request) -> Iterator[Any]:
    """The ids of the loader's batches."""
    from cloudload import CloudLoader

    options = dict(request.options)
    state_every_batch = options.pop("state_every_batch", False)
    has_backends = "tokenizer_backend" in inspect.signature(CloudLoader.__init__).parameters
    if not has_backends and options.pop("tokenizer_backend", "hf") != "hf":
        raise UnavailableError(
            "this cloudload has no argument tokenizer_backend, and only Hugging Face's tokenizers"
        )
    with CloudLoader(
        str(request.data / "mds"),
        tokenizer=str(request.tokenizer),
        seq_len=request.seq_len,
        batch_size=request.batch_size,
        num_workers=request.num_workers,
        local=request.scratch / "cache",
        **options,
    ) as loader:
        batches = iter(loader)
        # the first row of a lane also costs the rest of its document, so it is not measured
        for _ in range(WARM_UP_ROWS_A_LANE * loader.num_lanes // request.batch_size):
            next(batches)
        for batch in batches:
            if state_every_batch:
                loader.state_dict()
            yield batch["input_ids"]


if __name__ == "__main__":
    serve_batches(make_batches, ["cloudload", "torch", "tokenizers"])
