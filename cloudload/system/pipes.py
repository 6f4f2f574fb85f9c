"""Send a value through a pipe. If that fails, the error can be collected safely.

`Connection.send` writes from a view of a `BytesIO`, and the traceback of a failed write refers to
both. If that traceback becomes part of a reference cycle, collecting it aborts Python 3.12.1
(python/cpython#111049) and prints an ignored exception on Python 3.13 (python/cpython#111331).
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any


def send(connection: Connection, value: Any) -> None:
    """Pickle the value and send it; `Connection.recv` receives it.

    Raises `OSError` if the pipe is closed, and the pickler's error if the value has no pickle.
    """
    connection.send_bytes(bytes(ForkingPickler.dumps(value)))
