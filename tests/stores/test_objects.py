"""The verbs of `cloudload.store` on a folder, a real S3 server and a GCS server, when all is well
and when it is not."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from cloudload.errors import StoreError
from cloudload.storage.base import Retry, StoredObject
from cloudload.storage.objects import (
    delete_object,
    download_object,
    list_objects,
    open_object,
    read_object,
    upload_file,
    write_object,
)
from cloudload.storage.urls import join_url
from tests.support.clients import new_clients
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.objects import object_exists
from tests.support.servers import (
    BUCKET,
    GCSServer,
    S3Server,
    free_ports,
    service_account,
    start_token_endpoint,
)

QUICK = Retry(timeout_s=1.0, deadline_s=2.0, pause_s=0.05)
SOON_S = 10.0  # far below the default deadline, far above what a busy machine adds
PATIENT = Retry(timeout_s=1.0, deadline_s=20.0, pause_s=0.05)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fails a block that takes longer."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds


@pytest.fixture(params=["s3", "gcs"])
def faulty(request: pytest.FixtureRequest) -> tuple[str, FaultProxy]:
    """A location in a store that is reached through a fault proxy, and the proxy."""
    url = request.getfixturevalue(f"{request.param}_url")
    return url, request.getfixturevalue(f"{request.param}_proxy")


@pytest.fixture
def gcs_with_tokens(gcs_server: GCSServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment in which clients sign in, which they do not for an emulator."""
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    variables = gcs_server.environment()
    return {"API_ENDPOINT_OVERRIDE": variables.pop("STORAGE_EMULATOR_HOST")} | variables


# ---------------------------------------------------------------- all is well


@pytest.mark.parametrize("size", [0, 1, 1 << 20, 9_000_001])
def test_what_is_written_is_read(store_url: str, size: int) -> None:
    data = os.urandom(size)
    write_object(join_url(store_url, "a/b"), data)
    assert read_object(join_url(store_url, "a/b")) == data


def test_a_file_goes_up_and_comes_down(store_url: str, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"x" * 100_000)
    upload_file(source, join_url(store_url, "file"))
    with target.open("w+b") as file:
        assert download_object(join_url(store_url, "file"), file) == 100_000
    assert target.read_bytes() == source.read_bytes()


def test_a_download_replaces_what_the_target_held(store_url: str) -> None:
    write_object(join_url(store_url, "short"), b"new")
    target = io.BytesIO(b"much older bytes")
    assert download_object(join_url(store_url, "short"), target) == 3
    assert target.getvalue() == b"new"


def test_an_object_is_read_as_a_stream(store_url: str) -> None:
    write_object(join_url(store_url, "lines"), b"one\ntwo\nthree")
    with open_object(join_url(store_url, "lines")) as stream:
        assert stream.read(5) == b"one\nt"
        assert list(stream) == [b"wo\n", b"three"]


def test_an_object_is_replaced(store_url: str) -> None:
    for data in (b"first and longer", b"second"):
        write_object(join_url(store_url, "key"), data)
    assert read_object(join_url(store_url, "key")) == b"second"
    assert [item.bytes for item in list_objects(store_url)] == [6]


def test_a_deleted_object_is_gone_and_may_be_deleted_again(store_url: str) -> None:
    for name in ("a", "b"):
        write_object(join_url(store_url, name), b"data")
    for _ in range(2):
        delete_object(join_url(store_url, "a"))
        assert [item.url for item in list_objects(store_url)] == [join_url(store_url, "b")]


def test_a_listing_is_sorted_and_has_sizes(store_url: str) -> None:
    for name in ("b", "a/z", "a/y/x"):
        write_object(join_url(store_url, name), name.encode())
    assert list_objects(store_url) == [
        StoredObject(join_url(store_url, "a/y/x"), 5),
        StoredObject(join_url(store_url, "a/z"), 3),
        StoredObject(join_url(store_url, "b"), 1),
    ]


