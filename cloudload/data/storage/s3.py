"""The backend for S3 and compatible stores, through boto3 and its credentials and profiles.

Requests are anonymous if boto3 finds no credentials, or if `AWS_NO_SIGN_REQUEST` is set. If the
store refuses the credentials, they are read once more, because another program may have replaced
them. `GCSByHMAC` accesses gs:// through the same API, with `GCS_KEY` and `GCS_SECRET`.
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

_CODES = {
    FailureKind.MISSING_OBJECT: "NoSuchKey NoSuchVersion NotFound 404",
    FailureKind.MISSING_BUCKET: "NoSuchBucket",
    FailureKind.BAD_CREDENTIALS: "InvalidAccessKeyId SignatureDoesNotMatch InvalidToken "
    "InvalidTokenId InvalidSecurity",
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

_UNSIGNED, _PAYS = "AWS_NO_SIGN_REQUEST", "MOSAICML_STREAMING_AWS_REQUESTER_PAYS"
_NO_CHECKSUMS = "NotImplemented XAmzContentSHA256Mismatch MissingContentLength"
"""Errors of compatible stores that do not support the checksums that boto3 adds to an upload."""

_KIND_OF_CODE = {code: kind for kind, codes in _CODES.items() for code in codes.split()}


class S3Store(Backend):
    """The backend for s3://, through boto3."""

    scheme = "s3"
    _endpoint_variables: tuple[str, ...] = (
        "S3_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT_URL",
    )

    def __init__(self, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._opened: Any = None
        """The client, once it is open."""
        self._session: Any = None
        self._is_anonymous = False
        self._renewed_s = -math.inf
        """When the credentials were last replaced, in `time.monotonic` seconds."""
        self._lock = threading.RLock()  # a signal handler may interrupt its holder

    def _client(self) -> Any:
        with self._lock:  # look up the credentials once if several threads start together
            if self._opened is None:
                clients.check_endpoint(self._endpoint_variables)
                if self._session is None:
                    self._session = self._open_session()
                    self._is_anonymous = (
                        clients.is_on(_UNSIGNED) or _secrets_of(self._session) is None
                    )
                self._opened = self._make_client()
            return self._opened

    def _open_session(self) -> Any:
        import boto3

        return boto3.Session()

    def _make_client(self) -> Any:
        from botocore import UNSIGNED

        config = self._config(signature_version=UNSIGNED if self._is_anonymous else None)
        endpoint = os.environ.get("S3_ENDPOINT_URL")
        client = self._session.client("s3", endpoint_url=endpoint, config=config)
        client.meta.events.register("before-call.s3.HeadBucket", _stop_redirects)
        return client

    def _config(self, **options: Any) -> Any:
        from botocore.config import Config

        return Config(
            connect_timeout=min(self._timeout_s, 10.0),
            read_timeout=self._timeout_s,
            retries={"total_max_attempts": 1},
            max_pool_connections=32,
            # older versions of botocore have no checksum options and add no checksums
            **{name: value for name, value in options.items() if name in Config.OPTION_DEFAULTS},
        )

    def renew_credentials(self, since_s: float) -> bool:
        with self._lock, contextlib.suppress(Exception):
            if self._session is None or self._renewed_s > since_s:
                return self._renewed_s > since_s
            session = self._open_session()
            if _secrets_of(session) != _secrets_of(self._session):
                self._session, self._opened = session, None
                self._renewed_s = time.monotonic()
                return True
        return False

    def _payer(self, bucket: str) -> dict[str, str]:
        """The requester-pays argument, if Streaming's environment variable lists the bucket."""
        listed = os.environ.get(_PAYS, "").split(",")
        buckets = [each.strip().removeprefix("s3://").rstrip("/") for each in listed]
        return {"RequestPayer": "requester"} if bucket in buckets else {}

    def open(
        self, url: str, start: int = 0, tag: str = "", stop: int | None = None
    ) -> ObjectStream:
        bucket, key = urls.split_url(url)
        part = clients.range_header(start, stop)
        answer = self._client().get_object(Bucket=bucket, Key=key, **part, **self._payer(bucket))
        clients.check_tag(url, tag, _tag(answer))
        body = clients.LengthCheckedReader(answer["Body"], answer.get("ContentLength"))
        return ObjectStream(body, version_of_headers(answer["ResponseMetadata"]["HTTPHeaders"]))

    def upload(self, path: Path, url: str, deadline_s: float) -> None:
        bucket, key = urls.split_url(url)
        with path.open("rb") as file:  # boto3's upload_file hides the error's class and code
            self._client().upload_fileobj(file, bucket, key, ExtraArgs=self._payer(bucket))

    def create(self, path: Path, url: str, deadline_s: float) -> None:
        from botocore.exceptions import ClientError, ParamValidationError

        bucket, key = urls.split_url(url)
        client = self._client()
        try:
            with path.open("rb") as file:
                client.put_object(
                    Bucket=bucket, Key=key, Body=file, IfNoneMatch="*", **self._payer(bucket)
                )
        except ClientError as error:
            if clients.status_of(error) == 409:  # another client is creating the object
                raise ConnectionError(f"another client is creating the object ({error})") from error
            if clients.status_of(error) not in (412, 501):
                raise
            if clients.status_of(error) == 501:
                self._create_after_check(path, url, deadline_s)
        except ParamValidationError:  # an older botocore has no IfNoneMatch
            self._create_after_check(path, url, deadline_s)

    def _create_after_check(self, path: Path, url: str, deadline_s: float) -> None:
        if not list(self.list(url)):
            self.upload(path, url, deadline_s)

    def delete(self, url: str) -> None:
        bucket, key = urls.split_url(url)
        self._client().delete_object(Bucket=bucket, Key=key, **self._payer(bucket))

    def list(self, url: str) -> Iterator[StoredObject]:
        bucket, prefix = urls.split_url(url)
        pages = self._client().get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=bucket, Prefix=prefix, **self._payer(bucket)):
            for item in page.get("Contents", []):
                if urls.is_below(item["Key"], prefix):
                    name = f"{self.scheme}://{bucket}/{item['Key']}"
                    yield StoredObject(name, item["Size"], _tag(item))

    def peek(self, url: str) -> Iterator[str]:
        bucket, key = urls.split_url(url)
        prefix = urls.folder_prefix(key)
        pages = self._client().get_paginator("list_objects_v2")
        for page in pages.paginate(
            Bucket=bucket, Prefix=prefix, Delimiter="/", **self._payer(bucket)
        ):
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
            return clients.failure_kind_of_connection(error)
        # most other botocore errors concern arguments, profiles, or credentials
        words = ("Credential", "Profile", "Token", "SSO")
        is_about_credentials = any(word in type(error).__name__ for word in words)
        return FailureKind.BAD_CREDENTIALS if is_about_credentials else FailureKind.OTHER

    def hint(self, url: str, error: BaseException, kind: FailureKind) -> str:
        bucket, _ = urls.split_url(url)
        if kind is FailureKind.NO_CREDENTIALS:
            return self._explain_credentials()
        if kind is FailureKind.EXPIRED_CREDENTIALS:
            return (
                "A file of credentials that another program replaces is read again, and a role is "
                "renewed, but environment variables are not"
            )
        if kind is FailureKind.DENIED and not is_from_proxy(error):
            return self._explain_denial(bucket)
        code, text = _code_of(error), str(error)
        if code == "PathStyleRequestNotAllowed":
            return (
                "The store wants the bucket in the host name. In the file ~/.aws/config, write "
                "addressing_style = virtual below s3 = in the section of the profile"
            )
        if "checksum" in text.lower() or code in _NO_CHECKSUMS.split():
            return (
                "If the store does not support the checksums that boto3 adds to uploads, set "
                "AWS_REQUEST_CHECKSUM_CALCULATION=when_required"
            )
        return ""

    def _explain_credentials(self) -> str:
        if clients.is_on(_UNSIGNED):
            return f"{_UNSIGNED} is set, so no credentials were used. Unset it to use them"
        return (
            "No credentials were found. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or set "
            "AWS_PROFILE to a profile in ~/.aws/credentials, or give this machine a role"
        )

    def _explain_denial(self, bucket: str) -> str:
        advice = f"If the bucket is public, set {_UNSIGNED}=true"
        if not self._payer(bucket):
            advice += f". If the requester pays for its data, set {_PAYS}={bucket}"
        return advice

    def describe_endpoint(self, url: str) -> str:
        if (client := self._opened) is None:
            return ""
        endpoint, region = client.meta.endpoint_url, client.meta.region_name
        is_default = ".amazonaws.com" in endpoint
        other = f"the endpoint of region {region}" if is_default else "from the AWS configuration"
        return clients.name_setting(endpoint, self._endpoint_variables, other)


