"""Hugging Face datasets with torchdata. `load_dataset("json", streaming=True)` reads JSON Lines of
the same documents, and shuffles them with a buffer of 1,000. A batched `.map` tokenizes the
documents, and another cuts the IDs into blocks. A `StatefulDataLoader` reads the blocks, which
`.repeat()` makes endless.

`.map` takes 128 documents at a time. Its default of 1,000 is no faster, and yields rows in bursts
that are seconds apart. As in the documented recipe, the tokens left at the end of a batch, which do
not fill a block, are dropped. They are less than 1% of all tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.peers.racing import Request, serve_batches

SHUFFLE_BUFFER, DOCUMENTS_AT_ONCE = 1000, 128


def make_batches(request: Request) -> Iterator[Any]:
    """Yield the IDs of the StatefulDataLoader's batches."""
    from datasets import load_dataset
    from tokenizers import Tokenizer
    from torchdata.stateful_dataloader import StatefulDataLoader

    tokenizer = Tokenizer.from_file(str(request.tokenizer / "tokenizer.json"))

    def tokenize(samples: dict[str, list[str]]) -> dict[str, Any]:
        encodings = tokenizer.encode_batch_fast(samples["text"], add_special_tokens=False)
        return {"ids": [np.array([*encoding.ids, request.eos], np.int64) for encoding in encodings]}

    def group(samples: dict[str, Any]) -> dict[str, Any]:
        ids = np.concatenate(samples["ids"])
        whole = len(ids) // request.seq_len * request.seq_len
        return {"ids": list(ids[:whole].reshape(-1, request.seq_len))}

    files = sorted(str(file) for file in (request.data / "texts").glob("*.jsonl"))
    documents = load_dataset(
        "json", data_files=files, split="train", streaming=True, cache_dir=str(request.scratch)
    )
    rows = (
        documents.shuffle(seed=17, buffer_size=SHUFFLE_BUFFER)
        .map(tokenize, batched=True, batch_size=DOCUMENTS_AT_ONCE, remove_columns=["text"])
        .map(group, batched=True, batch_size=DOCUMENTS_AT_ONCE)
        .repeat(None)
        .with_format("torch")
    )
    for batch in StatefulDataLoader(
        rows, batch_size=request.batch_size, num_workers=request.num_workers
    ):
        yield batch["ids"]


if __name__ == "__main__":
    serve_batches(make_batches, ["datasets", "torchdata", "torch", "tokenizers"])
