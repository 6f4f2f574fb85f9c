"""Epochraft, as in its README: `from_mosaicml` over a `StreamingDataset` of the same MDS shards
(shuffled, predownload 512), `.tokenize(tokenizer)`, `.ensure_bos_eos(tokenizer)`,
`.concat_chunk(2048)`, `.batch(8)`. It tokenizes in threads of the training process, one per worker
(`max_workers` of `.tokenize`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

from benchmarks.peers.racing import Request, serve_batches

PREDOWNLOAD = 512


def make_batches(request: Request) -> Iterator[Any]:
    """Yield the IDs of the pipeline's batches."""
    from epochraft import CheckpointableDataset
    from streaming import StreamingDataset
    from transformers import AutoTokenizer

    local = request.scratch / "mds"
    shutil.copytree(request.data / "mds", local, copy_function=os.link)
    source = StreamingDataset(
        local=str(local), shuffle=True, batch_size=request.batch_size, predownload=PREDOWNLOAD
    )
    tokenizer = AutoTokenizer.from_pretrained(str(request.tokenizer), model_max_length=10**12)
    pipeline = (
        CheckpointableDataset.from_mosaicml(source, repeat=True)
        .tokenize(tokenizer, max_workers=request.num_workers)
        .ensure_bos_eos(tokenizer)
        .concat_chunk(request.seq_len)
        .batch(request.batch_size)
    )
    for batch in pipeline:
        yield batch["input_ids"]


if __name__ == "__main__":
    serve_batches(
        make_batches, ["epochraft", "mosaicml-streaming", "torch", "tokenizers", "transformers"]
    )
