"""A request is retried only after a temporary refusal. The error says how to fix the cause, and
which setting would help with this store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudload.data.storage.base import Retry
from cloudload.data.storage.gcs import GCSStore
from cloudload.data.storage.locations import Location
from cloudload.data.storage.urls import join_url
from cloudload.errors import FailureKind, StoreError
from testkit.clients import new_clients
from testkit.fault_proxy import Fault, FaultProxy, start_fault_proxy
from testkit.faulty_store import FaultyStore
from testkit.objects import object_exists
from testkit.patience import QUICK, refused
from testkit.servers import (
    BUCKET,
    GCSServer,
    S3Server,
    free_ports,
    service_account,
    start_token_endpoint,
)


def check_refused(url: str, says: str) -> None:
    """Check that the store refuses each kind of request at once, with a message that matches."""
    for act in (
        lambda: Location(join_url(url, "key")).read(),
        lambda: Location(join_url(url, "key")).write(b"data"),
        lambda: Location(url).list_objects(),
    ):
        with refused(rf"1 attempt, .*{says}"):
            act()


@pytest.mark.usefixtures("s3_server", "gcs_server")
@pytest.mark.parametrize(("scheme", "what"), [("s3", "bucket"), ("gs", "object")])
def test_a_missing_bucket_fails_at_once(scheme: str, what: str) -> None:
    check_refused(f"{scheme}://no-such-bucket", "Check the location")
    with pytest.raises(StoreError, match=f"The {what} does not exist") as caught:
        Location(f"{scheme}://no-such-bucket/key").read()
    assert caught.value.is_missing


SECRET = "AWS_SECRET_ACCESS_KEY"
KEYS: dict[str, tuple[dict[str, str], list[str], str]] = {
    "wrong secret": ({SECRET: "wrong"}, [], "SignatureDoesNotMatch.*Check the credentials"),
    "half a key": ({}, [SECRET], "Partial credentials.*Check the credentials"),
    "unknown key": (
        {"AWS_ACCESS_KEY_ID": "AKIASTRANGER", SECRET: "of-no-use-at-all"},
        [],
        "InvalidAccessKeyId.*credentials were rejected",
    ),
    "no key": (
        {},
        ["AWS_ACCESS_KEY_ID", SECRET],
        "AccessDenied.*No credentials were found.*Set AWS_ACCESS_KEY_ID and",
    ),
}
"""The variables that are set, those that are not, and what the error says."""


@pytest.mark.parametrize("case", KEYS)
def test_keys_that_s3_does_not_accept_are_called_so(
    s3_url: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    given, missing, says = KEYS[case]
    with new_clients(s3_server.environment() | given):
        for name in missing:
            monkeypatch.delenv(name)
        check_refused(s3_url, says)
        with pytest.raises(StoreError, match="credentials"):
            object_exists(join_url(s3_url, "key"))


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_is_not_repeated(faulty: FaultyStore, status: int) -> None:
    faulty.fail("refused", "status", status=status, code="AccessDenied")
    with refused(r"1 attempt.*credentials"):
        Location(join_url(faulty.url, "refused")).read()
    assert len(faulty.proxy.requests("refused")) == 1


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (403, "AccessDenied", "permissions"),
        (403, "InvalidAccessKeyId", "credentials were rejected"),
        (403, "SignatureDoesNotMatch", "credentials were rejected"),
        (400, "InvalidToken", "credentials were rejected"),
        (400, "ExpiredToken", "have expired"),
        (403, "RequestTimeTooSkewed", "clock"),
        (301, "PermanentRedirect", "AWS_DEFAULT_REGION"),
        (400, "AuthorizationHeaderMalformed", "AWS_DEFAULT_REGION"),
        (400, "IllegalLocationConstraintException", "AWS_DEFAULT_REGION"),
        (404, "NoSuchBucket", "bucket does not exist"),
        (404, "NoSuchKey", "object does not exist"),
        (403, "InvalidObjectState", "InvalidObjectState"),
    ],
)
def test_what_s3_refuses_for_good_is_asked_once(
    s3_url: str, s3_proxy: FaultProxy, status: int, code: str, says: str
) -> None:
    s3_proxy.fail("GET .*key", "status", status=status, code=code)
    with refused(rf"cannot read {s3_url}/key \(1 attempt, .*{code}.*{says}") as caught:
        Location(join_url(s3_url, "key")).read()
    assert caught.value.__cause__ is not None
    assert caught.value.is_missing == (status == 404)
    assert len(s3_proxy.requests("GET .*key")) == 1


@pytest.mark.parametrize("body", ["", "<html>Bad Request</html>"])
def test_a_bad_request_without_a_code_is_not_called_a_denial(
    s3_url: str, s3_proxy: FaultProxy, body: str
) -> None:
    s3_proxy.fail("GET .*key", "status", status=400, code="", message=body)
    with refused(r"1 attempt, .*Check the location") as no:
        Location(join_url(s3_url, "key")).read()
    assert no.value.kind is FailureKind.OTHER
    assert "credentials" not in str(no.value)


@pytest.mark.parametrize(
    ("status", "code"),
    [(503, "SlowDown"), (500, "InternalError"), (400, "RequestTimeout"), (429, "Throttling")],
)
def test_what_s3_refuses_for_now_is_asked_again(
    s3_url: str, s3_proxy: FaultProxy, status: int, code: str
) -> None:
    Location(join_url(s3_url, "key")).write(b"data")
    s3_proxy.fail("GET .*key", "status", times=2, status=status, code=code)
    assert Location(join_url(s3_url, "key")).read() == b"data"
    s3_proxy.fail("GET .*key", "status", status=status, code=code)
    with refused(rf"\d+ attempts, .*{code}.*The store had an internal error or was too busy"):
        Location(join_url(s3_url, "key"), QUICK).read()


def test_a_redirect_to_another_region_is_followed_once_and_not_for_ever(
    s3_url: str, s3_proxy: FaultProxy
) -> None:
    for region in ("", "eu-west-1"):
        s3_proxy.fail(".", "status", status=301, code="PermanentRedirect", region=region)
        for act in (
            lambda: Location(join_url(s3_url, "key")).read(),
            lambda: Location(s3_url).list_objects(),
            lambda: Location(s3_url).write(b""),
        ):
            with refused("AWS_DEFAULT_REGION"):
                act()
    assert len(s3_proxy.requests()) <= 9


@pytest.fixture
def signed_in_gcs(
    gcs_url: str, gcs_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, FaultProxy]]:
    """The URL of a folder in GCS, and the proxy in front of the server. Unsets
    `STORAGE_EMULATOR_HOST`, because clients do not sign in to an emulator."""
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    with new_clients({"API_ENDPOINT_OVERRIDE": gcs_proxy.endpoint}):
        yield gcs_url, gcs_proxy


@pytest.mark.parametrize(
    ("status", "reason", "message", "says"),
    [
        (403, "forbidden", "reader does not have storage.objects.get access", "permissions"),
        (401, "authError", "Invalid Credentials", "credentials were rejected"),
        (404, "notFound", "The specified bucket does not exist.", "bucket does not exist"),
        (404, "notFound", "No such object: cloudload/key", "object does not exist"),
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
    proxy.fail("GET .*key", "status", status=status, code=reason, message=message, as_json=True)
    with refused(rf"cannot read {url}/key \(1 attempt, .*{message}.*{says}") as caught:
        Location(join_url(url, "key")).read()
    assert caught.value.is_missing == (status == 404)
    # if a token is rejected, the client fetches a new token and tries again, up to twice
    assert len(proxy.requests("GET .*key")) <= 3


@pytest.mark.parametrize(
    ("status", "reason"),
    [(503, "backendError"), (429, "rateLimitExceeded"), (403, "rateLimitExceeded")],
)
def test_what_gcs_refuses_for_now_is_asked_again(
    gcs_url: str, gcs_proxy: FaultProxy, status: int, reason: str
) -> None:
    Location(join_url(gcs_url, "key")).write(b"data")
    gcs_proxy.fail("GET .*key", "status", times=2, status=status, code=reason, as_json=True)
    assert Location(join_url(gcs_url, "key")).read() == b"data"
    gcs_proxy.fail("GET .*key", "status", status=status, code=reason, as_json=True)
    with refused(r"\d+ attempts, .*a fault of the test.*The store had an internal error"):
        Location(join_url(gcs_url, "key"), QUICK).read()


@pytest.mark.parametrize(
    ("description", "says"),
    [
        ("Invalid JWT signature.", "credentials were rejected.*Check the credentials"),
        ("Invalid JWT: Token must be a short-lived token and in a reasonable timeframe.", "clock"),
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
        with new_clients({"GOOGLE_APPLICATION_CREDENTIALS": str(key)}):
            check_refused(url, f"invalid_grant.*{says}")
    assert not proxy.requests("GET .*key")


def test_a_gcs_key_file_that_is_not_there_is_called_so(
    signed_in_gcs: tuple[str, FaultProxy],
) -> None:
    with new_clients({"GOOGLE_APPLICATION_CREDENTIALS": "/nowhere/key.json"}):
        check_refused(signed_in_gcs[0], r"/nowhere/key\.json.*Check the credentials")


def test_a_gcs_key_needs_no_project(
    signed_in_gcs: tuple[str, FaultProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    Location(join_url(signed_in_gcs[0], "key")).write(b"data")
    assert Location(join_url(signed_in_gcs[0], "key")).read() == b"data"


# ---------------------------------------------------------------- hints about a store


BRIEF = Retry(timeout_s=1.0, deadline_s=2.0, pause_s=0.05)


def refuse(status: int, code: str, message: str = "", *, as_json: bool = False) -> Fault:
    """A fault that refuses every request."""
    return Fault(".", "status", status=status, code=code, message=message, as_json=as_json)


@pytest.mark.parametrize(
    ("fault", "advice"),
    [
        (
            refuse(403, "AccessDenied"),
            r"Check the credentials.*If the bucket is public, set AWS_NO_SIGN_REQUEST=true\. If "
            rf"the requester pays for its data, set MOSAICML_STREAMING_AWS_REQUESTER_PAYS={BUCKET}",
        ),
        (
            refuse(400, "InvalidArgument", "x-amz-checksum headers are not supported"),
            r"not supported\. If the store does not support the checksums that boto3 adds to "
            "uploads, set AWS_REQUEST_CHECKSUM_CALCULATION=when_required$",
        ),
        (refuse(501, "NotImplemented"), "AWS_REQUEST_CHECKSUM_CALCULATION=when_required$"),
        (
            refuse(400, "PathStyleRequestNotAllowed", "Please use virtual hosted style requests."),
            "In the file ~/.aws/config, write addressing_style = virtual below s3 = in",
        ),
    ],
)
def test_an_s3_error_has_advice_about_its_store(
    s3_url: str, s3_proxy: FaultProxy, fault: Fault, advice: str
) -> None:
    s3_proxy.set_faults([fault])
    with pytest.raises(StoreError, match=advice):
        Location(join_url(s3_url, "key")).write(b"data")


@pytest.mark.parametrize("value", ["true", "YES", "1"])
def test_public_data_is_read_anonymously_on_request(
    s3_url: str, s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("AWS_NO_SIGN_REQUEST", value)
    with pytest.raises(StoreError, match=r"AWS_NO_SIGN_REQUEST is set.*Unset it to") as failure:
        Location(join_url(s3_url, "key")).read()
    assert failure.value.kind is FailureKind.NO_CREDENTIALS
    assert [
        name for each in s3_proxy.requests() for name in each.headers if name[:4] == "auth"
    ] == []


@pytest.mark.parametrize("buckets", [f"s3://{BUCKET}", f"other, s3://{BUCKET}/"])
def test_a_bucket_whose_requester_pays_may_be_named_by_its_url(
    s3_url: str, s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, buckets: str
) -> None:
    monkeypatch.setenv("MOSAICML_STREAMING_AWS_REQUESTER_PAYS", buckets)
    Location(join_url(s3_url, "key")).write(b"data")
    assert {each.headers.get("x-amz-request-payer") for each in s3_proxy.requests()} == {
        "requester"
    }


@pytest.mark.parametrize(
    ("fault", "advice"),
    [
        (
            refuse(400, "required", "Bucket is a requester pays bucket", as_json=True),
            "Set GS_USER_PROJECT to the Google Cloud project that pays",
        ),
        (
            refuse(403, "forbidden", as_json=True),
            "No credentials were found. Run gcloud auth application-default login, or set GOOGLE_",
        ),
    ],
)
def test_a_gcs_error_has_advice_about_its_store(
    gcs_url: str, gcs_proxy: FaultProxy, fault: Fault, advice: str
) -> None:
    gcs_proxy.set_faults([fault])
    with pytest.raises(StoreError, match=advice):
        Location(join_url(gcs_url, "key")).read()


def test_a_denial_of_gcs_says_how_to_read_public_data() -> None:
    denied = FailureKind.DENIED, "If the bucket is public, set GS_NO_SIGN_REQUEST=true"
    assert GCSStore(1).hint("gs://b/k", OSError("403"), denied[0]) == denied[1]


def test_a_project_pays_for_all_requests_to_gcs(
    gcs_url: str, gcs_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GS_USER_PROJECT", "payer")
    Location(join_url(gcs_url, "key")).write(b"data")
    assert Location(join_url(gcs_url, "key")).read() == b"data"
    assert all("userProject=payer" in each.line for each in gcs_proxy.requests("/b/"))


@pytest.mark.parametrize(
    ("scheme", "variable"), [("s3", "S3_ENDPOINT_URL"), ("gs", "STORAGE_EMULATOR_HOST")]
)
@pytest.mark.parametrize("value", ["127.0.0.1:9000", "localhost:9000", "ftp://host"])
def test_an_endpoint_that_is_not_a_url_is_named(scheme: str, variable: str, value: str) -> None:
    with (
        new_clients({variable: value}),
        pytest.raises(StoreError, match=rf"^{variable} is '{value}', which is not a URL\. "),
    ):
        Location(f"{scheme}://bucket/key").read()


@pytest.mark.parametrize(
    ("url", "meant"),
    [("s3a://b/k", "s3://b/k"), ("s3n://b/k", "s3://b/k"), ("gcs://b/k", "gs://b/k")],
)
def test_other_names_of_a_scheme_lead_to_ours(url: str, meant: str) -> None:
    with pytest.raises(StoreError, match=rf"Use {meant}, which needs no other package"):
        Location(url).read()


def proxied(variables: dict[str, str], proxy: str, **more: str) -> dict[str, str]:
    """The variables of a client that connects through a proxy."""
    return {**variables, "NO_PROXY": "", "no_proxy": "", "HTTP_PROXY": proxy, **more}


@pytest.fixture(params=["s3", "gs"])
def store(request: pytest.FixtureRequest) -> tuple[str, str, dict[str, str]]:
    """A URL, the endpoint of its store, and the variables of its clients."""
    if request.param == "s3":
        s3: S3Server = request.getfixturevalue("s3_server")
        return f"s3://{BUCKET}/key", s3.endpoint, s3.environment()
    gcs: GCSServer = request.getfixturevalue("gcs_server")
    return f"gs://{BUCKET}/key", gcs.endpoint, gcs.environment()


@pytest.mark.parametrize(
    ("proxy", "what"),
    [
        ("http://me:secret@127.0.0.1:{}", r"refused the connection"),
        ("http://no-such-proxy.invalid:{}", r"could not be resolved"),
    ],
)
def test_a_dead_proxy_is_not_taken_for_the_store(
    store: tuple[str, str, dict[str, str]],
    proxy: str,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url, endpoint, variables = store
    address = proxy.format(free_ports(1)[0])
    monkeypatch.setattr("cloudload.data.storage.retries.FAILING_S", 0.2)
    monkeypatch.setattr("cloudload.data.storage.retries.warned", {})
    monkeypatch.delenv("http_proxy", raising=False)
    with new_clients(proxied(variables, address)), pytest.raises(StoreError) as failure:
        Location(url, BRIEF).read()
    shown = address.replace("me:secret@", "")
    for said in (str(failure.value), caplog.messages[-1]):
        assert f"proxy {shown} (from HTTP_PROXY)" in said
        assert what in said
        assert "secret" not in said
        assert f"{endpoint} (from" not in said
    assert "To connect directly, add 127.0.0.1 to NO_PROXY" in str(failure.value)


def test_a_store_that_is_reached_through_a_proxy_has_both_in_its_error(
    store: tuple[str, str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, endpoint, variables = store
    monkeypatch.delenv("http_proxy", raising=False)
    with start_fault_proxy(endpoint) as proxy:
        proxy.set_faults([refuse(403, "AccessDenied")])
        with new_clients(proxied(variables, proxy.endpoint)), pytest.raises(StoreError) as failure:
            Location(url, BRIEF).read()
    assert f"Requests go through the proxy {proxy.endpoint} (from HTTP_PROXY)" in str(failure.value)


def test_a_bucket_in_the_host_name_is_the_name_that_is_not_resolved(
    s3_server: S3Server, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text("[default]\ns3 =\n  addressing_style = virtual\n")
    endpoint = f"http://no-such-host.invalid:{free_ports(1)[0]}"
    variables = s3_server.environment(endpoint) | {"AWS_CONFIG_FILE": str(config)}
    with new_clients(variables), pytest.raises(StoreError) as failure:
        Location("s3://bkt/key", BRIEF).read()
    assert "The host name of http://bkt.no-such-host.invalid" in str(failure.value)
    assert failure.value.kind is FailureKind.UNKNOWN_HOST
