"""GCS by google-cloud-storage, with application default credentials; anonymous where there are
none."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from cloudload.storage.base import CHUNK_BYTES, Retry, StoredObject, Trouble
from cloudload.storage.clients import Counted, status_of, trouble_of_connection, trouble_of_status
from cloudload.storage.urls import is_below, split_url


class GCSStore:
    """gs:// by its JSON interface."""

    def __init__(self) -> None:
        self._client: Any = None
        self._lock = threading.Lock()

    def _bucket(self, name: str) -> Any:
        with self._lock:  # threads that begin together must not each look for credentials
            self._client = self._client or _make_client()
        return self._client.bucket(name)

    def open(self, url: str, retry: Retry) -> BinaryIO:
        bucket, key = split_url(url)
        blob = self._bucket(bucket).blob(key)
        # one plain request: the library's own stream asks for ranges, and says nothing before it
        # has a whole one
        location = (
            f"{self._client._connection.API_BASE_URL}/download/storage/v1{blob.path}?alt=media"
        )
        # taken as it is stored: undoing a gzip encoding would change its size under our checks
        stored = {"Accept-Encoding": "gzip"}
        answer = self._client._http.get(
            location, headers=stored, stream=True, timeout=retry.timeout_s
        )
        if answer.status_code != 200:
            from google.api_core.exceptions import from_http_response

            raise from_http_response(answer)
        size = answer.headers.get("Content-Length")
        return io.BufferedReader(
            Counted(answer.raw, None if size is None else int(size)), CHUNK_BYTES
        )

    def upload(self, path: Path, url: str, retry: Retry) -> None:
        bucket, key = split_url(url)
        self._bucket(bucket).blob(key).upload_from_filename(
            str(path), timeout=retry.deadline_s, retry=None
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
                yield StoredObject(f"gs://{bucket}/{blob.name}", blob.size)

    def trouble(self, error: BaseException) -> Trouble:
        from google.auth.exceptions import GoogleAuthError, TransportError

        if (status := status_of(error)) is not None:
            return self._trouble_of_answer(error, status)
        if isinstance(error, TransportError) or (
            isinstance(error, GoogleAuthError) and getattr(error, "retryable", False)
        ):
            return (
                Trouble.UNTRUSTED
                if trouble_of_connection(error) is Trouble.UNTRUSTED
                else Trouble.UNREACHABLE
            )
        if isinstance(
            error, GoogleAuthError
        ):  # of nobody, too: a 401 has the client ask for another token
            return Trouble.NO_CREDENTIALS if self._is_anonymous() else _trouble_of_token(str(error))
        return trouble_of_connection(error)

    def _trouble_of_answer(self, error: BaseException, status: int) -> Trouble:
        reasons = {
            item.get("reason") for item in getattr(error, "errors", ()) if isinstance(item, dict)
        }
        if reasons & {"rateLimitExceeded", "userRateLimitExceeded"}:  # a 403
            return Trouble.BUSY
        if status == 404 and "bucket does not exist" in str(error):
            return Trouble.MISSING_BUCKET
        if status in (401, 403) and self._is_anonymous():
            return Trouble.NO_CREDENTIALS
        return Trouble.BAD_CREDENTIALS if reasons & {"authError"} else trouble_of_status(status)

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


def _trouble_of_token(text: str) -> Trouble:
    """What it means that no token was given."""
    if "short-lived token" in text or "reasonable timeframe" in text:
        return Trouble.WRONG_CLOCK
    if "expired" in text or "Reauthentication" in text:
        return Trouble.EXPIRED_CREDENTIALS
    return Trouble.BAD_CREDENTIALS
