"""The kinds of store behind `cloudload.store`: local folders, S3, GCS, and whatever fsspec reaches.

Each raises its client's own errors, and says which of them mean that an object is missing, and which will pass.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import urlsplit

from cloudload.errors import StoreError
from cloudload.locations import local_path, scheme_of

CHUNK_BYTES = 1 << 16  # small, so that a body that trickles meets the deadline


@dataclass(frozen=True)
class Retry:
    """How long to try."""

    timeout_s: float = 20.0
    """Seconds for one request."""
    deadline_s: float = 120.0
    """Seconds in all."""
    pause_s: float = 0.2
    """Seconds before the second attempt; each further pause is about twice as long."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
                raise ValueError(f"{name} is {value!r}; it must be a number of seconds above 0")


@dataclass(frozen=True)
class StoredObject:
    """One object of a listing: its location and its size in bytes."""

    url: str
    bytes: int


class Backend(Protocol):
    """What a kind of store must do; every method takes whole locations and raises its client's own errors."""

    def open(self, url: str, retry: Retry) -> BinaryIO: ...
    def upload(self, path: Path, url: str, retry: Retry) -> None: ...
    def delete(self, url: str, retry: Retry) -> None: ...
    def list(self, url: str, retry: Retry) -> Iterator[StoredObject]: ...
    def is_missing(self, error: BaseException) -> bool: ...
    def is_passing(self, error: BaseException) -> bool: ...


_backends: dict[tuple[int, str], Backend] = {}


def backend_of(url: str) -> Backend:
    """The backend of a location's scheme, made once per process: a forked worker never inherits a connection."""
    scheme = scheme_of(url)
    key = (os.getpid(), scheme)
    if key not in _backends:
        kinds: dict[str, Callable[[], Backend]] = {"file": _LocalStore, "s3": _S3Store, "gs": _GCSStore}
        _backends[key] = kinds.get(scheme, _FsspecStore)()
    return _backends[key]


