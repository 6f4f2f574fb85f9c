"""Make the campaigns' input: a small tokenizer, and datasets of small shards with token lengths."""

from __future__ import annotations

import json
import random
from pathlib import Path

from cloudload import convert_to_mds, count_tokens
from testkit.trained_tokenizers import save_tokenizer, standard_library_texts, train_tokenizer


def make_tokenizer(folder: Path) -> str:
    """Train a BPE tokenizer with 600 tokens, and return the path of its tokenizer.json."""
    texts = (text[:2_000] for text, _ in zip(standard_library_texts(), range(100), strict=False))
    save_tokenizer(train_tokenizer(texts, 600), folder / "tokenizer")
    return str(folder / "tokenizer" / "tokenizer.json")


def write_dataset(folder: Path, url: str, num_documents: int, seed: float) -> None:
    """Write a dataset of 1,500-byte shards. The documents vary in length, and 1% are empty."""
    words, source = random.Random(seed), folder / "corpus.jsonl"
    with source.open("w") as file:
        for number in range(num_documents):
            size = 0 if words.random() < 0.01 else int(words.lognormvariate(3.5, 1.0))
            text = " ".join(
                words.choice(["the", "fox", "jumps", "über", "狐", "🦊", "lazy", "import", "self"])
                for _ in range(size)
            )
            file.write(
                json.dumps(
                    {"id": number, "text": f"{number} {text}" if size else ""}, ensure_ascii=False
                )
                + "\n"
            )
    convert_to_mds([str(source)], url, shard_bytes=1_500, processes=1, progress=False)


def write_lengths(url: str, tokenizer: str) -> None:
    """Count the tokens of a dataset, and write the lengths to its folder."""
    count_tokens(url, tokenizer=tokenizer, tokenizer_backend="hf", processes=1, progress=False)
