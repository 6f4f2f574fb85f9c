"""Run an example, write down what it pulls from the loader and what its model is trained on, and kill it in mid-training.

    record.py '{"log": folder, "kill_at": 15}' examples/train_torch.py s3://… --steps 20

Each process writes `log/<rank>-<pid>.jsonl`: a line "pulled" for each batch that the loader hands out, and for each forward pass
a line "trained" with a hash of every row and the loss. With `kill_at` the process is killed when that forward pass begins.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import torch


def main(options: dict[str, Any], script: str) -> None:
    sys.path[:0] = [str(Path(script).parent), str(Path(__file__).resolve().parents[2] / "examples")]
    import tiny_gpt

    from cloudload import CloudLoader

    log = Path(options["log"], f"{os.environ.get('RANK', '0')}-{os.getpid()}.jsonl").open("w", buffering=1)
    forward, record = tiny_gpt.GPT.forward, CloudLoader._record
    passes = 0

    def note(**line: Any) -> None:
        log.write(json.dumps(line) + "\n")

    def record_and_note(self: CloudLoader, position: Any) -> None:
        record(self, position)
        note(pulled=position.rows)

    def forward_and_note(self: Any, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        nonlocal passes
        if not self.training:
            return forward(self, input_ids, labels)
        passes += 1
        if passes == options.get("kill_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        outputs = forward(self, input_ids, labels)
        hashes = [hashlib.sha256(row.cpu().numpy().tobytes()).hexdigest()[:16] for row in input_ids]
        note(trained=hashes, loss=outputs["loss"].item())
        return outputs

    tiny_gpt.GPT.forward = forward_and_note  # type: ignore[method-assign]
    CloudLoader._record = record_and_note  # type: ignore[method-assign]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    settings, sys.argv = json.loads(sys.argv[1]), sys.argv[2:]
    main(settings, sys.argv[0])
