"""A run continues when another program replaces the credentials that a store no longer accepts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cloudload.data.storage import objects
from cloudload.data.storage.objects import list_objects, read_object, write_object
from cloudload.data.storage.urls import join_url
from cloudload.errors import StoreError
from testkit.clients import new_clients
from testkit.fault_proxy import Fault, FaultProxy
from testkit.servers import GCSServer, S3Server

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
        read_object(join_url(s3_url, "key"))
    write_keys(credentials, s3_server.access_key, s3_server.secret_key)
    s3_proxy.set_faults(faults)
    assert list_objects(s3_url) == []
    write_object(join_url(s3_url, "key"), b"data")
    assert read_object(join_url(s3_url, "key")) == b"data"


@pytest.mark.usefixtures("credentials")
def test_keys_that_nobody_replaced_are_refused_at_once(s3_url: str, s3_proxy: FaultProxy) -> None:
    s3_proxy.fail("GET", "status", status=400, code="ExpiredToken")
    with pytest.raises(StoreError, match=r"1 attempt, .*have expired.*A file of credentials that"):
        read_object(join_url(s3_url, "key"))
    assert len(s3_proxy.requests("GET")) == 1


def test_new_keys_that_are_refused_too_are_not_tried_again(
    s3_url: str, s3_proxy: FaultProxy, credentials: Path
) -> None:
    with pytest.raises(StoreError):
        read_object(join_url(s3_url, "key"))
    before = len(s3_proxy.requests("GET"))
    write_keys(credentials, "new", "of-no-use-either")
    with pytest.raises(StoreError, match=r"2 attempts, .*The credentials were rejected"):
        read_object(join_url(s3_url, "key"))
    assert len(s3_proxy.requests("GET")) == before + 2


def test_all_threads_continue_with_the_new_keys(
    s3_url: str, s3_server: S3Server, credentials: Path
) -> None:
    with pytest.raises(StoreError):
        read_object(join_url(s3_url, "key"))
    write_keys(credentials, s3_server.access_key, s3_server.secret_key)
    start = threading.Barrier(8)

    def read_together(_: int) -> int:
        start.wait()
        return len(list_objects(s3_url))

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
        store = objects.backend_of(gcs_url)
        assert not store.renew_credentials(0.0)
        monkeypatch.setattr("google.auth.credentials.Credentials.before_request", lambda *_: None)
        assert list_objects(gcs_url) == []
        assert not store.renew_credentials(0.0)
        path.write_text(json.dumps(found | {"refresh_token": "new"}))
        assert store.renew_credentials(0.0)
        assert store.renew_credentials(0.0), "an attempt that began before the renewal repeats"
        assert not store.renew_credentials(float("inf"))
