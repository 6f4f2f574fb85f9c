"""A process of `examples/train_elastic.py` that starts warm, and logs its training data.

    python -m testkit.elastic_rank FOLDER ARGUMENT...

Each rank writes `FOLDER/<pid>.jsonl`, in the format of `noted_steps`. Before each forward pass, it
logs its world, its rank, the row after the batch, and the IDs of its rows. After each commit, it
logs the row after the committed step.
"""

from __future__ import annotations

import json
import os
import sys
from functools import wraps
from pathlib import Path
from typing import Any

from testkit import ROOT
from testkit.warm_start import stand_in


def main() -> None:
    folder = sys.argv.pop(1)
    sys.path.insert(0, str(ROOT / "examples"))
    import train_elastic

    train_elastic.RANK_COMMAND = [*stand_in(), __name__, folder]
    if "ELASTIC_STORE" in os.environ:
        _note(train_elastic, Path(folder))
    train_elastic.main()
    sys.stdout.flush()
    os._exit(0)  # skip the cleanup of torch's modules, which takes longer than the run


def _note(train_elastic: Any, folder: Path) -> None:
    log = (folder / f"{os.getpid()}.jsonl").open("w", buffering=1)
    rank = train_elastic.Rank
    make = rank.__init__
    commit = train_elastic.Progress.commit

    @wraps(make)
    def make_and_note(self: Any, *args: Any) -> None:
        make(self, *args)
        forward = self.model.forward

        def forward_and_note(input_ids: Any, **others: Any) -> Any:
            line = {
                "world": self.world,
                "rank": train_elastic.dist.get_rank(),
                "rows": self.loader.rows,
                "ids": input_ids.tolist(),
            }
            log.write(json.dumps(line) + "\n")
            return forward(input_ids, **others)

        self.model.forward = forward_and_note

    def commit_and_note(self: Any, rows: int) -> None:
        commit(self, rows)
        log.write(json.dumps({"committed": rows}) + "\n")

    rank.__init__, train_elastic.Progress.commit = make_and_note, commit_and_note


if __name__ == "__main__":
    main()
