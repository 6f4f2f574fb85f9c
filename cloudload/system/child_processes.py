"""Check that child processes can import the main script, and send values to them safely.

    spawn, forkserver ─► new interpreter ─► imports the main script ─► receives its work

Unless a child is forked, it first imports the program's main script. The script must therefore be a
file, and must not start processes when it is imported.
"""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

GUARD_ADVICE = (
    "A worker that is not forked first imports the program's main script, and that import may have "
    "failed (see stderr). In the script, put the code that starts the work under `if __name__ == "
    "'__main__':`"
)
"""The advice in an error about a worker that ended before it received its work."""


def find_missing_script() -> str | None:
    """Return the main script's name, such as `<stdin>`, if other processes cannot import it.

    If they can, return None.
    """
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    is_importable = path is None or main.__spec__ is not None or os.path.exists(path)
    return None if is_importable else path


def send(connection: Connection, value: Any) -> None:
    """Pickle the value and send it; `Connection.recv` receives it.

    Raises `OSError` if the pipe is closed, and the pickler's error if the value has no pickle.

    `Connection.send` writes from a view of a `BytesIO`, and the traceback of a failed write refers
    to both. If that traceback becomes part of a reference cycle, collecting it aborts Python 3.12.1
    (python/cpython#111049) and prints an ignored exception on Python 3.13 (python/cpython#111331).
    An error of this function can be collected safely.
    """
    connection.send_bytes(bytes(ForkingPickler.dumps(value)))
