"""A small dataset, a loader of it, and what it hands out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cloudload import CloudLoader
from tests.support.awkward import EOS, byte_tokenizer
from tests.support.corpora import random_documents, write_mds

SEQ_LEN = 16
VOCABULARY = 512

Rows = list[list[int]]


def write_documents(folder: Any) -> str:
    """60 documents."""
    return write_mds(folder, random_documents(7, 60), shard_bytes=2_000)


def make_loader(folder: str, **options: Any) -> CloudLoader:
    """In this process, with batches of 4 rows."""
    defaults = {
        "tokenizer": byte_tokenizer(),
        "eos": EOS,
        "seq_len": SEQ_LEN,
        "batch_size": 4,
        "num_workers": 0,
        "num_lanes": 12,
    }
    return CloudLoader(folder, **{**defaults, **options})


def rows_of(loader: CloudLoader, number: int) -> Rows:
    """Those of the next batches."""
    return [row for batch in loader.take(number) for row in batch["input_ids"].tolist()]


class Model(nn.Module):
    """A bag of words that notes the rows that it is trained on, and evaluated on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(VOCABULARY))
        self.trained: Rows = []
        self.evaluated: Rows = []

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        (self.trained if self.training else self.evaluated).extend(input_ids.tolist())
        return {"loss": self.weight[input_ids].mean()}
