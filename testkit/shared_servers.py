"""A server that all processes of a test run share. The first process starts it, and stops it when
no process uses it.

    worker 0    starts the server, writes a note ······ waits for worker 1, stops the server
    worker 1                    reads the note ···················· exits
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from testkit.servers import GCSServer, S3Server
from testkit.warm_start import WarmServer

Server = TypeVar("Server", S3Server, GCSServer, WarmServer)


@contextlib.contextmanager
def shared(
    folder: Path, kind: type[Server], start: Callable[[], AbstractContextManager[Server]]
) -> Iterator[Server]:
    """Yield the server that the note of this kind in `folder` describes. If there is no note, or
    its owner has died, start a server and write a note."""
    note = folder / f"{kind.__name__}.json"
    with (
        contextlib.ExitStack() as exits,
        note.with_suffix(".starting").open("w") as starting,
        note.with_suffix(".users").open("w") as users,
    ):
        fcntl.flock(starting, fcntl.LOCK_EX)
        owner, facts = json.loads(note.read_text()) if note.exists() else (None, {})
        is_ours = not _is_running(owner)
        if is_ours:
            server = exits.enter_context(start())
            note.write_text(json.dumps([os.getpid(), asdict(server)]))
        else:
            server = kind(**facts)
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(starting, fcntl.LOCK_UN)
        try:
            yield server
        finally:
            if is_ours:
                fcntl.flock(starting, fcntl.LOCK_EX)
                note.unlink()
                fcntl.flock(starting, fcntl.LOCK_UN)
                fcntl.flock(users, fcntl.LOCK_EX)  # wait until all other users have released it


def _is_running(owner: int | None) -> bool:
    """Whether the process that started a server is running. The server dies with that process."""
    return owner is not None and Path(f"/proc/{owner}").exists()
