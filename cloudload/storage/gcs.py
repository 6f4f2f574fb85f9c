"""The backend for GCS. It uses application default credentials, or is anonymous without them."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cloudload.errors import FailureKind
from cloudload.storage.base import ObjectStream, Retry, StoredObject
from cloudload.storage.clients import (
    LengthCheckedReader,
    check_tag,
    failure_kind_of_connection,
    failure_kind_of_status,
    name_setting,
    status_of,
)
from cloudload.storage.urls import folder_prefix, is_below, split_url
from cloudload.storage.versions import version_of_headers


class GCSStore:
    """The backend for gs://, through google-cloud-storage and its JSON API.

    Reading uses two private attributes of the client: `_http`, a `requests` session with the
    credentials, and `_connection.API_BASE_URL`.
    """

    def __init__(self) -> None:
        self._client: Any = None
        self._lock = threading.Lock()

    def _bucket(self, name: str) -> Any:
        with self._lock:  # look up the credentials once if several threads start together
            self._client = self._client or _make_client()
        return self._client.bucket(name)

    def open(self, url: str, retry: Retry, start: int = 0, tag: str = "") -> ObjectStream:
        bucket, key = split_url(url)
        blob = self._bucket(bucket).blob(key)
        # send our own request, because the library's stream requests ranges, and returns no bytes
        # before a range is complete
        base = self._client._connection.API_BASE_URL
        answer = self._client._http.get(
            f"{base}/download/storage/v1{blob.path}?alt=media",
            # request the stored bytes, because decoding gzip would change the size that is checked
            headers={"Accept-Encoding": "gzip"} | ({"Range": f"bytes={start}-"} if start else {}),
            stream=True,
            timeout=retry.timeout_s,
        )
        if answer.status_code not in (200, 206):
            from google.api_core.exceptions import from_http_response

            raise from_http_response(answer)
        check_tag(url, tag, answer.headers.get("X-Goog-Generation", ""))
        size = answer.headers.get("Content-Length")
        body = LengthCheckedReader(answer.raw, None if size is None else int(size))
        return ObjectStream(body, version_of_headers(answer.headers))

    def upload(self, path: Path, url: str, retry: Retry) -> None:
        bucket, key = split_url(url)
        self._bucket(bucket).blob(key).upload_from_filename(
            str(path), timeout=retry.deadline_s, retry=None
        )

    def create(self, path: Path, url: str, retry: Retry) -> None:
        from google.api_core.exceptions import PreconditionFailed

        bucket, key = split_url(url)
        with contextlib.suppress(PreconditionFailed):  # the object exists
            self._bucket(bucket).blob(key).upload_from_filename(
                str(path), timeout=retry.deadline_s, retry=None, if_generation_match=0
            )

    def delete(self, url: str, retry: Retry) -> None:
        bucket, key = split_url(url)
        self._bucket(bucket).blob(key).delete(timeout=retry.timeout_s, retry=None)

    def list(self, url: str, retry: Retry) -> Iterator[StoredObject]:
        bucket, prefix = split_url(url)
        for blob in self._bucket(bucket).list_blobs(
            prefix=prefix, timeout=retry.timeout_s, retry=None
        ):
            if is_below(blob.name, prefix):
                tag = str(blob.generation or "")
                yield StoredObject(f"gs://{bucket}/{blob.name}", blob.size, tag)

    def peek(self, url: str, retry: Retry) -> Iterator[str]:
        bucket, key = split_url(url)
        prefix = folder_prefix(key)
        blobs = self._bucket(bucket).list_blobs(
            prefix=prefix, delimiter="/", timeout=retry.timeout_s, retry=None
        )
        names = [blob.name for blob in next(blobs.pages)]  # each page is one request
        found = [*blobs.prefixes, *names]
        yield from (name.removeprefix(prefix) for name in found if name != prefix)

    def failure_kind(self, error: BaseException) -> FailureKind:
        from google.auth.exceptions import GoogleAuthError, TransportError

        if (status := status_of(error)) is not None:
            return self._failure_kind_of_answer(error, status)
        kind = failure_kind_of_connection(error)
        if not isinstance(error, GoogleAuthError):
            return kind
        if isinstance(error, TransportError) or getattr(error, "retryable", False):
            is_known = kind is FailureKind.UNTRUSTED or kind.is_of_connection
            return kind if is_known else FailureKind.UNREACHABLE
        # an anonymous client also raises a GoogleAuthError, when it requests a token after a 401
        if self._is_anonymous():
            return FailureKind.NO_CREDENTIALS
        return _failure_kind_of_token(str(error))

    def describe_endpoint(self, url: str) -> str:
        if self._client is None:
            return ""
        variables = ("STORAGE_EMULATOR_HOST", "API_ENDPOINT_OVERRIDE")
        return name_setting(self._client._connection.API_BASE_URL, variables, "Google's default")

    def _failure_kind_of_answer(self, error: BaseException, status: int) -> FailureKind:
        details = getattr(error, "errors", ())
        reasons = {detail.get("reason") for detail in details if isinstance(detail, dict)}
        if reasons & {"rateLimitExceeded", "userRateLimitExceeded"}:  # may have status 403
            return FailureKind.BUSY
        if status == 404 and "bucket does not exist" in str(error):
            return FailureKind.MISSING_BUCKET
        if status in (401, 403) and self._is_anonymous():
            return FailureKind.NO_CREDENTIALS
        if "authError" in reasons:
            return FailureKind.BAD_CREDENTIALS
        return failure_kind_of_status(status)

    def _is_anonymous(self) -> bool:
        from google.auth.credentials import AnonymousCredentials

        return isinstance(getattr(self._client, "_credentials", None), AnonymousCredentials)


def _make_client() -> Any:
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud import storage

    try:
        return storage.Client(project=None)
    except DefaultCredentialsError:
        if "GOOGLE_APPLICATION_CREDENTIALS" in os.environ:
            raise
        return storage.Client.create_anonymous_client()


def _failure_kind_of_token(text: str) -> FailureKind:
    """Classify a failed request for an access token by the error's text."""
    if "short-lived token" in text or "reasonable timeframe" in text:
        return FailureKind.WRONG_CLOCK
    if "expired" in text or "Reauthentication" in text:
        return FailureKind.EXPIRED_CREDENTIALS
    return FailureKind.BAD_CREDENTIALS
