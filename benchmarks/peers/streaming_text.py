"""MosaicML Streaming, as in llm-foundry: a `StreamingDataset` over the same uncompressed MDS shards
(shuffled, predownload 512). A wrapper dataset, in a torch `DataLoader`, tokenizes and concatenates
the documents in its `__iter__`.

`"calls": "each"` tokenizes one document at a time with the transformers tokenizer, as llm-foundry
does. "groups" passes 64 documents at a time to `encode_batch_fast` of Hugging Face `tokenizers`,
which is faster.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.peers.racing import Request, serve_batches

DOCUMENTS_AT_ONCE, PREDOWNLOAD = 64, 512

Encode = Callable[[list[str]], list[list[int]]]


class ConcatenatedTokens(IterableDataset[Any]):
    """Endless rows of exactly `seq_len` tokens, cut from the concatenated documents.

    An eos follows each document. Rows are int64 [seq_len].
    """

    def __init__(self, source: Any, encode: Encode, at_once: int, eos: int, seq_len: int) -> None:
        self.source, self.encode, self.at_once, self.eos, self.seq_len = (
            source,
            encode,
            at_once,
            eos,
            seq_len,
        )

    def __iter__(self) -> Iterator[Any]:
        pending = np.empty(0, np.int64)
        for texts in self._groups():
            pieces = [np.array([*ids, self.eos], np.int64) for ids in self.encode(texts)]
            pending = np.concatenate([pending, *pieces])
            whole = len(pending) // self.seq_len * self.seq_len
            yield from pending[:whole].reshape(-1, self.seq_len)
            pending = pending[whole:]

    def _groups(self) -> Iterator[list[str]]:
        while True:
            samples = iter(self.source)
            while texts := [sample["text"] for sample in islice(samples, self.at_once)]:
                yield texts


def load_encoder(folder: str, calls: str) -> tuple[Encode, int]:
    """Return a function that encodes texts, and the number of texts to pass in each call."""
    if calls == "groups":
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
        return lambda texts: [
            encoding.ids
            for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ], (DOCUMENTS_AT_ONCE)
    from transformers import AutoTokenizer

    slower = AutoTokenizer.from_pretrained(folder, model_max_length=10**12)
    return lambda texts: [
        slower(text, add_special_tokens=False, truncation=False)["input_ids"] for text in texts
    ], 1


def make_batches(request: Request) -> Iterator[Any]:
    """Yield the DataLoader's batches."""
    from streaming import StreamingDataset

    # Streaming rejects a folder that another job uses, so this side gets a folder of hard links
    local = request.scratch / "mds"
    shutil.copytree(request.data / "mds", local, copy_function=os.link)
    source = StreamingDataset(
        local=str(local), shuffle=True, batch_size=request.batch_size, predownload=PREDOWNLOAD
    )
    encode, at_once = load_encoder(str(request.tokenizer), request.options["calls"])
    rows = ConcatenatedTokens(source, encode, at_once, request.eos, request.seq_len)
    yield from DataLoader(rows, batch_size=request.batch_size, num_workers=request.num_workers)


if __name__ == "__main__":
    serve_batches(make_batches, ["mosaicml-streaming", "torch", "tokenizers", "transformers"])
