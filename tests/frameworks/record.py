"""Run an example, record the batches that it fetches and trains on, and kill it during training.

    python -m tests.frameworks.record '{"log": folder, "kill_at": 15}'
        examples/train_torch.py s3://… --steps 20

Each process writes `log/<rank>-<pid>.jsonl`. It has a "pulled" line for each batch that the loader
returns, and a "trained" line for each forward pass, with a hash of every row and, if known, the
loss. With `kill_at`, the process is killed at the start of that forward pass, counted from 1.
`model` names the model's class, "package.module:Class", if it is not that of the examples.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from cloudload.loading.delivery.run_log import RunLog
    from cloudload.run.position import Position


def main() -> None:
    options, sys.argv = json.loads(sys.argv[1]), sys.argv[2:]
    script = Path(sys.argv[0])
    sys.path.insert(0, str(script.parent))
    # import the example first, because it may have to run code before its framework is imported
    example = importlib.import_module(script.stem)
    module, _, name = options.get("model", "tiny_gpt:GPT").partition(":")
    model = getattr(importlib.import_module(module), name)

    from cloudload.loading.delivery.run_log import RunLog

    log = Path(options["log"], f"{os.environ.get('RANK', '0')}-{os.getpid()}.jsonl").open(
        "w", buffering=1
    )
    forward, record = model.forward, RunLog.record
    passes = 0

    def note(**line: Any) -> None:
        log.write(json.dumps(line) + "\n")

    def record_and_note(self: RunLog, position: Position) -> None:
        record(self, position)
        note(pulled=position.rows)

    @functools.wraps(forward)  # frameworks inspect the signature
    def forward_and_note(self: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        nonlocal passes
        if not self.training:
            return forward(self, input_ids, *args, **kwargs)
        passes += 1
        if passes == options.get("kill_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        outputs = forward(self, input_ids, *args, **kwargs)
        hashes = [hashlib.sha256(row.cpu().numpy().tobytes()).hexdigest()[:16] for row in input_ids]
        note(
            trained=hashes,
            **(
                {"loss": outputs["loss"].item()}
                if isinstance(outputs, dict) and "loss" in outputs
                else {}
            ),
        )
        return outputs

    model.forward = forward_and_note
    RunLog.record = record_and_note  # type: ignore[method-assign]
    example.main()
    # everything is recorded, so skip the framework's cleanup, which takes longer than a step
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
