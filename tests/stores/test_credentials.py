"""Clients sign in to S3 and GCS with keys, profiles, and HMAC keys, or read anonymously. They pay
for requests to requester-pays buckets."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cloudload.data.storage.objects import delete_object, list_objects, read_object, write_object
from cloudload.data.storage.urls import join_url
from cloudload.errors import StoreError
from testkit.clients import new_clients
from testkit.fault_proxy import FaultProxy, start_fault_proxy
from testkit.servers import BUCKET, S3Server

S3_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def test_a_profile_gives_keys_region_and_endpoint(
    s3_url: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, config = tmp_path / "credentials", tmp_path / "config"
    keys.write_text(
        f"[reader]\naws_access_key_id = {s3_server.access_key}\naws_secret_access_key = "
        f"{s3_server.secret_key}\n"
        "[stranger]\naws_access_key_id = stranger\naws_secret_access_key = of-no-use\n"
    )
    config.write_text(
        "".join(
            f"[profile {name}]\nregion = us-east-1\nendpoint_url = {s3_server.endpoint}\n"
            for name in ("reader", "stranger")
        )
    )
    for name in s3_server.environment():
        if name.startswith(("AWS_", "S3_")):
            monkeypatch.delenv(name)
    files = {
        "AWS_CONFIG_FILE": str(config),
        "AWS_SHARED_CREDENTIALS_FILE": str(keys),
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with new_clients(files | {"AWS_PROFILE": "reader"}):
        write_object(join_url(s3_url, "key"), b"data")
        assert read_object(join_url(s3_url, "key")) == b"data"
    with (
        new_clients(files | {"AWS_PROFILE": "stranger"}),
        pytest.raises(StoreError, match="credentials were rejected"),
    ):
        read_object(join_url(s3_url, "key"))
    with (
        new_clients(files | {"AWS_PROFILE": "nobody"}),
        pytest.raises(StoreError, match=r"1 attempt, .*nobody.*Check the credentials"),
    ):
        read_object(join_url(s3_url, "key"))


def test_without_credentials_s3_requests_are_not_signed(
    s3_url: str, s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in S3_KEYS:
        monkeypatch.delenv(name)
    with pytest.raises(StoreError):
        read_object(join_url(s3_url, "key"))
    (request,) = s3_proxy.requests("GET .*key")
    assert "authorization" not in request.headers


@pytest.mark.parametrize(
    ("buckets", "pays"), [(f"other, {BUCKET}", True), ("other", False), ("", False)]
)
def test_the_requester_pays_for_the_buckets_that_are_named(
    s3_url: str, s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, buckets: str, pays: bool
) -> None:
    monkeypatch.setenv("MOSAICML_STREAMING_AWS_REQUESTER_PAYS", buckets)
    url = join_url(s3_url, "key")
    write_object(url, b"data")
    assert read_object(url) == b"data"
    assert len(list_objects(s3_url)) == 1
    delete_object(url)
    requests = s3_proxy.requests()
    assert {request.line.split()[0] for request in requests} == {"PUT", "GET", "DELETE"}
    assert {request.headers.get("x-amz-request-payer") for request in requests} == {
        "requester" if pays else None
    }


# ---------------------------------------------------------------- GCS


def hmac_environment(server: S3Server, endpoint: str) -> dict[str, str]:
    """Variables for gs:// with an HMAC key. SeaweedFS replaces GCS: both accept S3 requests."""
    return {
        "GCS_KEY": server.access_key,
        "GCS_SECRET": server.secret_key,
        "STORAGE_EMULATOR_HOST": endpoint,
        # wrong values, so that a client would fail if it used S3's variables
        "AWS_ACCESS_KEY_ID": "not-this",
        "AWS_SECRET_ACCESS_KEY": "not-this-either",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
        "S3_ENDPOINT_URL": "http://127.0.0.1:9",
    }


def test_gcs_is_read_and_written_with_an_hmac_key(s3_url: str, s3_server: S3Server) -> None:
    folder = s3_url.replace("s3://", "gs://")
    with (
        start_fault_proxy(s3_server.endpoint) as proxy,
        new_clients(hmac_environment(s3_server, proxy.endpoint)),
    ):
        data = os.urandom(9_000_001)
        write_object(join_url(folder, "key"), data)
        assert read_object(join_url(folder, "key")) == data
        assert [item.url for item in list_objects(folder)] == [join_url(folder, "key")]
        headers = [request.headers for request in proxy.requests()]
        assert all("/auto/s3/aws4_request" in each["authorization"] for each in headers)
        # GCS does not support the checksums that boto3 can send
        assert not [
            name
            for each in headers
            for name in each
            if name.startswith(("x-amz-checksum", "x-amz-sdk-checksum", "x-amz-trailer"))
        ]
        delete_object(join_url(folder, "key"))
        with pytest.raises(StoreError, match=rf"cannot read {folder}/key .*object does not exist"):
            read_object(join_url(folder, "key"))


def test_an_hmac_key_that_gcs_does_not_take_is_called_so(s3_url: str, s3_server: S3Server) -> None:
    wrong = hmac_environment(s3_server, s3_server.endpoint) | {"GCS_SECRET": "not-the-secret"}
    with (
        new_clients(wrong),
        pytest.raises(
            StoreError, match=r"1 attempt, .*SignatureDoesNotMatch.*credentials were rejected"
        ),
    ):
        read_object(s3_url.replace("s3://", "gs://"))


def test_without_credentials_gcs_is_asked_anonymously(
    gcs_url: str, gcs_proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_object(join_url(gcs_url, "key"), b"data")
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name)
    # hide the user's credentials, and those of a Google Cloud VM
    nobody = {"HOME": str(tmp_path), "CLOUDSDK_CONFIG": str(tmp_path), "NO_GCE_CHECK": "true"}
    gcs_proxy.fail("GET .*secret", "status", status=401, code="required", as_json=True)
    with new_clients(nobody | {"API_ENDPOINT_OVERRIDE": gcs_proxy.endpoint}):
        assert read_object(join_url(gcs_url, "key")) == b"data"
        start = time.monotonic()
        with pytest.raises(StoreError, match=r"1 attempt, .*No credentials were found"):
            read_object(join_url(gcs_url, "secret"))
        assert time.monotonic() - start < 10
    assert not [request for request in gcs_proxy.requests() if "authorization" in request.headers]