class GCSByHMAC(S3Store):
    """The backend for gs:// with an HMAC key, through the S3 API of GCS."""

    scheme = "gs"
    _endpoint_variables = ("STORAGE_EMULATOR_HOST", "API_ENDPOINT_OVERRIDE")

    def _open_session(self) -> Any:
        import boto3

        key, secret = os.environ["GCS_KEY"], os.environ["GCS_SECRET"]
        return boto3.Session(key, secret, region_name="auto")

    def _make_client(self) -> Any:
        found = filter(None, map(os.environ.get, self._endpoint_variables))
        # GCS does not support the checksums that boto3 adds by default
        checksums = {
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
        endpoint = next(found, "https://storage.googleapis.com")
        return self._session.client("s3", endpoint_url=endpoint, config=self._config(**checksums))

    def _payer(self, bucket: str) -> dict[str, str]:
        return {}

    def hint(self, url: str, error: BaseException, kind: FailureKind) -> str:
        return ""

    def create(self, path: Path, url: str, deadline_s: float) -> None:
        # the S3 API of GCS does not support If-None-Match
        self._create_after_check(path, url, deadline_s)


def _tag(answer: dict[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _stop_redirects(context: dict[str, Any], **_: Any) -> None:
    """Stop boto3 from repeating its HEAD request for a bucket's region forever.

    boto3 repeats the request whenever a redirect does not name the region.
    """
    context.setdefault("s3_redirect", {})["redirected"] = True


def _secrets_of(session: Any) -> Any:
    """The credentials of a session, or None."""
    credentials = session.get_credentials()
    return credentials and credentials.get_frozen_credentials()


def _code_of(error: Any) -> str:
    """The code in a store's answer, or "" for another error."""
    response = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def _failure_kind_of_answer(error: Any) -> FailureKind:
    code = _code_of(error)
    status = clients.status_of(error) or 0
    if status == 400 and code in ("", "400") and error.operation_name.startswith("Head"):
        # a HEAD response has no body that would identify an expired token or a wrong region
        return FailureKind.DENIED
    return _KIND_OF_CODE.get(code) or clients.failure_kind_of_status(status)
