"""Document sizes in tokens, which are drawn at random or counted in a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness import note
from cloudload.rows.tokenization.encoders import DocumentTokenizer
from cloudload.rows.tokenization.tokenizer import load_tokenizer


def draw_sizes(count: int) -> list[int]:
    """Draw log-normal sizes like those of web pages: median 493 tokens, mean 902."""
    drawn = np.random.default_rng(0).lognormal(6.2, 1.1, count)
    return [int(size) for size in np.maximum(1, drawn.round())]


def count_tokens(texts: Sequence[str], tokenizer: Path) -> list[int]:
    """Count the tokens of each text as the loader does, including bos and eos."""
    encoder = DocumentTokenizer(load_tokenizer(str(tokenizer)))
    num_framing = sum(token is not None for token in encoder.frames[0])
    chunks = [texts[start : start + 64] for start in range(0, len(texts), 64)]
    bounds = [encoder.encode_flat(chunk)[1] for chunk in chunks]
    sizes = [int(size) + num_framing for offsets in bounds for size in np.diff(offsets)]
    note(f"{tokenizer.name}: {sum(sizes):,} tokens, median {np.median(sizes):.0f} per document")
    return sizes


def repeat_shuffled(sizes: Sequence[int], least: int) -> list[int]:
    """Repeat whole epochs, each with a different shuffle, until there are `least` documents."""
    rng = np.random.default_rng(0)
    epochs = [rng.permutation(sizes) for _ in range(-(-least // len(sizes)))]
    return [int(size) for size in np.concatenate(epochs)]
