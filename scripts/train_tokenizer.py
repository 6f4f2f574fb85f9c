"""Train the tokenizer of `examples/tokenizer`: a byte-level BPE of 4,096 tokens. Its corpus is
Python's standard library.

    python scripts/train_tokenizer.py examples/tokenizer

Every machine has the library's sources, which contain code and text. The same version of Python
gives the same file.
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
    """A byte-level BPE `tokenizers.Tokenizer`; its special tokens have the first ids, in order."""
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
    """The sources of the standard library, tests and installed packages left out, in the order of
    their names."""
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
