"""The backend for S3 and compatible stores, through boto3 and its credentials and profiles.

Requests are anonymous if boto3 finds no credentials. `GCSByHMAC` accesses gs:// through the same
API, with `GCS_KEY` and `GCS_SECRET`.
"""

from __future__ import annotations

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

_CODES = {
    FailureKind.MISSING_OBJECT: "NoSuchKey NoSuchVersion NotFound 404",
    FailureKind.MISSING_BUCKET: "NoSuchBucket",
    FailureKind.BAD_CREDENTIALS: "InvalidAccessKeyId SignatureDoesNotMatch InvalidToken "
    "InvalidSecurity",
    FailureKind.EXPIRED_CREDENTIALS: "ExpiredToken ExpiredTokenException TokenRefreshRequired "
    "RequestExpired",
    FailureKind.WRONG_CLOCK: "RequestTimeTooSkewed RequestInTheFuture",
    FailureKind.WRONG_REGION: "PermanentRedirect TemporaryRedirect 301 307 "
    "AuthorizationHeaderMalformed IllegalLocationConstraintException",
    FailureKind.BUSY: "SlowDown Throttling ThrottlingException RequestThrottled "
    "RequestLimitExceeded OperationAborted RequestTimeout InternalError",
    FailureKind.DENIED: "AccessDenied AllAccessDisabled",
    FailureKind.OTHER: "InvalidObjectState",  # the 403 error for an archived object
}

_KIND_OF_CODE = {code: kind for kind, codes in _CODES.items() for code in codes.split()}


class S3Store:
    """The backend for s3://, through boto3."""

    scheme = "s3"
    _endpoint_variables: tuple[str, ...] = (
        "S3_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT_URL",
    )

    def __init__(self) -> None:
        self._clients: dict[float, Any] = {}
        self._lock = threading.Lock()
        self._is_anonymous = False

    def _client(self, retry: Retry) -> Any:
        with self._lock:  # look up the credentials once if several threads start together
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
        client.meta.events.register("before-call.s3.HeadBucket", _stop_redirects)
        return client

    def _payer(self, bucket: str) -> dict[str, str]:
        """The requester-pays argument, if Streaming's environment variable lists the bucket."""
        buckets = os.environ.get("MOSAICML_STREAMING_AWS_REQUESTER_PAYS", "").split(",")
        return {"RequestPayer": "requester"} if bucket in map(str.strip, buckets) else {}

    def open(self, url: str, retry: Retry, start: int = 0, tag: str = "") -> ObjectStream:
        bucket, key = split_url(url)
        part = {"Range": f"bytes={start}-"} if start else {}
        answer = self._client(retry).get_object(
            Bucket=bucket, Key=key, **part, **self._payer(bucket)
        )
        check_tag(url, tag, _tag(answer))
        body = LengthCheckedReader(answer["Body"], answer.get("ContentLength"))
        return ObjectStream(body, version_of_headers(answer["ResponseMetadata"]["HTTPHeaders"]))

    def upload(self, path: Path, url: str, retry: Retry) -> None:
        bucket, key = split_url(url)
        with path.open("rb") as file:  # boto3's upload_file hides the error's class and code
            self._client(retry).upload_fileobj(file, bucket, key, ExtraArgs=self._payer(bucket))

    def create(self, path: Path, url: str, retry: Retry) -> None:
        from botocore.exceptions import ClientError, ParamValidationError

        bucket, key = split_url(url)
        client = self._client(retry)
        try:
            with path.open("rb") as file:
                client.put_object(
                    Bucket=bucket, Key=key, Body=file, IfNoneMatch="*", **self._payer(bucket)
                )
        except ClientError as error:
            if status_of(error) == 409:  # another client is creating the object
                raise ConnectionError(f"another client is creating the object ({error})") from error
            if status_of(error) not in (412, 501):
                raise
            if status_of(error) == 501:
                self._create_after_check(path, url, retry)
        except ParamValidationError:  # an older botocore has no IfNoneMatch
            self._create_after_check(path, url, retry)

    def _create_after_check(self, path: Path, url: str, retry: Retry) -> None:
        if not list(self.list(url, retry)):
            self.upload(path, url, retry)

    def delete(self, url: str, retry: Retry) -> None:
        bucket, key = split_url(url)
        self._client(retry).delete_object(Bucket=bucket, Key=key, **self._payer(bucket))

    def list(self, url: str, retry: Retry) -> Iterator[StoredObject]:
        bucket, prefix = split_url(url)
        pages = self._client(retry).get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=bucket, Prefix=prefix, **self._payer(bucket)):
            for item in page.get("Contents", []):
                if is_below(item["Key"], prefix):
                    name = f"{self.scheme}://{bucket}/{item['Key']}"
                    yield StoredObject(name, item["Size"], _tag(item))

    def peek(self, url: str, retry: Retry) -> Iterator[str]:
        bucket, key = split_url(url)
        prefix = folder_prefix(key)
        page = self._client(retry).list_objects_v2(
            Bucket=bucket, Prefix=prefix, Delimiter="/", **self._payer(bucket)
        )
        found = [each["Prefix"] for each in page.get("CommonPrefixes", [])]
        found += [each["Key"] for each in page.get("Contents", [])]
        yield from (key.removeprefix(prefix) for key in found if key != prefix)

    def failure_kind(self, error: BaseException) -> FailureKind:
        from botocore import exceptions

        if isinstance(error, exceptions.ClientError):
            kind = _failure_kind_of_answer(error)
            is_refused = kind is FailureKind.DENIED and self._is_anonymous
            return FailureKind.NO_CREDENTIALS if is_refused else kind
        of_connections = (
            exceptions.HTTPClientError,
            exceptions.ConnectionError,
            exceptions.IncompleteReadError,
            exceptions.FlexibleChecksumError,
            exceptions.CredentialRetrievalError,
        )
        if isinstance(error, of_connections) or not isinstance(error, exceptions.BotoCoreError):
            return failure_kind_of_connection(error)
        # most other botocore errors concern arguments, profiles, or credentials
        words = ("Credential", "Profile", "Token", "SSO")
        is_about_credentials = any(word in type(error).__name__ for word in words)
        return FailureKind.BAD_CREDENTIALS if is_about_credentials else FailureKind.OTHER

    def describe_endpoint(self, url: str) -> str:
        client = next(iter(self._clients.values()), None)
        if client is None:
            return ""
        endpoint, region = client.meta.endpoint_url, client.meta.region_name
        is_default = ".amazonaws.com" in endpoint
        other = f"the endpoint of region {region}" if is_default else "from the AWS configuration"
        return name_setting(endpoint, self._endpoint_variables, other)


