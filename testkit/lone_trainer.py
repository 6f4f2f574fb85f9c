"""A training loop that records each batch and saves its state, and can end in several ways.

    python -m testkit.lone_trainer '{"data": …, "cache": …, "out": …, "workers": 2,
                                           "batches": 50, "settings": {…}}'

For each batch, it writes the first row's index and the IDs to `out/rows.jsonl`, replaces
`out/state.json`, and prints "step N". If `"way"` is one of `WAYS`, it stops after its first batch,
prints "ready", waits for a line on stdin, and ends its loop that way. For most ways, it then prints
JSON: the seconds that the end took, and the error. With `"rank"`, `"ranks"` and `"rendezvous"` (a
file), it is one of several ranks. Before a transform fails, it writes the time (`time.monotonic`)
to the file `$FAULT_TIME`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from cloudload import CloudLoader, Retry
from testkit.corpora import EOS, byte_tokenizer

_HOARD: list[bytes] = []
_BITE_BYTES = 4 << 20


def explode(sample: dict[str, Any]) -> str:
    """A transform that raises an exception on one document."""
    if _is_it(sample):
        raise ValueError("this document is too much")
    return str(sample["text"])


def leave(sample: dict[str, Any]) -> str:
    """A transform that calls `sys.exit` on one document."""
    if _is_it(sample):
        sys.exit("I have had enough")
    return str(sample["text"])


def swell(sample: dict[str, Any]) -> str:
    """A transform that allocates 1 EiB on one document, which raises MemoryError."""
    if _is_it(sample):
        return "x" * (1 << 60)
    return str(sample["text"])


def hoard(sample: dict[str, Any]) -> str:
    """A transform that joins the control group `$FAULT_CGROUP` on one document.

    It then fills the group's memory until the kernel kills its process.
    """
    if _is_it(sample):
        Path(os.environ["FAULT_CGROUP"], "cgroup.procs").write_text(str(os.getpid()))
        while True:
            _HOARD.append(os.urandom(_BITE_BYTES))
    return str(sample["text"])


def crash(sample: dict[str, Any]) -> str:
    """A transform that gets SIGSEGV on one document, as if native code had crashed."""
    if _is_it(sample):
        os.kill(os.getpid(), signal.SIGSEGV)
    return str(sample["text"])


TRANSFORMS = {function.__name__: function for function in (explode, leave, swell, hoard, crash)}
WAYS = ("close", "abandon", "two iterators", "end", "fail")


def _is_it(sample: dict[str, Any]) -> bool:
    if not sample["text"].startswith("77:"):
        return False
    if path := os.environ.get("FAULT_TIME"):
        Path(path).write_text(str(time.monotonic()))
    return True


def train(options: dict[str, Any]) -> None:
    """Read and record batches, and save the state after each one, until the loop ends."""
    out, settings = Path(options["out"]), dict(options.get("settings", {}))
    if name := settings.pop("transform", None):
        settings["transform"] = TRANSFORMS[name]
    if retry := settings.pop("retry", None):
        settings["retry"] = Retry(**retry)
    if "ranks" in options:
        _meet(options)
    loader = CloudLoader(
        options["data"],
        tokenizer=byte_tokenizer(),
        eos=EOS,
        seq_len=32,
        num_lanes=12,
        num_canonical_nodes=4,
        batch_size=2,
        local=options["cache"],
        num_workers=options["workers"],
        **settings,
    )
    state_file = out / "state.json"
    if state_file.exists():
        loader.load_state_dict(json.loads(state_file.read_text()))
    if "way" in options:
        _end_loop(loader, options["way"])
        return
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


def _meet(options: dict[str, Any]) -> None:
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    rendezvous = f"file://{options['rendezvous']}"
    ranks, timeout = (
        {"rank": options["rank"], "world_size": options["ranks"]},
        timedelta(minutes=10),
    )
    dist.init_process_group("gloo", init_method=rendezvous, timeout=timeout, **ranks)


def _end_loop(loader: CloudLoader, way: str) -> None:
    """Read one batch, wait for a line on stdin, and end the loop in the given way.

    If the process is still running, it exits after another line.
    """
    batches = [iter(loader)]
    next(batches[0])
    print("ready", flush=True)
    sys.stdin.readline()
    if way == "end":
        return
    if way == "fail":
        raise RuntimeError("the loss is not a number")
    began, error = time.monotonic(), ""
    if way == "close":
        loader.close()
        error = _error_of(batches[0])
    elif way == "abandon":
        batches.clear()
    else:
        batches.append(iter(loader))
        error = _error_of(batches[0])
    print(json.dumps([time.monotonic() - began, error]), flush=True)
    sys.stdin.readline()


def _error_of(batches: Iterator[Any]) -> str:
    try:
        next(batches)
    except Exception as error:
        return f"{type(error).__name__}: {error}".removesuffix(": ")
    return "a batch"


def main() -> None:
    # restore the default, because background jobs of a shell inherit an ignored SIGINT
    signal.signal(signal.SIGINT, signal.default_int_handler)
    train(json.loads(sys.argv[1]))


if __name__ == "__main__":
    main()
