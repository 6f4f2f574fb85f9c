"""The process of a deferred comparison: `python -m cloudload.tokenization.comparing CACHE_FOLDER`.

It reads a tokenizer.json from its standard input, and writes the result to the cache folder.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from cloudload.tokenization.backend import check_deferred

# yield to the training process and its workers, which share the cores
_NICENESS = 10


def main() -> None:
    """Compare the backends for the tokenizer.json on standard input."""
    os.nice(_NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback if the user interrupts the run
    text = sys.stdin.buffer.read().decode()
    json.loads(text)  # fails if the parent died before it had written the whole text
    check_deferred(text, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
