"""Helpers that the backends share: timeouts, length checks, classification of common failures."""

from __future__ import annotations

import errno
import io
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from cloudload.data.storage.redaction import redact
from cloudload.errors import FailureKind, StoreError
from cloudload.system import settle_future

T = TypeVar("T")

_CLIENTS = "botocore urllib3 requests http aiohttp asyncio fsspec azure google"
_LOOK_EVERY_S = 1.0
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)


class ShortReadError(OSError):
    """A body was shorter than its announced length."""


class LengthCheckedReader(io.RawIOBase):
    """A stream that raises `ShortReadError` if its body has fewer than `expected_bytes`.

    This is needed because some clients do not check the length. None turns the check off.
    """

    def __init__(self, body: Any, expected_bytes: int | None) -> None:
        self._body, self._left = body, expected_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._body.read(len(buffer))
        if self._left is not None:
            if not data and self._left:
                raise ShortReadError(f"the response ended {self._left} bytes early")
            self._left -= len(data)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._body.close()
        super().close()


def skip_bytes(stream: Any, count: int) -> None:
    """Read and discard the next `count` bytes of a stream that cannot seek."""
    while count > 0 and (skipped := len(stream.read(min(count, 1 << 20)))):
        count -= skipped


def range_header(start: int, stop: int | None) -> dict[str, str]:
    """The header `Range` for the bytes from `start` to before `stop`; empty for a whole object."""
    if stop is None:
        return {"Range": f"bytes={start}-"} if start else {}
    return {"Range": f"bytes={start}-{stop - 1}"}


def check_tag(url: str, expected: str, found: str) -> None:
    """Raise `StoreError` if an object's tag, `found`, is not `expected`, its tag in a listing.

    An empty tag is unknown, so it is not compared.
    """
    if expected and found and expected != found:
        raise StoreError(
            f"{redact(url)} changed since it was listed: its version was {expected}, and is now "
            f"{found}. Restore the previous version. Otherwise, start the run again, or the "
            "conversion with cloudload convert --overwrite. If the file is listed in a stored "
            "index, first index it again to another location (cloudload index)"
        )


_BROKEN = (TimeoutError, ConnectionError, ShortReadError, EOFError, socket.gaierror, ssl.SSLError)


def call_with_timeout(
    timeout_s: float, call: Callable[[], T], look: Callable[[], object] | None = None
) -> T:
    """Run `call` in a thread and return its result, or raise `TimeoutError` after `timeout_s`.

    The extra thread is needed because DNS lookups and some clients have no timeout. Meanwhile, this
    thread calls `look` every second. After a timeout or an interrupt, `call` keeps running, and its
    result is closed if it has a `close` method. Errors of `call` propagate.
    """
    future: Future[T] = Future()
    threading.Thread(
        target=settle_future, args=(future, call), name="cloudload-store", daemon=True
    ).start()
    deadline = time.monotonic() + timeout_s
    try:
        while (left_s := deadline - time.monotonic()) > 0:
            if wait([future], min(left_s, _LOOK_EVERY_S) if look else left_s).done:
                return future.result()
            if look:
                look()
        raise TimeoutError(f"timed out after {timeout_s:.1f} s")
    except BaseException:  # including Ctrl-C
        future.add_done_callback(_close_result)
        raise


def _close_result(future: Future[Any]) -> None:
    if future.exception() is None and hasattr(result := future.result(), "close"):
        result.close()


def name_setting(endpoint: str, variables: Sequence[str], other: str) -> str:
    """Describe an endpoint, and the environment variable that it came from.

    That is the first of `variables` whose value is the endpoint. If there is none, use `other` as
    the description of the endpoint's origin.
    """
    holders = [
        name for name in variables if os.environ.get(name, "").strip("/ ") == endpoint.strip("/ ")
    ]
    return f"{endpoint} ({f'from {holders[0]}' if holders else other})"


