"""Byte-level BPE tokenizers that are trained on the spot.

save_tokenizer(train_tokenizer(["one two", "one three"], 300), folder)
"""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

END_OF_TEXT = "<|endoftext|>"


def train_tokenizer(
    texts: Iterable[str], vocabulary_size: int, special_tokens: Iterable[str] = (END_OF_TEXT,)
) -> Any:
    """Train a byte-level BPE `tokenizers.Tokenizer`. Its special tokens have the first IDs."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def small_tokenizer() -> Any:
    """A tokenizer with 400 tokens. ID 0 is `<|endoftext|>`, and ID 1 is `<|pad|>`."""
    texts = [
        "the quick brown fox jumps over the lazy dog",
        "one two three, one two four",
        "Grüße an die Füchse",
        "狐 🦊 狐 🦊",
    ]
    return train_tokenizer(texts * 3, 400, (END_OF_TEXT, "<|pad|>"))


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write the two files that `AutoTokenizer.from_pretrained(folder)` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    Path(folder, "tokenizer.json").write_text(
        tokenizer.to_str(pretty=False) + "\n", encoding="utf-8"
    )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000_000,
    }
    Path(folder, "tokenizer_config.json").write_text(
        json.dumps(config, indent=2) + "\n", encoding="utf-8"
    )


def standard_library_texts() -> Iterator[str]:
    """Yield the standard library's source files by name, without tests and installed packages."""
    root = Path(sysconfig.get_path("stdlib"))
    tests, others = {"test", "tests", "idle_test"}, {"__pycache__", "lib2to3"}
    left_out = {"site-packages", "dist-packages", *tests, *others}
    for path in sorted(root.rglob("*.py")):
        if not left_out.intersection(path.relative_to(root).parts):
            yield path.read_text(encoding="utf-8", errors="ignore")