def test_a_listing_holds_only_what_lies_below_the_folder(store_url: str) -> None:
    for name in ("data/1", "data-2/1", "database"):
        write_object(join_url(store_url, name), b"")
    inside = [StoredObject(join_url(store_url, "data/1"), 0)]
    assert list_objects(join_url(store_url, "data")) == inside
    assert list_objects(join_url(store_url, "data/")) == inside
    assert list_objects(join_url(store_url, "data/1")) == inside


def test_a_listing_goes_past_the_first_page(s3_url: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(
            threads.map(
                lambda number: write_object(join_url(s3_url, f"{number:04}"), b""), range(1_100)
            )
        )
    assert len(list_objects(s3_url)) == 1_100


@pytest.mark.parametrize(
    "name", ["a b", "a+b", "ü/狐", "50%25", "a#b", "a?b=c", "a&b=c", "x.jsonl.zst"]
)
def test_a_name_means_itself(store_url: str, name: str) -> None:
    url = join_url(store_url, name)
    write_object(url, name.encode())
    assert read_object(url) == name.encode()
    assert list_objects(store_url) == [StoredObject(url, len(name.encode()))]


def test_a_local_write_leaves_no_other_file(local_url: str) -> None:
    write_object(join_url(local_url, "a"), b"a")
    with pytest.raises(StoreError):
        upload_file(Path(local_url, "missing"), join_url(local_url, "a"))
    assert os.listdir(local_url) == ["a"]
    assert read_object(join_url(local_url, "a")) == b"a"


def test_any_other_scheme_goes_through_fsspec() -> None:
    pytest.importorskip("fsspec")
    write_object("memory://cloudload/a", b"data")
    assert read_object("memory://cloudload/a") == b"data"
    assert [item.bytes for item in list_objects("memory://cloudload")] == [4]
    assert not object_exists("memory://cloudload/b")


def test_a_scheme_that_nothing_serves_is_named() -> None:
    with within(SOON_S), pytest.raises(StoreError, match="nosuch://"):
        read_object("nosuch://bucket/key")


# ---------------------------------------------------------------- what will not pass


def test_a_missing_object_fails_at_once_and_is_named(store_url: str) -> None:
    write_object(join_url(store_url, "there"), b"")
    url = join_url(store_url, "not-there")
    with (
        within(SOON_S),
        pytest.raises(StoreError, match=r"1 attempt.*Check the location") as caught,
    ):
        read_object(url)
    assert url in str(caught.value)
    assert not object_exists(url)
    assert object_exists(join_url(store_url, "there"))


@pytest.mark.usefixtures("s3_server", "gcs_server")
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_missing_bucket_fails_at_once(scheme: str) -> None:
    url = f"{scheme}://no-such-bucket/key"
    for act in (
        lambda: read_object(url),
        lambda: write_object(url, b"data"),
        lambda: list_objects(url),
    ):
        with within(SOON_S), pytest.raises(StoreError, match=r"1 attempt.*Check the location"):
            act()


def test_a_wrong_s3_secret_is_called_so(s3_url: str, s3_server: S3Server) -> None:
    write_object(join_url(s3_url, "key"), b"data")
    with new_clients(s3_server.environment() | {"AWS_SECRET_ACCESS_KEY": "wrong"}):
        for act in (
            lambda: read_object(join_url(s3_url, "key")),
            lambda: write_object(s3_url, b""),
            lambda: list_objects(s3_url),
        ):
            with (
                within(SOON_S),
                pytest.raises(
                    StoreError, match=r"1 attempt.*SignatureDoesNotMatch.*Check the credentials"
                ),
            ):
                act()
        with pytest.raises(StoreError, match="credentials"):
            object_exists(join_url(s3_url, "key"))


def test_a_wrong_gcs_key_is_called_so(
    gcs_url: str, gcs_with_tokens: dict[str, str], tmp_path: Path
) -> None:
    with start_token_endpoint(status=400) as token_uri:
        key = tmp_path / "key.json"
        key.write_text(json.dumps(service_account("other", token_uri)))
        with new_clients(gcs_with_tokens | {"GOOGLE_APPLICATION_CREDENTIALS": str(key)}):
            for act in (
                lambda: read_object(join_url(gcs_url, "key")),
                lambda: write_object(join_url(gcs_url, "key"), b"data"),
                lambda: list_objects(gcs_url),
            ):
                with (
                    within(SOON_S),
                    pytest.raises(
                        StoreError, match=r"1 attempt.*invalid_grant.*Check the credentials"
                    ),
                ):
                    act()


def test_a_gcs_key_file_that_is_not_there_is_called_so(
    gcs_url: str, gcs_with_tokens: dict[str, str]
) -> None:
    missing = {"GOOGLE_APPLICATION_CREDENTIALS": "/nowhere/key.json"}
    with (
        new_clients(gcs_with_tokens | missing),
        within(SOON_S),
        pytest.raises(StoreError, match=r"1 attempt.*/nowhere/key\.json.*Check the credentials"),
    ):
        read_object(join_url(gcs_url, "key"))


def test_a_gcs_key_needs_no_project(
    gcs_url: str, gcs_with_tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_clients(gcs_with_tokens):
        monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
        write_object(join_url(gcs_url, "key"), b"data")
        assert read_object(join_url(gcs_url, "key")) == b"data"


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_is_not_repeated(faulty: tuple[str, FaultProxy], status: int) -> None:
    url, proxy = faulty
    proxy.set_faults([Fault("refused", "status", status=status, code="AccessDenied")])
    with within(SOON_S), pytest.raises(StoreError, match=r"1 attempt.*credentials"):
        read_object(join_url(url, "refused"))
    assert len(proxy.requests("refused")) == 1


# ---------------------------------------------------------------- what passes


def test_a_busy_store_is_asked_again(faulty: tuple[str, FaultProxy]) -> None:
    url, proxy = faulty
    write_object(join_url(url, "key"), b"data")
    proxy.set_faults([Fault("GET .*key", "status", times=2, status=503)])
    assert read_object(join_url(url, "key"), PATIENT) == b"data"
    assert [request.status for request in proxy.requests("GET .*key")][:3] == [503, 503, 200]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_store_is_written_to_again(faulty: tuple[str, FaultProxy], status: int) -> None:
    url, proxy = faulty
    proxy.set_faults([Fault("(PUT|POST) ", "status", times=2, status=status)])
    write_object(join_url(url, "key"), b"data" * 1_000, PATIENT)
    assert read_object(join_url(url, "key")) == b"data" * 1_000


def test_a_busy_store_is_listed_again(faulty: tuple[str, FaultProxy]) -> None:
    url, proxy = faulty
    write_object(join_url(url, "key"), b"data")
    proxy.set_faults([Fault("GET .*prefix=", "status", times=2)])
    assert len(list_objects(url, PATIENT)) == 1


@pytest.mark.parametrize("action", ["truncate", "stall", "reset"])
def test_a_body_that_breaks_off_is_fetched_again(
    faulty: tuple[str, FaultProxy], action: str
) -> None:
    url, proxy = faulty
    data = os.urandom(300_000)
    write_object(join_url(url, "key"), data)
    proxy.set_faults([Fault("GET .*key", action, times=2, at=100_000, seconds=5)])
    with within(SOON_S):
        assert read_object(join_url(url, "key"), PATIENT) == data
    assert {request.action for request in proxy.requests("GET .*key")} == {action, None}


def test_a_body_that_always_breaks_off_is_an_error_and_never_short(
    faulty: tuple[str, FaultProxy],
) -> None:
    url, proxy = faulty
    write_object(join_url(url, "key"), os.urandom(300_000))
    proxy.set_faults([Fault("GET .*key", "truncate", at=100_000)])
    with within(SOON_S), pytest.raises(StoreError, match=r"cannot read .*key \(\d+ attempts"):
        read_object(join_url(url, "key"), QUICK)


def test_a_stream_that_breaks_off_raises_and_does_not_end(faulty: tuple[str, FaultProxy]) -> None:
    url, proxy = faulty
    write_object(join_url(url, "key"), os.urandom(300_000))
    proxy.set_faults([Fault("GET .*key", "truncate", at=100_000)])
    with (
        open_object(join_url(url, "key"), QUICK) as stream,
        pytest.raises(Exception, match=r"(?i)incomplete|total bytes expected"),
    ):
        stream.read()


def test_a_store_that_trickles_is_given_up_at_the_deadline(faulty: tuple[str, FaultProxy]) -> None:
    url, proxy = faulty
    write_object(join_url(url, "key"), os.urandom(4_000_000))
    proxy.set_faults([Fault("GET .*key", "throttle", bytes_per_s=200_000)])
    with within(SOON_S), pytest.raises(StoreError, match="cannot read"):
        read_object(join_url(url, "key"), QUICK)


def test_a_store_that_says_nothing_is_given_up_at_the_deadline(
    faulty: tuple[str, FaultProxy],
) -> None:
    url, proxy = faulty
    proxy.set_faults([Fault(".", "drop", seconds=30)])
    for act in (
        lambda: read_object(join_url(url, "key"), QUICK),
        lambda: write_object(join_url(url, "key"), b"data", QUICK),
        lambda: list_objects(url, QUICK),
    ):
        with within(SOON_S), pytest.raises(StoreError, match="did not answer in time"):
            act()


@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_a_server_that_is_not_there_is_given_up_at_the_deadline(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(f"{kind}_server")
    url = request.getfixturevalue(f"{kind}_url")
    (port,) = free_ports(1)
    with (
        new_clients(server.environment(f"http://127.0.0.1:{port}")),
        within(SOON_S),
        pytest.raises(StoreError, match=r"attempts.*did not answer in time"),
    ):
        read_object(join_url(url, "key"), QUICK)


# ---------------------------------------------------------------- processes


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_child_process_has_a_client_of_its_own(store_url: str, start_method: str) -> None:
    urls = [join_url(store_url, f"{number}") for number in range(4)]
    for url in urls:
        write_object(url, url.encode() * 10_000)
    with multiprocessing.get_context(start_method).Pool(2) as children:
        pending = children.map_async(read_object, urls * 4)
        mine = [read_object(url) for url in urls * 4]  # at the same time as the children
        assert pending.get(60) == mine == [url.encode() * 10_000 for url in urls] * 4


def test_a_child_reads_that_was_forked_in_the_middle_of_a_request(
    faulty: tuple[str, FaultProxy],
) -> None:
    url, proxy = faulty
    data = os.urandom(300_000)
    write_object(join_url(url, "key"), data)
    proxy.set_faults([Fault("GET .*key", "stall", times=4, at=100_000, seconds=3)])
    with ThreadPoolExecutor(4) as threads:
        mine = [threads.submit(read_object, join_url(url, "key")) for _ in range(4)]
        while len(proxy.requests("GET .*key")) < 4:
            time.sleep(0.01)
        with multiprocessing.get_context("fork").Pool(3) as children:
            assert children.map_async(read_object, [join_url(url, "key")] * 6).get(60) == [data] * 6
        assert not any(each.done() for each in mine)  # they were at it all the time
        assert [each.result(60) for each in mine] == [data] * 4


def test_a_session_finds_the_servers_in_its_environment(s3_server: S3Server) -> None:
    assert os.environ["AWS_ENDPOINT_URL_S3"] == s3_server.endpoint
    assert object_exists(f"s3://{BUCKET}/nothing") is False
