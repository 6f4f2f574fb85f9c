"""Send work to a process that was not forked, and receive it there.

trainer ─► pickle: functions by name ─► socket ─► import the names, unpickle ─► worker
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

from cloudload.errors import CloudloadError, WorkerError
from cloudload.system.pipes import send

_ADVICE = (
    "Workers that are not forked import the transform by its name. Define the transform at the top "
    "level of a module (not as a lambda, in a notebook, or under `if __name__ == '__main__':`), or "
    "pass start_method='fork'"
)


def send_work(connection: Connection, work: Any) -> None:
    """Send work. Raises `WorkerError` if the work cannot be pickled, and any `CloudloadError` from
    values that are computed during pickling, such as the position of lanes."""
    try:
        send(connection, work)
    except (OSError, CloudloadError):  # these are not pickling errors
        raise
    except Exception as error:
        raise WorkerError(f"cannot send work to a worker: {error}. {_ADVICE}") from error


def receive_work(connection: Connection) -> Any:
    """Receive work. Raises `WorkerError` if this process cannot unpickle it, for example because it
    cannot import a name."""
    try:
        return connection.recv()
    except (EOFError, OSError):  # these are errors of the connection, not of unpickling
        raise
    except Exception as error:
        raise WorkerError(f"a worker cannot load its work: {error}. {_ADVICE}") from error
