"""The backend for GCS. It uses application default credentials, or is anonymous without them.

It is also anonymous if `GS_NO_SIGN_REQUEST` is set. `GS_USER_PROJECT` is the project that pays for
the requests to buckets whose requester pays. If the store refuses the credentials, they are read
once more, because another program may have replaced them.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cloudload.data.storage import clients, urls
from cloudload.data.storage.advice import is_from_proxy
from cloudload.data.storage.base import Backend, ObjectStream, StoredObject
from cloudload.data.storage.versions import version_of_headers
from cloudload.errors import FailureKind

_UNSIGNED, _PAYS = "GS_NO_SIGN_REQUEST", "GS_USER_PROJECT"
_ENDPOINTS = ("STORAGE_EMULATOR_HOST", "API_ENDPOINT_OVERRIDE")


class GCSStore(Backend):
    """The backend for gs://, through google-cloud-storage and its JSON API.

    Reading uses two private attributes of the client: `_http`, a `requests` session with the
    credentials, and `_connection.API_BASE_URL`.
    """

    def __init__(self, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._client: Any = None
        self._renewed_s = -math.inf
        """When the credentials were last replaced, in `time.monotonic` seconds."""
        self._lock = threading.RLock()  # a signal handler may interrupt its holder

    def _bucket(self, name: str) -> Any:
        with self._lock:  # look up the credentials once if several threads start together
            self._client = self._client or _make_client()
            return self._client.bucket(name, user_project=os.environ.get(_PAYS) or None)

    def renew_credentials(self, since_s: float) -> bool:
        with self._lock, contextlib.suppress(Exception):
            if self._client is None or self._renewed_s > since_s:
                return self._renewed_s > since_s
            client = _make_client()
            if _identify(client) != _identify(self._client):
                self._client, self._renewed_s = client, time.monotonic()
                return True
        return False

    def open(
        self, url: str, start: int = 0, tag: str = "", stop: int | None = None
    ) -> ObjectStream:
        bucket, key = urls.split_url(url)
        found = self._bucket(bucket)
        client = found.client
        # send our own request, because the library's stream requests ranges, and returns no bytes
        # before a range is complete
        base = client._connection.API_BASE_URL
        payer = {"userProject": found.user_project} if found.user_project else {}
        answer = client._http.get(
            f"{base}/download/storage/v1{found.blob(key).path}",
            params={"alt": "media"} | payer,
            # request the stored bytes, because decoding gzip would change the size that is checked
            headers={"Accept-Encoding": "gzip"} | clients.range_header(start, stop),
            stream=True,
            timeout=self._timeout_s,
        )
        if answer.status_code not in (200, 206):
            from google.api_core.exceptions import from_http_response

            raise from_http_response(answer)
        clients.check_tag(url, tag, answer.headers.get("X-Goog-Generation", ""))
        size = answer.headers.get("Content-Length")
        body = clients.LengthCheckedReader(answer.raw, None if size is None else int(size))
        return ObjectStream(body, version_of_headers(answer.headers))

    def upload(self, path: Path, url: str, deadline_s: float) -> None:
        bucket, key = urls.split_url(url)
        self._bucket(bucket).blob(key).upload_from_filename(
            str(path), timeout=deadline_s, retry=None
        )

    def create(self, path: Path, url: str, deadline_s: float) -> None:
        from google.api_core.exceptions import PreconditionFailed

        bucket, key = urls.split_url(url)
        with contextlib.suppress(PreconditionFailed):  # the object exists
            self._bucket(bucket).blob(key).upload_from_filename(
                str(path), timeout=deadline_s, retry=None, if_generation_match=0
            )

    def delete(self, url: str) -> None:
        bucket, key = urls.split_url(url)
        self._bucket(bucket).blob(key).delete(timeout=self._timeout_s, retry=None)

    def list(self, url: str) -> Iterator[StoredObject]:
        bucket, prefix = urls.split_url(url)
        for blob in self._bucket(bucket).list_blobs(
            prefix=prefix, timeout=self._timeout_s, retry=None
        ):
            if urls.is_below(blob.name, prefix):
                tag = str(blob.generation or "")
                yield StoredObject(f"gs://{bucket}/{blob.name}", blob.size, tag)

    def peek(self, url: str) -> Iterator[str]:
        bucket, key = urls.split_url(url)
        prefix = urls.folder_prefix(key)
        blobs = self._bucket(bucket).list_blobs(
            prefix=prefix, delimiter="/", timeout=self._timeout_s, retry=None
        )
        folders: set[str] = set()
        for page in blobs.pages:  # each page is one request
            names = [blob.name for blob in page]
            found = [*(blobs.prefixes - folders), *names]
            folders |= blobs.prefixes
            yield from (name.removeprefix(prefix) for name in found if name != prefix)

    def failure_kind(self, error: BaseException) -> FailureKind:
        from google.auth.exceptions import GoogleAuthError, TransportError

        if (status := clients.status_of(error)) is not None:
            return self._failure_kind_of_answer(error, status)
        kind = clients.failure_kind_of_connection(error)
        if not isinstance(error, GoogleAuthError):
            return kind
        if isinstance(error, TransportError) or getattr(error, "retryable", False):
            is_known = kind is FailureKind.UNTRUSTED or kind.is_of_connection
            return kind if is_known else FailureKind.UNREACHABLE
        # an anonymous client also raises a GoogleAuthError, when it requests a token after a 401
        if self._is_anonymous():
            return FailureKind.NO_CREDENTIALS
        return _failure_kind_of_token(str(error))

    def hint(self, url: str, error: BaseException, kind: FailureKind) -> str:
        if "requester pays" in str(error):
            return f"Set {_PAYS} to the Google Cloud project that pays for the requests"
        if kind is FailureKind.NO_CREDENTIALS:
            if clients.is_on(_UNSIGNED):
                return f"{_UNSIGNED} is set, so no credentials were used. Unset it to use them"
            return (
                "No credentials were found. Run gcloud auth application-default login, or set "
                "GOOGLE_APPLICATION_CREDENTIALS to a key file"
            )
        if kind is FailureKind.DENIED and not is_from_proxy(error):
            return f"If the bucket is public, set {_UNSIGNED}=true"
        return ""

    def describe_endpoint(self, url: str) -> str:
        if self._client is None:
            return ""
        return clients.name_setting(
            self._client._connection.API_BASE_URL, _ENDPOINTS, "Google's default"
        )

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
        return clients.failure_kind_of_status(status)

    def _is_anonymous(self) -> bool:
        from google.auth.credentials import AnonymousCredentials

        return isinstance(getattr(self._client, "_credentials", None), AnonymousCredentials)


def _make_client() -> Any:
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud import storage

    clients.check_endpoint(_ENDPOINTS)
    if clients.is_on(_UNSIGNED):
        return storage.Client.create_anonymous_client()
    try:
        return storage.Client(project=None)
    except DefaultCredentialsError:
        if "GOOGLE_APPLICATION_CREDENTIALS" in os.environ:
            raise
        return storage.Client.create_anonymous_client()


def _identify(client: Any) -> tuple[Any, ...]:
    """The parts of a client's credentials that differ if another program replaces them."""
    found = client._credentials
    names = ("service_account_email", "refresh_token")
    key = getattr(getattr(found, "signer", None), "key_id", None)
    return (type(found), key, *(getattr(found, name, None) for name in names))


def _failure_kind_of_token(text: str) -> FailureKind:
    """Classify a failed request for an access token by the error's text."""
    if "short-lived token" in text or "reasonable timeframe" in text:
        return FailureKind.WRONG_CLOCK
    if "expired" in text or "Reauthentication" in text:
        return FailureKind.EXPIRED_CREDENTIALS
    return FailureKind.BAD_CREDENTIALS