class GCSByHMAC(S3Store):
    """The backend for gs:// with an HMAC key, through the S3 API of GCS."""

    scheme = "gs"
    _endpoint_variables = ("STORAGE_EMULATOR_HOST", "API_ENDPOINT_OVERRIDE")

    def _make_client(self, retry: Retry) -> Any:
        import boto3

        found = filter(None, map(os.environ.get, self._endpoint_variables))
        # GCS does not support the checksums that boto3 adds by default
        checksums = {
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
        return boto3.Session().client(
            "s3",
            region_name="auto",
            endpoint_url=next(found, "https://storage.googleapis.com"),
            aws_access_key_id=os.environ["GCS_KEY"],
            aws_secret_access_key=os.environ["GCS_SECRET"],
            config=_config(retry, **checksums),
        )

    def _payer(self, bucket: str) -> dict[str, str]:
        return {}

    def create(self, path: Path, url: str, retry: Retry) -> None:
        # the S3 API of GCS does not support If-None-Match
        self._create_after_check(path, url, retry)


def _tag(answer: dict[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _config(retry: Retry, **options: Any) -> Any:
    from botocore.config import Config

    return Config(
        connect_timeout=min(retry.timeout_s, 10.0),
        read_timeout=retry.timeout_s,
        retries={"total_max_attempts": 1},
        max_pool_connections=32,
        # older versions of botocore have no checksum options and add no checksums
        **{name: value for name, value in options.items() if name in Config.OPTION_DEFAULTS},
    )


def _stop_redirects(context: dict[str, Any], **_: Any) -> None:
    """Stop boto3 from repeating its HEAD request for a bucket's region forever.

    boto3 repeats the request whenever a redirect does not name the region.
    """
    context.setdefault("s3_redirect", {})["redirected"] = True


def _failure_kind_of_answer(error: Any) -> FailureKind:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = status_of(error) or 0
    if status == 400 and code in ("", "400") and error.operation_name.startswith("Head"):
        # a HEAD response has no body that would identify an expired token or a wrong region
        return FailureKind.DENIED
    return _KIND_OF_CODE.get(code) or failure_kind_of_status(status)
