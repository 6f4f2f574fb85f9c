"""Train the tokenizer of `examples/tokenizer`, a byte-level BPE with 4,096 tokens.

    python scripts/train_tokenizer.py examples/tokenizer

The corpus is the source code of Python's standard library, because it is on every machine and
contains both code and text. The same version of Python always produces the same file.
"""

from __future__ import annotations

import json
import os
import sys
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
    left_out = {
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "idle_test",
        "__pycache__",
        "lib2to3",
    }
    for path in sorted(root.rglob("*.py")):
        if not left_out.intersection(path.relative_to(root).parts):
            yield path.read_text(encoding="utf-8", errors="ignore")


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    save_tokenizer(train_tokenizer(standard_library_texts(), 4096), Path(sys.argv[1]))
