"""Write pre-tokenized MDS shards for the sides that read them, as documents or as rows.

documents   one sample per document, which ends with an eos
rows        one sample per row of `seq_len` tokens, as llm-foundry's ConcatTokensDataset writes them
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.racing import Request

SHARD_BYTES = 1 << 26


def write_mds(request: Request, folder: Path, *, samples: str, encoding: str) -> None:
    """Write at least `request.options["tokens"]` tokens, by repeating the documents.

    `samples` is `documents` or `rows`. `encoding` is `ndarray:<dtype>`, or `bytes` for the bytes of
    int64 IDs.
    """
    from streaming import MDSWriter

    dtype = "int64" if encoding == "bytes" else encoding.partition(":")[2]
    with MDSWriter(out=str(folder), columns={"tokens": encoding}, size_limit=SHARD_BYTES) as writer:
        for ids in _samples(request, samples):
            array = ids.astype(dtype)
            writer.write({"tokens": array.tobytes() if encoding == "bytes" else array})


def _samples(request: Request, samples: str) -> Iterator[Any]:
    tokens = np.load(request.ids / "tokens.npy", mmap_mode="r")
    offsets = np.load(request.ids / "offsets.npy")
    if samples == "rows":
        offsets = np.arange(0, len(tokens), request.seq_len)
    for _ in range(-(-request.options["tokens"] // len(tokens))):
        for start, stop in itertools.pairwise(offsets.tolist()):
            yield np.array(tokens[start:stop])
