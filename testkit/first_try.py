"""What someone does who tries cloudload in a folder, as one program that prints its results.

    python -m testkit.first_try FOLDER TOKENIZER

It converts a corpus with two processes and without any, uses the tools, and reads the rows of a run
in this process and in a worker, with a resume, and with a limit of the shard cache. It prints JSON:
what the commands printed, the rows, and the platforms of its processes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from cloudload import CloudLoader
from cloudload.cli import main as run_command
from testkit.corpora import random_documents

_COMMANDS = (
    "convert corpus.jsonl out --processes 2 --quiet --shard-bytes 4k --keep source",
    "convert corpus.jsonl again --processes 1 --quiet --shard-bytes 4k --keep source",
    "count out --tokenizer {tokenizer} --processes 2 --quiet",
    "info out",
    "head out -n 3",
    "check out --quiet --tokenizer {tokenizer}",
    "plan --data out --tokenizer {tokenizer} --seq-len 64 --batch-size 4 --steps 50 --no-measure",
    "rows --data out --tokenizer {tokenizer} --seq-len 64 --steps 1 --out rows.html",
    "trace --data out --tokenizer {tokenizer} --seq-len 64 --steps 2",
)
_OUTPUTS = ("out", "again")
_SECONDS = re.compile(r"seconds +[\d.]+")


def note_platform(sample: dict[str, Any]) -> str:
    """A transform that notes the platform of the process in which it runs."""
    if not (note := Path(f"platform-{os.getpid()}")).exists():
        note.write_text(sys.platform)
    return str(sample["text"])


def read_rows(tokenizer: str, **options: Any) -> list[list[int]]:
    """Read 12 batches of a run, and resume after the fifth. Check that both read the same."""
    settings: dict[str, Any] = {"tokenizer": tokenizer, "seq_len": 64, "batch_size": 4}
    with CloudLoader("out", **settings, **options) as loader:
        batches = iter(loader)
        rows = [next(batches)["input_ids"] for _ in range(5)]
        state = json.loads(json.dumps(loader.state_dict()))
        rows += [next(batches)["input_ids"] for _ in range(7)]
    with CloudLoader("out", **settings, **options) as loader:
        loader.load_state_dict(state)
        resumed = [batch["input_ids"] for batch in loader.take(7)]
    assert [each.tolist() for each in resumed] == [each.tolist() for each in rows[5:]]
    return [row for each in rows for row in each.tolist()]


def main(folder: str, tokenizer: str) -> None:
    os.chdir(folder)
    lines = [json.dumps({"text": each, "source": "a test"}) for each in random_documents(0, 400)]
    Path("corpus.jsonl").write_text("\n".join(lines))
    said = {}
    for command in _COMMANDS:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            assert run_command(command.format(tokenizer=tokenizer).split()) == 0, command
        said[command] = _SECONDS.sub("…", output.getvalue())
    shards = [[path.read_bytes() for path in sorted(Path(out).glob("*.mds*"))] for out in _OUTPUTS]
    assert shards[0] == shards[1]
    assert len(shards[0]) > 2
    result = {
        "said": said,
        "rows": read_rows(tokenizer, num_workers=0),
        "with a cache limit": read_rows(
            tokenizer, num_workers=0, cache_limit="40kb", local="cache"
        ),
        "in a worker": read_rows(tokenizer, num_workers=1, transform=note_platform),
        "page": Path("rows.html").read_text(),
    }
    platforms = [path.read_text() for path in Path().glob("platform-*")]
    print(json.dumps({"platforms": [sys.platform, *platforms], "result": result}))


if __name__ == "__main__":
    main(*sys.argv[1:])