def check_endpoint(variables: Sequence[str]) -> None:
    """Raise `StoreError` if the first of the environment variables that is set is not a URL."""
    for name in variables:
        if value := os.environ.get(name):
            if re.match("https?://.", value):
                return
            raise StoreError(
                f"{name} is {redact(value)!r}, which is not a URL. Begin it with http:// or https://"
            )


def is_on(variable: str) -> bool:
    """Whether an environment variable has a value such as 1, true or yes."""
    return os.environ.get(variable, "").strip().lower() in ("1", "true", "yes", "on")


def status_of(error: BaseException) -> int | None:
    """The HTTP status of a client's error, or None if the error has none."""
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


def pause_asked_by(error: BaseException) -> float:
    """The seconds after which a server asks to try again (Retry-After), or 0 if it does not."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    else:
        headers = getattr(response, "headers", None) or {}
    asked = str(headers.get("retry-after") or headers.get("Retry-After") or "")
    return float(asked) if asked.isdecimal() else 0.0


def failure_kind_of_status(status: int) -> FailureKind:
    """The failure kind of an HTTP status, for an error without more details."""
    if (status >= 500 and status != 501) or status in (408, 429):
        return FailureKind.BUSY
    if status in (401, 403):
        return FailureKind.DENIED
    return FailureKind.MISSING_OBJECT if status == 404 else FailureKind.OTHER


def failure_kind_of_connection(error: BaseException) -> FailureKind:
    """The failure kind of an error without an HTTP status.

    UNTRUSTED for an untrusted certificate, and DENIED for a proxy that requires a login.
    REFUSED, UNKNOWN_HOST or TIMED_OUT if the error or one of its causes is of that kind.
    UNREACHABLE for resets, short bodies, and any other error class of a client library that is not
    a `ValueError`. Otherwise OTHER.
    """
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return FailureKind.UNTRUSTED
    if "407 Proxy" in str(error):
        return FailureKind.DENIED
    if isinstance(error, _BROKEN) or (isinstance(error, OSError) and error.errno in _NO_ROUTE):
        return _why_unreachable(error)
    # a ValueError from a client means an invalid URL
    is_clients = type(error).__module__.partition(".")[0] in _CLIENTS.split()
    is_connection = is_clients and not isinstance(error, ValueError)
    return _why_unreachable(error) if is_connection else FailureKind.OTHER


def _why_unreachable(error: BaseException) -> FailureKind:
    causes = list_causes(error)
    # asyncio reports the errors of a host with several addresses only as text
    if any(isinstance(each, ConnectionRefusedError) for each in causes) or (
        "Connect call failed" in str(error) and f"[Errno {errno.ECONNREFUSED}]" in str(error)
    ):
        return FailureKind.REFUSED
    if any(isinstance(each, socket.gaierror) for each in causes):
        return FailureKind.UNKNOWN_HOST
    if any(isinstance(each, TimeoutError) for each in causes):
        return FailureKind.TIMED_OUT
    return FailureKind.UNREACHABLE


def list_causes(error: BaseException | None) -> list[BaseException]:
    """List an error, its cause or context, the cause's cause, and so on."""
    causes: list[BaseException] = []
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes


def failure_kind_of_any(error: BaseException) -> FailureKind:
    """The failure kind of any client's error, from its class, HTTP status, or message."""
    if isinstance(error, FileNotFoundError):
        return FailureKind.MISSING_OBJECT
    if isinstance(error, PermissionError):
        return FailureKind.DENIED
    # compare class names, so that paramiko and azure need not be imported
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"AuthenticationException", "ClientAuthenticationError"}:
        return FailureKind.BAD_CREDENTIALS
    if (status := status_of(error)) is not None:
        return failure_kind_of_status(status)
    if type(error).__module__.startswith("paramiko"):  # the SSH session broke
        return _why_unreachable(error)
    return failure_kind_of_connection(error)
