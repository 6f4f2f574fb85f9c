"""Clients sign in to S3 and GCS with keys, profiles, and HMAC keys, or read anonymously. They pay
for requests to requester-pays buckets, and use credentials that another program replaces."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cloudload.data.storage.locations import Location
from cloudload.data.storage.urls import join_url
from cloudload.errors import StoreError
from testkit.clients import new_clients
from testkit.fault_proxy import Fault, FaultProxy, start_fault_proxy
from testkit.servers import BUCKET, GCSServer, S3Server

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
        Location(join_url(s3_url, "key")).write(b"data")
        assert Location(join_url(s3_url, "key")).read() == b"data"
    with (
        new_clients(files | {"AWS_PROFILE": "stranger"}),
        pytest.raises(StoreError, match="credentials were rejected"),
    ):
        Location(join_url(s3_url, "key")).read()
    with (
        new_clients(files | {"AWS_PROFILE": "nobody"}),
        pytest.raises(StoreError, match=r"1 attempt, .*nobody.*Check the credentials"),
    ):
        Location(join_url(s3_url, "key")).read()


def test_without_credentials_s3_requests_are_not_signed(
    s3_url: str, s3_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in S3_KEYS:
        monkeypatch.delenv(name)
    with pytest.raises(StoreError):
        Location(join_url(s3_url, "key")).read()
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
    Location(url).write(b"data")
    assert Location(url).read() == b"data"
    assert len(Location(s3_url).list_objects()) == 1
    Location(url).delete()
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
        Location(join_url(folder, "key")).write(data)
        assert Location(join_url(folder, "key")).read() == data
        assert [item.url for item in Location(folder).list_objects()] == [join_url(folder, "key")]
        headers = [request.headers for request in proxy.requests()]
        assert all("/auto/s3/aws4_request" in each["authorization"] for each in headers)
        # GCS does not support the checksums that boto3 can send
        assert not [
            name
            for each in headers
            for name in each
            if name.startswith(("x-amz-checksum", "x-amz-sdk-checksum", "x-amz-trailer"))
        ]
        Location(join_url(folder, "key")).delete()
        with pytest.raises(StoreError, match=rf"cannot read {folder}/key .*object does not exist"):
            Location(join_url(folder, "key")).read()


def test_an_hmac_key_that_gcs_does_not_take_is_called_so(s3_url: str, s3_server: S3Server) -> None:
    wrong = hmac_environment(s3_server, s3_server.endpoint) | {"GCS_SECRET": "not-the-secret"}
    with (
        new_clients(wrong),
        pytest.raises(
            StoreError, match=r"1 attempt, .*SignatureDoesNotMatch.*credentials were rejected"
        ),
    ):
        Location(s3_url.replace("s3://", "gs://")).read()


def test_without_credentials_gcs_is_asked_anonymously(
    gcs_url: str, gcs_proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Location(join_url(gcs_url, "key")).write(b"data")
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name)
    # hide the user's credentials, and those of a Google Cloud VM
    nobody = {"HOME": str(tmp_path), "CLOUDSDK_CONFIG": str(tmp_path), "NO_GCE_CHECK": "true"}
    gcs_proxy.fail("GET .*secret", "status", status=401, code="required", as_json=True)
    with new_clients(nobody | {"API_ENDPOINT_OVERRIDE": gcs_proxy.endpoint}):
        assert Location(join_url(gcs_url, "key")).read() == b"data"
        start = time.monotonic()
        with pytest.raises(StoreError, match=r"1 attempt, .*No credentials were found"):
            Location(join_url(gcs_url, "secret")).read()
        assert time.monotonic() - start < 10
    assert not [request for request in gcs_proxy.requests() if "authorization" in request.headers]


# ---------------------------------------------------------------- credentials that are replaced


EXPIRED = Fault("GET", "status", times=1, status=400, code="ExpiredToken")


@pytest.fixture
def credentials(
    s3_server: S3Server, s3_proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The file that has this process's S3 credentials. They are not valid at first."""
    path = tmp_path / "credentials"
    write_keys(path, "old", "of-no-use")
    variables = s3_server.environment(s3_proxy.endpoint)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del variables[name]
        monkeypatch.delenv(name)
    with new_clients(variables | {"AWS_SHARED_CREDENTIALS_FILE": str(path)}):
        yield path


def write_keys(path: Path, key: str, secret: str) -> None:
    path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")


@pytest.mark.parametrize("faults", [[], [EXPIRED]])
def test_keys_that_a_file_replaces_are_used(
    s3_url: str, s3_server: S3Server, s3_proxy: FaultProxy, credentials: Path, faults: list[Fault]
) -> None:
    with pytest.raises(StoreError, match="The credentials were rejected"):
        Location(join_url(s3_url, "key")).read()
    write_keys(credentials, s3_server.access_key, s3_server.secret_key)
    s3_proxy.set_faults(faults)
    assert Location(s3_url).list_objects() == []
    Location(join_url(s3_url, "key")).write(b"data")
    assert Location(join_url(s3_url, "key")).read() == b"data"


@pytest.mark.usefixtures("credentials")
def test_keys_that_nobody_replaced_are_refused_at_once(s3_url: str, s3_proxy: FaultProxy) -> None:
    s3_proxy.fail("GET", "status", status=400, code="ExpiredToken")
    with pytest.raises(StoreError, match=r"1 attempt, .*have expired.*A file of credentials that"):
        Location(join_url(s3_url, "key")).read()
    assert len(s3_proxy.requests("GET")) == 1


def test_new_keys_that_are_refused_too_are_not_tried_again(
    s3_url: str, s3_proxy: FaultProxy, credentials: Path
) -> None:
    with pytest.raises(StoreError):
        Location(join_url(s3_url, "key")).read()
    before = len(s3_proxy.requests("GET"))
    write_keys(credentials, "new", "of-no-use-either")
    with pytest.raises(StoreError, match=r"2 attempts, .*The credentials were rejected"):
        Location(join_url(s3_url, "key")).read()
    assert len(s3_proxy.requests("GET")) == before + 2


def test_all_threads_continue_with_the_new_keys(
    s3_url: str, s3_server: S3Server, credentials: Path
) -> None:
    with pytest.raises(StoreError):
        Location(join_url(s3_url, "key")).read()
    write_keys(credentials, s3_server.access_key, s3_server.secret_key)
    start = threading.Barrier(8)

    def read_together(_: int) -> int:
        start.wait()
        return len(Location(s3_url).list_objects())

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read_together, range(8))) == [0] * 8


def test_a_new_login_to_google_cloud_is_used(
    gcs_url: str, gcs_server: GCSServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "login.json"
    found = {"type": "authorized_user", "client_id": "id", "client_secret": "secret"}
    path.write_text(json.dumps(found | {"refresh_token": "old"}))
    variables = gcs_server.environment() | {"GOOGLE_APPLICATION_CREDENTIALS": str(path)}
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    variables["API_ENDPOINT_OVERRIDE"] = variables.pop("STORAGE_EMULATOR_HOST")
    with new_clients(variables):
        store = Location(gcs_url).backend
        assert not store.renew_credentials(0.0)
        monkeypatch.setattr("google.auth.credentials.Credentials.before_request", lambda *_: None)
        assert Location(gcs_url).list_objects() == []
        assert not store.renew_credentials(0.0)
        path.write_text(json.dumps(found | {"refresh_token": "new"}))
        assert store.renew_credentials(0.0)
        assert store.renew_credentials(0.0), "an attempt that began before the renewal repeats"
        assert not store.renew_credentials(float("inf"))
