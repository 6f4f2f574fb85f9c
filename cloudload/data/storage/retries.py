"""Send a request to a store until it succeeds, and log long waits.

    attempt 1 ── fails ──► INFO, pause ──► attempt 2 ── fails ──► INFO, pause ──► … ──► StoreError
    └── 3 s of refused connections or unknown hosts, 5 s without data ──► WARNING, at 6 s, 12 s, …

A failed attempt is logged at INFO if it is the first, second, fourth, eighth, and so on. A caller
that passes a `Watch` reports the waits itself, so only refused connections and unknown hosts are
logged as warnings. A warning names the endpoint and the setting that the endpoint came from. All
requests of a process that wait for the same endpoint share their warnings.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from cloudload.data.storage import clients
from cloudload.data.storage.advice import advise, advise_by_kind, name_server
from cloudload.data.storage.base import Backend, Retry
from cloudload.data.storage.local import LocalStore
from cloudload.data.storage.redaction import contains_secrets, explain, redact
from cloudload.errors import FailureKind, StoreError

T = TypeVar("T")

logger = logging.getLogger("cloudload.store")


class Watch(Protocol):
    """The observer of a request, for a caller that reports its own waits."""

    def count_retry(self) -> object:
        """Called after each failed attempt that is retried."""

    def describe(self, wait: str) -> object:
        """Called every second and after each failed attempt, with a description of the wait.

        An example is `attempt 2; attempt 1 failed: ReadTimeoutError; gives up in 98 s
        (Retry.deadline_s)`.
        """


class TargetError(Exception):
    """An error for a download whose target cannot be written to. The download is not retried."""

    def __init__(self, error: OSError) -> None:
        self.error = error


_LONGEST_PAUSE_S = 10.0
SHORT_S, FAILING_S, SILENT_S = 2.0, 3.0, 5.0

_WRONG_ADDRESS = (FailureKind.REFUSED, FailureKind.UNKNOWN_HOST)

warned: dict[str, tuple[int, float]] = {}
"""For each endpoint, the ID of the request that last logged a warning, and when it did so, in
`time.monotonic` seconds."""


def retrying(
    verb: str,
    url: str,
    backend: Backend,
    retry: Retry,
    attempt: Callable[[Callable[[], None]], T],
    *,
    may_be_long: bool = False,
    watch: Watch | None = None,
) -> T:
    """Call `attempt`, retry it after transient errors, and return its result.

    `attempt` calls its argument whenever it has received data. If `may_be_long` is true, as for an
    upload, the deadline does not interrupt an attempt. Raises `StoreError`.
    """
    request = _Request(verb, url, backend, retry, watch)
    has_no_limit = may_be_long or isinstance(backend, LocalStore)
    before: Exception | None = None
    has_renewed = False
    pause_s = retry.pause_s
    while True:
        request.attempts += 1
        left_s, began_s = request.left_s, time.monotonic()
        try:
            if has_no_limit:
                return attempt(request.receive)
            return clients.call_with_timeout(
                left_s, partial(attempt, request.receive), request.look
            )
        except (StoreError, TargetError):
            raise
        except Exception as caught:
            # if the deadline cut this attempt short, the previous error is more informative
            is_cut_short = isinstance(caught, TimeoutError) and left_s < retry.timeout_s
            error = before if before is not None and is_cut_short else caught
            before = error
            kind = backend.failure_kind(error)
            if kind.is_of_credentials and not has_renewed and backend.renew_credentials(began_s):
                logger.info("%s was refused. Trying again with new credentials", redact(url))
                has_renewed = True
                continue
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)
            if not kind.is_transient or pause_s > request.left_s:
                raise request.failure(error, kind) from (None if contains_secrets(error) else error)
            asked_s = clients.pause_asked_by(error)
            next_s = max(pause_s, asked_s) if asked_s < request.left_s else pause_s
            request.fail(error, kind, next_s)
        request.pause(next_s)


class _Request:
    """The state of one request: its attempts, its waits, and its warnings."""

    def __init__(
        self, verb: str, url: str, backend: Backend, retry: Retry, watch: Watch | None
    ) -> None:
        self._is_write = verb == "write"
        self._what, self._url, self._backend = f"{verb} {redact(url)}", url, backend
        self._deadline_s, self._watch = retry.deadline_s, watch
        self.attempts = self._num_failed = 0
        self._began = self._heard_at = time.monotonic()
        """When the request began, and when it last received data."""
        self._received_at: float | None = None
        """When this attempt last received data; None if it has received none."""
        self._next_warning_s = 0.0
        self._kind, self._error, self._store = FailureKind.OTHER, "", ""
        """The kind and the text of the last error, and the endpoint if the error names it."""

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self._began + self._deadline_s - time.monotonic()

    def receive(self) -> None:
        """Record that data has arrived."""
        self._received_at = self._heard_at = time.monotonic()
        self._next_warning_s = 0.0

    def fail(self, error: BaseException, kind: FailureKind, pause_s: float) -> None:
        """Record and log a failed attempt, before a pause of `pause_s`."""
        self._received_at = None
        self._kind, self._error = kind, explain(error)
        self._store = name_server(self._backend, self._url, error)
        if type(error) is TimeoutError:  # from `call_with_timeout`, so it names no server
            self._store = redact(self._backend.describe_endpoint(self._url))
        self._num_failed = self.attempts
        if self._watch is not None:
            self._watch.count_retry()
            self._watch.describe(self._summarize())
        if self.attempts & (self.attempts - 1) == 0:
            logger.info(
                "%s. Trying again in %.1f s",
                self._begin_message(time.monotonic() - self._began, is_brief=True),
                pause_s,
            )

    def pause(self, pause_s: float) -> None:
        """Wait before the next attempt."""
        until = time.monotonic() + pause_s
        while (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, 1.0))
            self.look()

    def look(self) -> None:
        """Describe the wait to the watch, and log a warning if one is due."""
        now = time.monotonic()
        if self._watch is not None:
            self._watch.describe(self._summarize())
        waited_s = now - (self._received_at or self._began)
        first_s = SILENT_S if self._watch is None else math.inf
        if self._kind in _WRONG_ADDRESS and self._received_at is None:
            first_s = FAILING_S
        due_s = max(first_s, self._next_warning_s)
        if waited_s < due_s:
            return
        self._next_warning_s = 2 * due_s
        key = self._store or type(self._backend).__name__
        by, at = warned.get(key, (id(self), -math.inf))
        # log one warning for all requests that wait for the same endpoint at the same time
        if by == id(self) or now - at > waited_s / 2:
            warned[key] = id(self), now
            logger.warning("%s", self._describe_wait(waited_s))

    def _summarize(self) -> str:
        parts, failed = [], self._num_failed
        if failed:
            parts.append(f"attempt {failed + 1}; attempt {failed} failed: {self._error}")
        silent_s = time.monotonic() - self._heard_at
        if silent_s >= SHORT_S:
            parts.append(f"no data for {silent_s:.0f} s")
        parts.append(f"gives up in {max(0.0, self.left_s):.0f} s (Retry.deadline_s)")
        return "; ".join(parts)

    def _describe_wait(self, waited_s: float) -> str:
        begin = self._begin_message(waited_s, is_brief=False)
        return f"{begin}. Retrying for up to {max(0.0, self.left_s):.0f} s more"

    def _begin_message(self, waited_s: float, *, is_brief: bool) -> str:
        """Return the start of a log message: the task, the attempts so far, and the last reason.

        If `is_brief`, the message has no advice.
        """
        if self._kind in _WRONG_ADDRESS and (self._store or not is_brief):
            why = advise_by_kind(self._kind, self._store)
            why = why.partition(". ")[0] if is_brief else why
        elif self._kind is FailureKind.TIMED_OUT and self._store:
            why = f"{self._store} has not answered"
        elif self._error:
            why = f"The last error was {self._error}"
        else:
            what = "stopped sending" if self._received_at else "not answered"
            why = f"{redact(self._backend.describe_endpoint(self._url)) or 'The store'} has {what}"
        return f"cannot {self._what} yet ({self._count_attempts()}, {waited_s:.0f} s). {why}"

    def failure(self, error: BaseException, kind: FailureKind) -> StoreError:
        """The final error of the request."""
        elapsed_s = time.monotonic() - self._began
        text = f"cannot {self._what} ({self._count_attempts()}, {elapsed_s:.1f} s): "
        text += explain(error)
        # an unclassified OSError without a status, as about a local file, needs no advice
        is_local = isinstance(error, OSError) and clients.status_of(error) is None
        if kind is not FailureKind.OTHER or not is_local:
            text += f". {advise(self._backend, self._url, error, kind, is_write=self._is_write)}"
        return StoreError(text, kind=kind)

    def _count_attempts(self) -> str:
        return "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
