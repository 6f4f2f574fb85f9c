"""Run a module as a warm program, and exit with the program's exit code or signal.

    warm_stand_in.py ADDRESS MODULE [ARGUMENT]...

This script starts in milliseconds, because it imports little. If it is killed, so is the program.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Sequence

HEADER_BYTES = 8


def request(
    address: str,
    streams: Sequence[int],
    module: str,
    arguments: Sequence[str],
    variables: dict[str, str],
    *,
    has_session: bool,
) -> socket.socket:
    """Request a program with these streams (file descriptors). The returned connection receives the
    program's PID, and later its exit code, each on a line."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    program = {
        "module": module,
        "arguments": list(arguments),
        "variables": variables,
        "folder": os.getcwd(),
        "has_session": has_session,
    }
    message = json.dumps(program).encode()
    socket.send_fds(connection, [len(message).to_bytes(HEADER_BYTES, "big")], streams)
    connection.sendall(message)
    return connection


def main() -> None:
    address, module, *arguments = sys.argv[1:]
    with (
        request(address, (0, 1, 2), module, arguments, dict(os.environ), has_session=False) as it,
        it.makefile() as lines,
    ):
        _, code = lines.readline(), int(lines.readline())
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
