"""Kill fine-tuning jobs, and compare every row with transformers and a simple packer.

    python -m stress.chats --rows 50000

A run reads conversations, or 95% text and 5% conversations by tokens. It continues on 1, 3, 7 and 2
ranks, real processes that are killed with SIGKILL and start again at the last checkpoint. From the
third world on, `seq_len` may be another. Packing, epochs, token lengths, the shuffle, and the
options of `Chat` are drawn, and some messages contain names of special tokens. The template of some
runs lacks `{% generation %}` blocks.

The expected IDs and labels are those of `apply_chat_template(return_assistant_tokens_mask=True)` of
transformers, and the expected spans are those of a packer that knows only the sizes of documents.
The IDs, the labels and the spans of every row are compared. The exit status is 1 if one differs, if
a row is missing, or if the ranks of a finite run end on different steps.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from stress.campaign import make_parser, run_in_folder
from stress.chats.campaign import Campaign

OPTIONS: dict[str, tuple[Any, str]] = {
    "--rows": (50_000, "minimum number of rows to compare"),
    "--rows-per-run": (1_600, "approximate number of rows in a run"),
    "--minutes": (1_000.0, "number of minutes after which no new run starts"),
    "--seed": (0, "random seed"),
}


def main() -> int:
    args = make_parser(__doc__, OPTIONS).parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return run_in_folder("chats", lambda folder: Campaign(args, folder).run())


if __name__ == "__main__":
    sys.exit(main())
