"""Transient failures are retried until the deadline, and no object is returned incomplete."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloudload.data.storage.base import Retry
from cloudload.data.storage.objects import (
    download_object,
    list_objects,
    open_object,
    read_object,
    write_object,
)
from cloudload.data.storage.urls import join_url
from cloudload.errors import StoreError
from testkit.clients import new_clients
from testkit.fault_proxy import FaultProxy
from testkit.faulty_store import FaultyStore
from testkit.objects import object_exists
from testkit.patience import PATIENT, QUICK, SOON_S, refused, within


def test_a_busy_store_is_asked_again(faulty: FaultyStore) -> None:
    faulty.put(b"data")
    faulty.fail("GET .*key", "status", times=2, status=503)
    assert read_object(faulty.key, PATIENT) == b"data"
    assert [request.status for request in faulty.proxy.requests("GET .*key")][:3] == [503, 503, 200]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_store_is_written_to_again(faulty: FaultyStore, status: int) -> None:
    faulty.fail("(PUT|POST) ", "status", times=2, status=status)
    write_object(faulty.key, b"data" * 1_000, PATIENT)
    assert read_object(faulty.key) == b"data" * 1_000


def test_a_busy_store_is_listed_again(faulty: FaultyStore) -> None:
    faulty.put(b"data")
    faulty.fail("GET .*prefix=", "status", times=2)
    assert len(list_objects(faulty.url, PATIENT)) == 1


@pytest.mark.parametrize("action", ["truncate", "stall", "reset"])
def test_a_body_that_breaks_off_is_fetched_again(faulty: FaultyStore, action: str) -> None:
    data = os.urandom(300_000)
    faulty.put(data)
    faulty.fail("GET .*key", action, times=2, at=100_000, seconds=5)
    with within(SOON_S):
        assert read_object(faulty.key, PATIENT) == data
    assert {request.action for request in faulty.proxy.requests("GET .*key")} == {action, None}


def test_a_body_that_always_breaks_off_is_an_error_and_never_short(faulty: FaultyStore) -> None:
    faulty.put(os.urandom(300_000))
    faulty.fail("GET .*key", "truncate", at=100_000)
    with refused(r"cannot read .*key \(\d+ attempts?,"):
        read_object(faulty.key, QUICK)


def test_a_stream_that_breaks_off_raises_and_does_not_end(faulty: FaultyStore) -> None:
    faulty.put(os.urandom(300_000))
    faulty.fail("GET .*key", "truncate", at=100_000)
    with (
        open_object(faulty.key, QUICK) as stream,
        pytest.raises(Exception, match=r"(?i)incomplete|total bytes expected"),
    ):
        stream.read()


def test_a_store_that_trickles_is_given_up_at_the_deadline(faulty: FaultyStore) -> None:
    faulty.put(os.urandom(4_000_000))
    faulty.fail("GET .*key", "throttle", bytes_per_s=200_000)
    with refused("cannot read"):
        read_object(faulty.key, QUICK)


def test_a_store_that_says_nothing_is_given_up_at_the_deadline(faulty: FaultyStore) -> None:
    faulty.fail(".", "drop", seconds=30)
    for act in (
        lambda: read_object(faulty.key, QUICK),
        lambda: write_object(faulty.key, b"data", QUICK),
        lambda: list_objects(faulty.url, QUICK),
    ):
        with refused("did not answer in time"):
            act()


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections but never answers."""
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
            with refused(r"timed out after .*did not answer in time"):
                act()


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_the_deadline_ends_a_body_that_stops(
    scheme: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    kind = "s3" if scheme == "s3" else "gcs"
    proxy: FaultProxy = request.getfixturevalue(f"{kind}_proxy")
    url = join_url(request.getfixturevalue(f"{kind}_url"), "key")
    write_object(url, os.urandom(1_000_000))
    proxy.fail("GET .*key", "stall", at=100_000, seconds=60)
    with (tmp_path / "target").open("w+b") as target, refused("timed out after"):
        download_object(url, target, Retry(timeout_s=60, deadline_s=1))


def test_an_attempt_that_was_given_up_writes_no_more(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    url = join_url(s3_url, "key")
    write_object(url, os.urandom(1_000_000))
    s3_proxy.fail("GET .*key", "stall", at=100_000, seconds=2)
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
