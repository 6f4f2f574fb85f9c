"""A training loop of one process that notes each batch and saves after it, for tests that end it in every way.

    python lone_trainer.py '{"data": …, "cache": …, "out": …, "workers": 2, "batches": 50, "settings": {…}}'

Writes `out/rows.jsonl`, a line a batch: its first row and its ids; `out/state.json`, replaced after each; and prints "step N".
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from awkward import EOS, byte_tokenizer

from cloudload import CloudLoader, Retry


def explode(sample: dict[str, Any]) -> str:
    """A transform that fails on one document."""
    if sample["text"].startswith("77:"):
        raise ValueError("this document is too much")
    return str(sample["text"])


def leave(sample: dict[str, Any]) -> str:
    """A transform that ends its process on one document."""
    if sample["text"].startswith("77:"):
        sys.exit("I have had enough")
    return str(sample["text"])


def swell(sample: dict[str, Any]) -> str:
    """A transform that asks for more memory than there is."""
    if sample["text"].startswith("77:"):
        return "x" * (1 << 60)
    return str(sample["text"])


def crash(sample: dict[str, Any]) -> str:
    """A transform in which native code fails."""
    if sample["text"].startswith("77:"):
        os.kill(os.getpid(), signal.SIGSEGV)
    return str(sample["text"])


TRANSFORMS = {function.__name__: function for function in (explode, leave, swell, crash)}


def train(options: dict[str, Any]) -> None:
    out, settings = Path(options["out"]), dict(options.get("settings", {}))
    if name := settings.pop("transform", None):
        settings["transform"] = TRANSFORMS[name]
    if retry := settings.pop("retry", None):
        settings["retry"] = Retry(**retry)
    loader = CloudLoader(
        options["data"],
        tokenizer=byte_tokenizer(),
        eos=EOS,
        seq_len=32,
        num_lanes=12,
        batch_size=2,
        local=options["cache"],
        num_workers=options["workers"],
        **settings,
    )
    state_file = out / "state.json"
    if state_file.exists():
        loader.load_state_dict(json.loads(state_file.read_text()))
    with (out / "rows.jsonl").open("a") as log:
        for step, batch in enumerate(loader, 1):
            log.write(json.dumps([batch.first_row, batch["input_ids"].tolist()]) + "\n")
            log.flush()
            state_file.with_suffix(".new").write_text(json.dumps(loader.state_dict()))
            state_file.with_suffix(".new").replace(state_file)
            print("step", step, flush=True)
            if step == options["batches"]:
                break
            time.sleep(options.get("pause_s", 0.0))
    if options.get("closes", True):
        loader.close()


if __name__ == "__main__":
    train(json.loads(sys.argv[1]))
