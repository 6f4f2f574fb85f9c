"""A replica of `examples/train_torchft.py` that logs its steps (`testkit.noted_steps`).

python -m tests.frameworks.torchft_replica FOLDER ARGUMENT...
"""

from __future__ import annotations

import json
import os
import sys
from functools import wraps
from pathlib import Path
from typing import Any

from testkit import ROOT


def main() -> None:
    log = Path(sys.argv.pop(1), f"{os.getpid()}.jsonl").open("w", buffering=1)
    sys.path.insert(0, str(ROOT / "examples"))
    import train_torchft

    make, step = train_torchft.Replica.__init__, train_torchft.train_step

    @wraps(make)
    def make_and_note(self: Any, *args: Any) -> None:
        make(self, *args)
        forward = self.model.forward

        def forward_and_note(input_ids: Any, **others: Any) -> Any:
            rank, size = self.world
            line = {"world": size, "rank": rank, "rows": self.loader.rows}
            log.write(json.dumps({**line, "ids": input_ids.tolist()}) + "\n")
            return forward(input_ids, **others)

        self.model.forward = forward_and_note

    def step_and_note(manager: Any, replica: Any) -> None:
        before = manager.current_step()
        step(manager, replica)
        if manager.current_step() > before and replica.rows == replica.loader.rows:
            log.write(json.dumps({"committed": replica.rows}) + "\n")

    train_torchft.Replica.__init__, train_torchft.train_step = make_and_note, step_and_note
    train_torchft.main()


if __name__ == "__main__":
    main()
