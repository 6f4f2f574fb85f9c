"""The sources of batches of `benchmarks.gpu.train`: cloudload on text, and Streaming on token IDs.

A batch is a dict of `input_ids` and `segment_ids`, int64 [rows, seq_len], without end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.peers.streaming_tokens import open_rows
from cloudload import CloudLoader
from testkit.servers import BUCKET

NAMES = ("input_ids", "segment_ids")
TokenBatch = dict[str, Tensor]


@dataclass(frozen=True)
class Data:
    """Two datasets of the same documents, and the form of their batches."""

    tokenizer: Path
    eos: int
    seq_len: int
    rows: int
    """The rows of a batch."""
    workers: int
    pins: bool
    """Whether batches are in page-locked memory."""
    text: str = f"s3://{BUCKET}/text"
    token_rows: str = f"s3://{BUCKET}/rows"
    shard_bytes: int = 8 << 20


def read_by_cloudload(data: Data, cache: Path) -> Iterator[TokenBatch]:
    with CloudLoader(
        data.text,
        tokenizer=data.tokenizer,
        seq_len=data.seq_len,
        batch_size=data.rows,
        num_workers=data.workers,
        fields=["segment_ids"],
        pin_memory=data.pins,
        local=cache,
    ) as loader:
        for batch in loader:
            yield {name: batch[name] for name in NAMES}


def write_rows(data: Data, ids: Path) -> None:
    """Write the token IDs of a folder as rows, each an MDS sample, as llm-foundry does."""
    from streaming import MDSWriter

    tokens = np.load(ids / "tokens.npy").astype(np.int64)
    rows = tokens[: len(tokens) // data.seq_len * data.seq_len].reshape(-1, data.seq_len)
    columns = {"tokens": "bytes"}
    with MDSWriter(out=data.token_rows, columns=columns, size_limit=data.shard_bytes) as writer:
        for row in rows:
            writer.write({"tokens": row.tobytes()})


def read_by_streaming(data: Data, cache: Path) -> Iterator[TokenBatch]:
    loader = DataLoader(
        open_rows(str(cache), data.rows, remote=data.token_rows),
        batch_size=data.rows,
        num_workers=data.workers,
        collate_fn=partial(find_segments, eos=data.eos),
        pin_memory=data.pins,
        drop_last=True,
    )
    while True:
        yield from loader


def find_segments(rows: Sequence[Tensor], eos: int) -> TokenBatch:
    """Join rows of token IDs, int64 [seq_len], and number the documents, which end with an eos."""
    input_ids = torch.stack(list(rows))
    ends = (input_ids == eos).long()
    return dict(zip(NAMES, (input_ids, ends.cumsum(1) - ends), strict=True))
