"""Train the tokenizer of `examples/tokenizer`, a byte-level BPE with 4,096 tokens.

    python -m scripts.train_tokenizer examples/tokenizer

The corpus is the source code of Python's standard library, because it is on every machine and
contains both code and text. The same version of Python always produces the same file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from testkit.trained_tokenizers import save_tokenizer, standard_library_texts, train_tokenizer

if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    save_tokenizer(train_tokenizer(standard_library_texts(), 4096), Path(sys.argv[1]))
