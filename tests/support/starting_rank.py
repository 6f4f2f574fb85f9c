"""A rank of a job in which one rank, the victim, fails to start iterating, in one of `WAYS`.

    python -m tests.support.starting_rank '{"data": …, "cache": …, "out": …, "rank": 2, "ranks": 4,
                                            "victim": 2, "way": "is killed", "is_first": true}'

The victim acts before the others create their loaders if it `is_first`, and otherwise after they
began to iterate. Prints, as JSON, the seconds from that act to the end of this rank's first
`next()`, and its error.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloudload import CloudLoader
from cloudload.delivery import attendance, gather
from cloudload.errors import CloudloadError, StoreError
from tests.support.corpora import EOS, byte_tokenizer
from tests.support.lone_trainer import meet

GRACE_S = float(os.environ.get("START_GRACE_S", "1"))
CONFIRM_S = float(os.environ.get("START_CONFIRM_S", "1"))
LOOK_EVERY_S = float(os.environ.get("START_LOOK_EVERY_S", "0.3"))
SLOW_S = 4.0


def main() -> None:
    options = json.loads(sys.argv[1])
    out, rank = Path(options["out"]), options["rank"]
    vars(attendance)["_GRACE_S"], vars(gather)["_LOOK_EVERY_S"] = GRACE_S, LOOK_EVERY_S
    vars(attendance)["_CONFIRM_S"] = CONFIRM_S
    meet(options)
    if rank == options["victim"]:
        if not options["is_first"]:
            _await(lambda: len(list(out.glob("created-*"))) == options["ranks"] - 1)
            time.sleep(1.0)  # so that the others wait for this rank
        WAYS[options["way"]](options)
    else:
        if options["is_first"]:
            _await((out / "go").exists)
        loader = make_loader(options)
        (out / f"created-{rank}").touch()
        read(loader, options)
    os._exit(0)  # otherwise, clearing torch's modules would take longer than everything before


def make_loader(options: dict[str, Any], data: str | None = None) -> CloudLoader:
    return CloudLoader(
        data or options["data"],
        tokenizer=byte_tokenizer(),
        eos=EOS,
        seq_len=32,
        num_lanes=12,
        batch_size=1,
        local=options["cache"],
        num_workers=0,
    )


def read(loader: CloudLoader, options: dict[str, Any]) -> None:
    """Take the first batch, and print the seconds until then and the error, if any."""
    error = ""
    try:
        next(iter(loader))
    except CloudloadError as caught:
        error = f"{type(caught).__name__}: {caught}"
    acted_at = Path(options["out"], "acted")
    seconds = time.time() - acted_at.stat().st_mtime if acted_at.exists() else 0.0
    print(json.dumps([round(seconds, 1), error]), flush=True)
    sys.stdin.readline()  # the parent ends all ranks together


def raise_error(options: dict[str, Any]) -> None:
    _note(options)
    make_loader(options, f"{options['data']}/missing")


def raise_and_live(options: dict[str, Any]) -> None:
    with contextlib.suppress(StoreError):
        raise_error(options)
    sys.stdin.readline()


def be_killed(options: dict[str, Any]) -> None:
    make_loader(options)
    if os.fork() == 0:  # a child that outlives this process must not hide its end
        _await(Path(options["out"], "done").exists)
        os._exit(0)
    _note(options)
    os.kill(os.getpid(), signal.SIGKILL)


def be_slow(options: dict[str, Any]) -> None:
    _note(options)
    time.sleep(SLOW_S / 2)
    loader = make_loader(options)
    time.sleep(SLOW_S / 2)
    read(loader, options)


def try_again(options: dict[str, Any]) -> None:
    with contextlib.suppress(StoreError):
        raise_error(options)
    loader = make_loader(options)
    time.sleep(SLOW_S)
    read(loader, options)


def fail_to_resume(options: dict[str, Any]) -> None:
    loader = make_loader(options)
    _note(options)
    loader.load_state_dict({"rows": 3})


def lack_a_disk(options: dict[str, Any]) -> None:
    Path(options["out"], "file").touch()
    loader = make_loader({**options, "cache": str(Path(options["out"], "file", "cache"))})
    _note(options)
    next(iter(loader))


WAYS: dict[str, Callable[[dict[str, Any]], None]] = {
    "raises": raise_error,
    "raises and lives": raise_and_live,
    "is killed": be_killed,
    "is slow": be_slow,
    "tries again": try_again,
    "cannot resume": fail_to_resume,
    "has no disk": lack_a_disk,
}


def _note(options: dict[str, Any]) -> None:
    Path(options["out"], "acted").touch()


def _await(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


if __name__ == "__main__":
    main()
