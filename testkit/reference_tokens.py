"""The tokens of single documents with bos and eos, with which tests compare rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cloudload.rows.tokenization.encoders import DocumentTokenizer
from cloudload.system.arrays import Tokens


def encode(
    tokenizer: DocumentTokenizer, documents: Sequence[str], streams: Sequence[int]
) -> list[Tokens]:
    """The IDs of each document, framed by its stream's bos and eos: arrays of int32 [tokens]."""
    ids, offsets = tokenizer.encode_flat(documents)
    bodies = np.split(ids, offsets[1:-1])
    frames = [tokenizer.frames[stream] for stream in streams]
    return [
        np.array(
            [*([] if bos is None else [bos]), *body, *([] if eos is None else [eos])], np.int32
        )
        for body, (bos, eos) in zip(bodies, frames, strict=True)
    ]
