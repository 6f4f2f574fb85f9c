"""The error of a refused request names the setting that would help with this store."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudload.data.storage.base import Retry
from cloudload.data.storage.gcs import GCSStore
from cloudload.data.storage.objects import read_object, write_object
from cloudload.data.storage.urls import join_url
from cloudload.errors import FailureKind, StoreError
from testkit.clients import new_clients
from testkit.fault_proxy import Fault, FaultProxy, start_fault_proxy
from testkit.servers import BUCKET, GCSServer, S3Server, free_ports

QUICK = Retry(timeout_s=1.0, deadline_s=2.0, pause_s=0.05)


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
        write_object(join_url(s3_url, "key"), b"data")


@pytest.mark.parametrize("value", ["true", "YES", "1"])
def test_public_data_is_read_anonymously_on_request(
    s3_url: str, s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("AWS_NO_SIGN_REQUEST", value)
    with pytest.raises(StoreError, match=r"AWS_NO_SIGN_REQUEST is set.*Unset it to") as failure:
        read_object(join_url(s3_url, "key"))
    assert failure.value.kind is FailureKind.NO_CREDENTIALS
    assert [
        name for each in s3_proxy.requests() for name in each.headers if name[:4] == "auth"
    ] == []


@pytest.mark.parametrize("buckets", [f"s3://{BUCKET}", f"other, s3://{BUCKET}/"])
def test_a_bucket_whose_requester_pays_may_be_named_by_its_url(
    s3_url: str, s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, buckets: str
) -> None:
    monkeypatch.setenv("MOSAICML_STREAMING_AWS_REQUESTER_PAYS", buckets)
    write_object(join_url(s3_url, "key"), b"data")
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
        read_object(join_url(gcs_url, "key"))


def test_a_denial_of_gcs_says_how_to_read_public_data() -> None:
    denied = FailureKind.DENIED, "If the bucket is public, set GS_NO_SIGN_REQUEST=true"
    assert GCSStore().hint("gs://b/k", OSError("403"), denied[0]) == denied[1]


def test_a_project_pays_for_all_requests_to_gcs(
    gcs_url: str, gcs_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GS_USER_PROJECT", "payer")
    write_object(join_url(gcs_url, "key"), b"data")
    assert read_object(join_url(gcs_url, "key")) == b"data"
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
        read_object(f"{scheme}://bucket/key")


@pytest.mark.parametrize(
    ("url", "meant"),
    [("s3a://b/k", "s3://b/k"), ("s3n://b/k", "s3://b/k"), ("gcs://b/k", "gs://b/k")],
)
def test_other_names_of_a_scheme_lead_to_ours(url: str, meant: str) -> None:
    with pytest.raises(StoreError, match=rf"Use {meant}, which needs no other package"):
        read_object(url)


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
    monkeypatch.setattr("cloudload.data.storage.retries._FAILING_S", 0.2)
    monkeypatch.setattr("cloudload.data.storage.retries._warned", {})
    monkeypatch.delenv("http_proxy", raising=False)
    with new_clients(proxied(variables, address)), pytest.raises(StoreError) as failure:
        read_object(url, QUICK)
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
            read_object(url, QUICK)
    assert f"Requests go through the proxy {proxy.endpoint} (from HTTP_PROXY)" in str(failure.value)


def test_a_bucket_in_the_host_name_is_the_name_that_is_not_resolved(
    s3_server: S3Server, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text("[default]\ns3 =\n  addressing_style = virtual\n")
    endpoint = f"http://no-such-host.invalid:{free_ports(1)[0]}"
    variables = s3_server.environment(endpoint) | {"AWS_CONFIG_FILE": str(config)}
    with new_clients(variables), pytest.raises(StoreError) as failure:
        read_object("s3://bkt/key", QUICK)
    assert "The host name of http://bkt.no-such-host.invalid" in str(failure.value)
    assert failure.value.kind is FailureKind.UNKNOWN_HOST