class _LocalStore:
    def open(self, url: str, retry: Retry) -> BinaryIO:
        return local_path(url).open("rb")

    def upload(self, path: Path, url: str, retry: Retry) -> None:
        import shutil

        target = local_path(url)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            shutil.copyfile(path, temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def delete(self, url: str, retry: Retry) -> None:
        local_path(url).unlink()

    def list(self, url: str, retry: Retry) -> Iterator[StoredObject]:
        root = local_path(url)
        if root.is_file():
            yield StoredObject(url, root.stat().st_size)
        elif not root.is_dir():
            raise FileNotFoundError(f"no such file or folder: {root}")
        for folder, _, names in os.walk(root):
            for name in names:
                path = Path(folder, name)
                if path.is_file():
                    yield StoredObject(str(path), path.stat().st_size)

    def is_missing(self, error: BaseException) -> bool:
        return isinstance(error, FileNotFoundError | NotADirectoryError)

    def is_passing(self, error: BaseException) -> bool:
        return False


def _split(url: str) -> tuple[str, str]:
    parts = urlsplit(url, allow_fragments=False)
    return parts.netloc, (parts.path + (f"?{parts.query}" if parts.query else "")).lstrip("/")


class _ShortRead(OSError):
    """A body ended before the length that its header promised."""


class _Counted(io.RawIOBase):
    """A body that fails when it ends early, whatever its client says."""

    def __init__(self, body: Any, expected: int | None) -> None:
        self._body, self._left = body, expected

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._body.read(len(buffer))
        if self._left is not None:
            if not data and self._left:
                raise _ShortRead(f"the body ended {self._left} bytes early")
            self._left -= len(data)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._body.close()
        super().close()


class _S3Store:
    """boto3, with its own credential chain, profiles and endpoints; anonymous where there are no credentials."""

    def __init__(self) -> None:
        self._clients: dict[float, Any] = {}

    def _client(self, retry: Retry) -> Any:
        if retry.timeout_s not in self._clients:
            import boto3
            from botocore import UNSIGNED
            from botocore.config import Config

            session = boto3.Session()
            self._clients[retry.timeout_s] = session.client(
                "s3",
                endpoint_url=os.environ.get("S3_ENDPOINT_URL"),
                config=Config(
                    connect_timeout=min(retry.timeout_s, 10.0),
                    read_timeout=retry.timeout_s,
                    retries={"total_max_attempts": 1},
                    max_pool_connections=32,
                    signature_version=UNSIGNED if session.get_credentials() is None else None,
                ),
            )
        return self._clients[retry.timeout_s]

    def open(self, url: str, retry: Retry) -> BinaryIO:
        bucket, key = _split(url)
        answer = self._client(retry).get_object(Bucket=bucket, Key=key)
        return io.BufferedReader(_Counted(answer["Body"], answer.get("ContentLength")), CHUNK_BYTES)

    def upload(self, path: Path, url: str, retry: Retry) -> None:
        bucket, key = _split(url)
        with path.open("rb") as file:  # boto3's upload_file hides the error's class and code
            self._client(retry).upload_fileobj(file, bucket, key)

    def delete(self, url: str, retry: Retry) -> None:
        bucket, key = _split(url)
        self._client(retry).delete_object(Bucket=bucket, Key=key)

    def list(self, url: str, retry: Retry) -> Iterator[StoredObject]:
        bucket, prefix = _split(url)
        pages = self._client(retry).get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        for page in pages:
            for item in page.get("Contents", []):
                if _is_below(item["Key"], prefix):
                    yield StoredObject(f"s3://{bucket}/{item['Key']}", item["Size"])

    def is_missing(self, error: BaseException) -> bool:
        return _s3_code(error) in {"NoSuchKey", "NoSuchBucket", "404", "NotFound"}

    def is_passing(self, error: BaseException) -> bool:
        from botocore import exceptions

        if isinstance(error, exceptions.ClientError):
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            return status >= 500 or status == 429 or _s3_code(error) in {"SlowDown", "RequestTimeout", "Throttling"}
        if isinstance(error, exceptions.BotoCoreError):  # most of them are about arguments, profiles and credentials
            passing = (exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.IncompleteReadError)
            return isinstance(error, (*passing, exceptions.FlexibleChecksumError, exceptions.CredentialRetrievalError))
        return _is_network_error(error)


def _s3_code(error: BaseException) -> str:
    response: dict[str, Any] = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


class _GCSStore:
    """google-cloud-storage, with application default credentials; anonymous where there are none."""

    def __init__(self) -> None:
        self._client: Any = None

    def _bucket(self, name: str) -> Any:
        if self._client is None:
            from google.auth.exceptions import DefaultCredentialsError
            from google.cloud import storage

            try:
                self._client = storage.Client(project=None)
            except DefaultCredentialsError:
                if "GOOGLE_APPLICATION_CREDENTIALS" in os.environ:
                    raise
                self._client = storage.Client.create_anonymous_client()
        return self._client.bucket(name)

    def open(self, url: str, retry: Retry) -> BinaryIO:
        bucket, key = _split(url)
        blob = self._bucket(bucket).blob(key)
        # one plain request: the library's own stream asks for ranges, and says nothing before it has a whole one
        location = f"{self._client._connection.API_BASE_URL}/download/storage/v1{blob.path}?alt=media"
        # taken as it is stored: undoing a gzip encoding would change its size under our checks
        stored = {"Accept-Encoding": "gzip"}
        answer = self._client._http.get(location, headers=stored, stream=True, timeout=retry.timeout_s)
        if answer.status_code != 200:
            from google.api_core.exceptions import from_http_response

            raise from_http_response(answer)
        size = answer.headers.get("Content-Length")
        return io.BufferedReader(_Counted(answer.raw, None if size is None else int(size)), CHUNK_BYTES)

    def upload(self, path: Path, url: str, retry: Retry) -> None:
        bucket, key = _split(url)
        self._bucket(bucket).blob(key).upload_from_filename(str(path), timeout=retry.deadline_s, retry=None)

    def delete(self, url: str, retry: Retry) -> None:
        bucket, key = _split(url)
        self._bucket(bucket).blob(key).delete(timeout=retry.timeout_s, retry=None)

    def list(self, url: str, retry: Retry) -> Iterator[StoredObject]:
        bucket, prefix = _split(url)
        for blob in self._bucket(bucket).list_blobs(prefix=prefix, timeout=retry.timeout_s, retry=None):
            if _is_below(blob.name, prefix):
                yield StoredObject(f"gs://{bucket}/{blob.name}", blob.size)

    def is_missing(self, error: BaseException) -> bool:
        return getattr(error, "code", None) == 404

    def is_passing(self, error: BaseException) -> bool:
        code = getattr(error, "code", None)
        status = code if isinstance(code, int) else getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(status, int):
            return status >= 500 or status in (408, 429)
        from google.auth.exceptions import GoogleAuthError, TransportError

        if isinstance(error, GoogleAuthError):
            return isinstance(error, TransportError) or bool(getattr(error, "retryable", False))
        return _is_network_error(error)


class _FsspecStore:
    """Any other scheme, through fsspec and whatever package serves that scheme."""

    def _filesystem(self, url: str) -> Any:
        try:
            import fsspec

            return fsspec.core.url_to_fs(url)[0]
        except (ImportError, ValueError) as error:
            raise StoreError(
                f"no way to read {scheme_of(url)}:// ({error}). Install fsspec and the package named there"
            ) from None

    def open(self, url: str, retry: Retry) -> BinaryIO:
        opened: BinaryIO = self._filesystem(url).open(url, "rb")
        return opened

    def upload(self, path: Path, url: str, retry: Retry) -> None:
        self._filesystem(url).put_file(str(path), url)

    def delete(self, url: str, retry: Retry) -> None:
        self._filesystem(url).rm_file(url)

    def list(self, url: str, retry: Retry) -> Iterator[StoredObject]:
        filesystem = self._filesystem(url)
        for name, info in filesystem.find(url, detail=True).items():
            yield StoredObject(filesystem.unstrip_protocol(name), int(info.get("size") or 0))

    def is_missing(self, error: BaseException) -> bool:
        return isinstance(error, FileNotFoundError)

    def is_passing(self, error: BaseException) -> bool:
        return not isinstance(error, FileNotFoundError | PermissionError | StoreError) and _is_network_error(error)


def _is_below(key: str, prefix: str) -> bool:
    """A folder's own contents, or the very object: `a/b` is not below `a/bc`."""
    return not key.endswith("/") and (not prefix or key == prefix or key.startswith(prefix.rstrip("/") + "/"))


def _is_network_error(error: BaseException) -> bool:
    """Resets, timeouts, refused connections and short bodies, from whichever client."""
    if isinstance(error, TimeoutError | ConnectionError | _ShortRead):
        return True
    return type(error).__module__.partition(".")[0] in {"botocore", "urllib3", "requests", "http", "aiohttp", "google"}
