"""S3 and what speaks its language: boto3, with its own chain of credentials, profiles and
endpoints.

Anonymous where there are no credentials. `GCSByHMAC` reads gs:// in the same language, with
`GCS_KEY` and `GCS_SECRET`.
"""

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

_TROUBLES = {
    Trouble.MISSING_OBJECT: ("NoSuchKey", "NoSuchVersion", "NotFound", "404"),
    Trouble.MISSING_BUCKET: ("NoSuchBucket",),
    Trouble.BAD_CREDENTIALS: (
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "InvalidToken",
        "InvalidSecurity",
    ),
    Trouble.EXPIRED_CREDENTIALS: (
        "ExpiredToken",
        "ExpiredTokenException",
        "TokenRefreshRequired",
        "RequestExpired",
    ),
    Trouble.WRONG_CLOCK: ("RequestTimeTooSkewed", "RequestInTheFuture"),
    Trouble.WRONG_REGION: (
        "PermanentRedirect",
        "TemporaryRedirect",
        "301",
        "307",
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
    ),
    Trouble.BUSY: (
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "RequestThrottled",
        "RequestLimitExceeded",
        "OperationAborted",
        "RequestTimeout",
        "InternalError",
    ),
    Trouble.DENIED: ("AccessDenied", "AllAccessDisabled"),
    Trouble.OTHER: ("InvalidObjectState",),  # a 403 of an archived object, and its text says so
}

_TROUBLE_OF_CODE = {code: trouble for trouble, codes in _TROUBLES.items() for code in codes}


class S3Store:
    """s3:// by boto3."""

    scheme = "s3"

    def __init__(self) -> None:
        self._clients: dict[float, Any] = {}
        self._lock = threading.Lock()
        self._is_anonymous = False

    def _client(self, retry: Retry) -> Any:
        with self._lock:  # threads that begin together must not each look for credentials
            if retry.timeout_s not in self._clients:
                self._clients[retry.timeout_s] = self._make_client(retry)
            return self._clients[retry.timeout_s]

    def _make_client(self, retry: Retry) -> Any:
        import boto3
        from botocore import UNSIGNED

        session = boto3.Session()
        self._is_anonymous = session.get_credentials() is None
        config = _config(retry, signature_version=UNSIGNED if self._is_anonymous else None)
        client = session.client("s3", endpoint_url=os.environ.get("S3_ENDPOINT_URL"), config=config)
        client.meta.events.register("before-call.s3.HeadBucket", _end_redirects)
        return client

    def _payer(self, bucket: str) -> dict[str, str]:
        """Whose bill it is: the variable is Streaming's, a list of buckets."""
        buckets = os.environ.get("MOSAICML_STREAMING_AWS_REQUESTER_PAYS", "").split(",")
        return {"RequestPayer": "requester"} if bucket in map(str.strip, buckets) else {}

    def open(self, url: str, retry: Retry) -> BinaryIO:
        bucket, key = split_url(url)
        answer = self._client(retry).get_object(Bucket=bucket, Key=key, **self._payer(bucket))
        return io.BufferedReader(Counted(answer["Body"], answer.get("ContentLength")), CHUNK_BYTES)

    def upload(self, path: Path, url: str, retry: Retry) -> None:
        bucket, key = split_url(url)
        with path.open("rb") as file:  # boto3's upload_file hides the error's class and code
            self._client(retry).upload_fileobj(file, bucket, key, ExtraArgs=self._payer(bucket))

    def delete(self, url: str, retry: Retry) -> None:
        bucket, key = split_url(url)
        self._client(retry).delete_object(Bucket=bucket, Key=key, **self._payer(bucket))

    def list(self, url: str, retry: Retry) -> Iterator[StoredObject]:
        bucket, prefix = split_url(url)
        pages = self._client(retry).get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=bucket, Prefix=prefix, **self._payer(bucket)):
            for item in page.get("Contents", []):
                if is_below(item["Key"], prefix):
                    yield StoredObject(f"{self.scheme}://{bucket}/{item['Key']}", item["Size"])

    def trouble(self, error: BaseException) -> Trouble:
        from botocore import exceptions

        if isinstance(error, exceptions.ClientError):
            found = _trouble_of_answer(error)
            return (
                Trouble.NO_CREDENTIALS if found is Trouble.DENIED and self._is_anonymous else found
            )
        if isinstance(
            error, exceptions.BotoCoreError
        ):  # most of them are about arguments, profiles and credentials
            passing = (
                exceptions.HTTPClientError,
                exceptions.ConnectionError,
                exceptions.IncompleteReadError,
            )
            if isinstance(
                error,
                (*passing, exceptions.FlexibleChecksumError, exceptions.CredentialRetrievalError),
            ):
                return trouble_of_connection(error)
            named = any(
                word in type(error).__name__ for word in ("Credential", "Profile", "Token", "SSO")
            )
            return Trouble.BAD_CREDENTIALS if named else Trouble.OTHER
        return trouble_of_connection(error)


class GCSByHMAC(S3Store):
    """gs:// in the language of S3, which GCS speaks to those who have an HMAC key."""

    scheme = "gs"

    def _make_client(self, retry: Retry) -> Any:
        import boto3

        endpoint = os.environ.get("STORAGE_EMULATOR_HOST") or os.environ.get(
            "API_ENDPOINT_OVERRIDE"
        )
        # GCS knows none of the checksums that boto3 adds by default
        checksums = {
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
        return boto3.Session().client(
            "s3",
            region_name="auto",
            endpoint_url=endpoint or "https://storage.googleapis.com",
            aws_access_key_id=os.environ["GCS_KEY"],
            aws_secret_access_key=os.environ["GCS_SECRET"],
            config=_config(retry, **checksums),
        )

    def _payer(self, bucket: str) -> dict[str, str]:
        return {}


def _config(retry: Retry, **options: Any) -> Any:
    from botocore.config import Config

    return Config(
        connect_timeout=min(retry.timeout_s, 10.0),
        read_timeout=retry.timeout_s,
        retries={"total_max_attempts": 1},
        max_pool_connections=32,
        # an older botocore neither knows of checksums nor adds them
        **{name: value for name, value in options.items() if name in Config.OPTION_DEFAULTS},
    )


def _end_redirects(context: dict[str, Any], **_: Any) -> None:
    """boto3 asks with HEAD where a bucket is; redirected without a region, that question would be
    followed by the same one."""
    context.setdefault("s3_redirect", {})["redirected"] = True


def _trouble_of_answer(error: Any) -> Trouble:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = status_of(error) or 0
    if status == 400 and code in ("", "400"):
        # the answer to a HEAD has no text: an expired token or another region is the usual reason
        return Trouble.DENIED
    return _TROUBLE_OF_CODE.get(code) or trouble_of_status(status)
