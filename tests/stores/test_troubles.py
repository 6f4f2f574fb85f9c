"""What each refusal and each breakdown of a store means: what is asked again, what is not, and what
the message says."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cloudload.errors import StoreError
from cloudload.storage.base import Retry
from cloudload.storage.objects import (
    download_object,
    list_objects,
    open_object,
    read_object,
    write_object,
)
from cloudload.storage.urls import join_url
from tests.support.clients import new_clients
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.objects import object_exists
from tests.support.servers import GCSServer, S3Server, service_account, start_token_endpoint

QUICK = Retry(timeout_s=1.0, deadline_s=2.0, pause_s=0.05)
SOON_S = 10.0  # far below the default deadline, far above what a busy machine adds


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fails a block that takes longer."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


# ---------------------------------------------------------------- S3


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (403, "AccessDenied", "permissions"),
        (403, "InvalidAccessKeyId", "credentials: the store rejected them"),
        (403, "SignatureDoesNotMatch", "credentials: the store rejected them"),
        (400, "InvalidToken", "credentials: the store rejected them"),
        (400, "ExpiredToken", "have expired"),
        (403, "RequestTimeTooSkewed", "clock"),
        (301, "PermanentRedirect", "AWS_REGION"),
        (400, "AuthorizationHeaderMalformed", "AWS_REGION"),
        (400, "IllegalLocationConstraintException", "AWS_REGION"),
        (404, "NoSuchBucket", "no such bucket"),
        (404, "NoSuchKey", "no such object"),
        (403, "InvalidObjectState", "InvalidObjectState"),
    ],
)
def test_what_s3_refuses_for_good_is_asked_once(
    s3_url: str, s3_proxy: FaultProxy, status: int, code: str, says: str
) -> None:
    s3_proxy.set_faults([Fault("GET .*key", "status", status=status, code=code)])
    with (
        within(SOON_S),
        pytest.raises(
            StoreError, match=rf"cannot read {s3_url}/key \(1 attempt, .*{code}.*{says}"
        ) as caught,
    ):
        read_object(join_url(s3_url, "key"))
    assert caught.value.__cause__ is not None
    assert caught.value.is_missing == (status == 404)
    assert len(s3_proxy.requests("GET .*key")) == 1


@pytest.mark.parametrize(
    ("status", "code"),
    [(503, "SlowDown"), (500, "InternalError"), (400, "RequestTimeout"), (429, "Throttling")],
)
def test_what_s3_refuses_for_now_is_asked_again(
    s3_url: str, s3_proxy: FaultProxy, status: int, code: str
) -> None:
    write_object(join_url(s3_url, "key"), b"data")
    s3_proxy.set_faults([Fault("GET .*key", "status", times=2, status=status, code=code)])
    assert read_object(join_url(s3_url, "key")) == b"data"
    s3_proxy.set_faults([Fault("GET .*key", "status", status=status, code=code)])
    with (
        within(SOON_S),
        pytest.raises(StoreError, match=rf"\d+ attempts, .*{code}.*The store failed or was busy"),
    ):
        read_object(join_url(s3_url, "key"), QUICK)


def test_a_redirect_to_another_region_is_followed_once_and_not_for_ever(
    s3_url: str, s3_proxy: FaultProxy
) -> None:
    for region in ("", "eu-west-1"):
        s3_proxy.set_faults(
            [Fault(".", "status", status=301, code="PermanentRedirect", region=region)]
        )
        for act in (
            lambda: read_object(join_url(s3_url, "key")),
            lambda: list_objects(s3_url),
            lambda: write_object(s3_url, b""),
        ):
            with within(SOON_S), pytest.raises(StoreError, match="AWS_REGION"):
                act()
    assert len(s3_proxy.requests()) <= 9


@pytest.mark.usefixtures("s3_server")
def test_a_missing_s3_bucket_and_a_missing_object_are_told_apart(s3_url: str) -> None:
    with pytest.raises(StoreError, match="no such bucket") as bucket:
        read_object("s3://no-such-bucket/key")
    with pytest.raises(StoreError, match="no such object") as missing:
        read_object(join_url(s3_url, "key"))
    assert bucket.value.is_missing
    assert missing.value.is_missing


def test_a_key_that_the_s3_server_does_not_know_is_called_so(
    s3_url: str, s3_server: S3Server
) -> None:
    stranger = {"AWS_ACCESS_KEY_ID": "AKIASTRANGER", "AWS_SECRET_ACCESS_KEY": "of-no-use-at-all"}
    with (
        new_clients(s3_server.environment() | stranger),
        within(SOON_S),
        pytest.raises(
            StoreError,
            match=r"1 attempt, .*InvalidAccessKeyId.*the credentials: the store rejected them",
        ),
    ):
        read_object(join_url(s3_url, "key"))


# ---------------------------------------------------------------- GCS


@pytest.fixture
def signed_in_gcs(
    gcs_url: str, gcs_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, FaultProxy]]:
    """A location whose clients sign in, which they do not for an emulator, and the proxy before
    it."""
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    with new_clients({"API_ENDPOINT_OVERRIDE": gcs_proxy.endpoint}):
        yield gcs_url, gcs_proxy


@pytest.mark.parametrize(
    ("status", "reason", "message", "says"),
    [
        (403, "forbidden", "reader does not have storage.objects.get access", "permissions"),
        (401, "authError", "Invalid Credentials", "credentials: the store rejected them"),
        (404, "notFound", "The specified bucket does not exist.", "no such bucket"),
        (404, "notFound", "No such object: cloudload/key", "no such object"),
        (
            412,
            "conditionNotMet",
            "At least one of the pre-conditions you specified did not hold.",
            "Check the location",
        ),
    ],
)
def test_what_gcs_refuses_for_good_is_asked_once(
    signed_in_gcs: tuple[str, FaultProxy], status: int, reason: str, message: str, says: str
) -> None:
    url, proxy = signed_in_gcs
    proxy.set_faults(
        [Fault("GET .*key", "status", status=status, code=reason, message=message, as_json=True)]
    )
    with (
        within(SOON_S),
        pytest.raises(
            StoreError, match=rf"cannot read {url}/key \(1 attempt, .*{message}.*{says}"
        ) as caught,
    ):
        read_object(join_url(url, "key"))
    assert caught.value.is_missing == (status == 404)
    # a token that is not accepted is fetched anew, twice
    assert len(proxy.requests("GET .*key")) <= 3


@pytest.mark.parametrize(
    ("status", "reason"),
    [(503, "backendError"), (429, "rateLimitExceeded"), (403, "rateLimitExceeded")],
)
def test_what_gcs_refuses_for_now_is_asked_again(
    gcs_url: str, gcs_proxy: FaultProxy, status: int, reason: str
) -> None:
    write_object(join_url(gcs_url, "key"), b"data")
    gcs_proxy.set_faults(
        [Fault("GET .*key", "status", times=2, status=status, code=reason, as_json=True)]
    )
    assert read_object(join_url(gcs_url, "key")) == b"data"
    gcs_proxy.set_faults([Fault("GET .*key", "status", status=status, code=reason, as_json=True)])
    with (
        within(SOON_S),
        pytest.raises(
            StoreError, match=r"\d+ attempts, .*a fault of the test.*The store failed or was busy"
        ),
    ):
        read_object(join_url(gcs_url, "key"), QUICK)


@pytest.mark.parametrize(
    ("description", "says"),
    [
        ("Invalid JWT signature.", "credentials: the store rejected them"),
        (
            "Invalid JWT: Token must be a short-lived token (60 minutes) "
            "and in a reasonable timeframe.",
            "clock",
        ),
        ("Token has been expired or revoked.", "have expired"),
    ],
)
def test_a_gcs_key_that_gets_no_token_is_told_why(
    signed_in_gcs: tuple[str, FaultProxy], tmp_path: Path, description: str, says: str
) -> None:
    url, proxy = signed_in_gcs
    with start_token_endpoint(400, description) as token_uri:
        key = tmp_path / "key.json"
        key.write_text(json.dumps(service_account("other", token_uri)))
        variables = {"GOOGLE_APPLICATION_CREDENTIALS": str(key)}
        with (
            new_clients(variables),
            within(SOON_S),
            pytest.raises(StoreError, match=rf"1 attempt, .*invalid_grant.*{says}"),
        ):
            read_object(join_url(url, "key"))
    assert not proxy.requests("GET .*key")


# ---------------------------------------------------------------- the deadline


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port where connections are taken and never answered."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield listener.getsockname()[1]


@pytest.mark.parametrize("scheme", ["s3", "gs", "http"])
def test_the_deadline_ends_an_attempt_that_began_before_it(
    scheme: str, silent_port: int, request: pytest.FixtureRequest
) -> None:
    endpoint = f"http://127.0.0.1:{silent_port}"
    variables: dict[str, str] = {}
    if scheme != "http":
        variables = request.getfixturevalue(
            "s3_server" if scheme == "s3" else "gcs_server"
        ).environment(endpoint)
    url = f"{endpoint}/key" if scheme == "http" else f"{scheme}://bucket/key"
    long_requests = Retry(timeout_s=60, deadline_s=1, pause_s=0.05)
    with new_clients(variables):
        for act in (
            lambda: read_object(url, long_requests),
            lambda: open_object(url, long_requests),
            lambda: object_exists(url, long_requests),
            lambda: list_objects(url, long_requests),
        ):
            with (
                within(SOON_S),
                pytest.raises(StoreError, match=r"timed out after .*did not answer in time"),
            ):
                act()


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_the_deadline_ends_a_body_that_stops(
    scheme: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    kind = "s3" if scheme == "s3" else "gcs"
    proxy: FaultProxy = request.getfixturevalue(f"{kind}_proxy")
    url = join_url(request.getfixturevalue(f"{kind}_url"), "key")
    write_object(url, os.urandom(1_000_000))
    proxy.set_faults([Fault("GET .*key", "stall", at=100_000, seconds=60)])
    with (
        (tmp_path / "target").open("w+b") as target,
        within(SOON_S),
        pytest.raises(StoreError, match="timed out after"),
    ):
        download_object(url, target, Retry(timeout_s=60, deadline_s=1))


def test_an_attempt_that_was_given_up_writes_no_more(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    url = join_url(s3_url, "key")
    write_object(url, os.urandom(1_000_000))
    s3_proxy.set_faults([Fault("GET .*key", "stall", at=100_000, seconds=2)])
    with (tmp_path / "target").open("w+b") as target:
        with pytest.raises(StoreError, match="timed out after"):
            download_object(url, target, Retry(timeout_s=60, deadline_s=1))
        target.seek(0)
        target.truncate()
        deadline = time.monotonic() + 30
        while (
            any(thread.name == "cloudload-store" for thread in threading.enumerate())
            and time.monotonic() < deadline
        ):
            time.sleep(0.1)
        assert target.seek(0, os.SEEK_END) == 0


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_host_that_has_no_address_is_given_up_at_the_deadline(
    scheme: str, s3_server: S3Server, gcs_server: GCSServer
) -> None:
    server = s3_server if scheme == "s3" else gcs_server
    with (
        new_clients(server.environment("http://no-such-host.invalid:9")),
        within(SOON_S),
        pytest.raises(StoreError, match="did not answer in time"),
    ):
        read_object(f"{scheme}://bucket/key", QUICK)
