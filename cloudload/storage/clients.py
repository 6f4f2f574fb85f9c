"""What the clients of all stores need: a time limit for any call, bodies that may not end early,
statuses, broken connections."""

from __future__ import annotations

import errno
import io
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from cloudload.storage.base import Trouble

T = TypeVar("T")

_CLIENTS = {
    "botocore",
    "urllib3",
    "requests",
    "http",
    "aiohttp",
    "asyncio",
    "fsspec",
    "azure",
    "google",
}


class ShortReadError(OSError):
    """A body ended before the length that its header promised."""


class Counted(io.RawIOBase):
    """A body that fails when it ends early, whatever its client says."""

    def __init__(self, body: Any, expected: int | None) -> None:
        self._body, self._left = body, expected

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._body.read(len(buffer))
        if self._left is not None:
            if not data and self._left:
                raise ShortReadError(f"the body ended {self._left} bytes early")
            self._left -= len(data)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._body.close()
        super().close()


def in_time(seconds: float, call: Callable[[], T]) -> T:
    """What `call` returns, or `TimeoutError`. It runs in a thread: name servers and some clients
    know no time limit.

    A call that is given up goes on until it ends by itself; what it returns then is closed.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="cloudload-store", daemon=True).start()
    try:
        wait([future], seconds)
        if future.done():
            return future.result()
    except BaseException:  # Ctrl-C, too
        future.add_done_callback(_close_result)
        raise
    future.add_done_callback(_close_result)
    raise TimeoutError(f"not finished after {seconds:.1f} s")


def _close_result(future: Future[Any]) -> None:
    if future.exception() is None and hasattr(result := future.result(), "close"):
        result.close()


def status_of(error: BaseException) -> int | None:
    """The HTTP status that an error of any client carries."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        response = response.get("ResponseMetadata", {})
        return int(response["HTTPStatusCode"]) if "HTTPStatusCode" in response else None
    found = (
        getattr(holder, name, None)
        for holder in (error, response)
        for name in ("status", "status_code", "code")
    )
    return next((value for value in found if isinstance(value, int)), None)


def trouble_of_status(status: int) -> Trouble:
    """What a status means where nothing else is known."""
    if (status >= 500 and status != 501) or status in (408, 429):
        return Trouble.BUSY
    return {401: Trouble.DENIED, 403: Trouble.DENIED, 404: Trouble.MISSING_OBJECT}.get(
        status, Trouble.OTHER
    )


def trouble_of_connection(error: BaseException) -> Trouble:
    """Resets, timeouts, refused connections, unknown hosts and short bodies pass, from whichever
    client."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return Trouble.UNTRUSTED
    if "407 Proxy" in str(error):
        return Trouble.DENIED
    if isinstance(
        error,
        TimeoutError | ConnectionError | ShortReadError | socket.gaierror | ssl.SSLError | EOFError,
    ):
        return Trouble.UNREACHABLE
    if isinstance(error, OSError) and error.errno in (
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ENETDOWN,
        errno.EHOSTDOWN,
    ):
        return Trouble.UNREACHABLE
    # a ValueError is about a URL that is none
    is_clients = type(error).__module__.partition(".")[0] in _CLIENTS and not isinstance(
        error, ValueError
    )
    return Trouble.UNREACHABLE if is_clients else Trouble.OTHER


def trouble_of_any(error: BaseException) -> Trouble:
    """By what the clients' errors have in common: Python's own classes, an HTTP status, a broken
    connection."""
    if isinstance(error, FileNotFoundError):
        return Trouble.MISSING_OBJECT
    if isinstance(error, PermissionError):
        return Trouble.DENIED
    # of paramiko and azure, which are not imported for this
    if {kind.__name__ for kind in type(error).__mro__} & {
        "AuthenticationException",
        "ClientAuthenticationError",
    }:
        return Trouble.BAD_CREDENTIALS
    if (status := status_of(error)) is not None:
        return trouble_of_status(status)
    if type(error).__module__.startswith("paramiko"):  # of a session that broke, once it was let in
        return Trouble.UNREACHABLE
    return trouble_of_connection(error)
