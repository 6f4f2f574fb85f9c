"""Transient failures are retried until the deadline, and logged. No object is returned incomplete,
and forked and spawned processes have their own clients."""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cloudload import Retry
from cloudload.data.storage.locations import Location
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
    assert Location(faulty.key, PATIENT).read() == b"data"
    assert [request.status for request in faulty.proxy.requests("GET .*key")][:3] == [503, 503, 200]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_store_is_written_to_again(faulty: FaultyStore, status: int) -> None:
    faulty.fail("(PUT|POST) ", "status", times=2, status=status)
    Location(faulty.key, PATIENT).write(b"data" * 1_000)
    assert Location(faulty.key).read() == b"data" * 1_000


def test_a_busy_store_is_listed_again(faulty: FaultyStore) -> None:
    faulty.put(b"data")
    faulty.fail("GET .*prefix=", "status", times=2)
    assert len(Location(faulty.url, PATIENT).list_objects()) == 1


@pytest.mark.parametrize("action", ["truncate", "stall", "reset"])
def test_a_body_that_breaks_off_is_fetched_again(faulty: FaultyStore, action: str) -> None:
    data = os.urandom(300_000)
    faulty.put(data)
    faulty.fail("GET .*key", action, times=2, at=100_000, seconds=5)
    with within(SOON_S):
        assert Location(faulty.key, PATIENT).read() == data
    assert {request.action for request in faulty.proxy.requests("GET .*key")} == {action, None}


def test_a_body_that_always_breaks_off_is_an_error_and_never_short(faulty: FaultyStore) -> None:
    faulty.put(os.urandom(300_000))
    faulty.fail("GET .*key", "truncate", at=100_000)
    with refused(r"cannot read .*key \(\d+ attempts?,"):
        Location(faulty.key, QUICK).read()


def test_a_stream_that_breaks_off_raises_and_does_not_end(faulty: FaultyStore) -> None:
    faulty.put(os.urandom(300_000))
    faulty.fail("GET .*key", "truncate", at=100_000)
    with (
        Location(faulty.key, QUICK).open() as stream,
        pytest.raises(Exception, match=r"(?i)incomplete|total bytes expected"),
    ):
        stream.read()


def test_a_store_that_trickles_is_given_up_at_the_deadline(faulty: FaultyStore) -> None:
    faulty.put(os.urandom(4_000_000))
    faulty.fail("GET .*key", "throttle", bytes_per_s=200_000)
    with refused("cannot read"):
        Location(faulty.key, QUICK).read()


def test_a_store_that_says_nothing_is_given_up_at_the_deadline(faulty: FaultyStore) -> None:
    faulty.fail(".", "drop", seconds=30)
    for act in (
        lambda: Location(faulty.key, QUICK).read(),
        lambda: Location(faulty.key, QUICK).write(b"data"),
        lambda: Location(faulty.url, QUICK).list_objects(),
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
            lambda: Location(url, long_requests).read(),
            lambda: Location(url, long_requests).open(),
            lambda: object_exists(url, long_requests),
            lambda: Location(url, long_requests).list_objects(),
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
    Location(url).write(os.urandom(1_000_000))
    proxy.fail("GET .*key", "stall", at=100_000, seconds=60)
    with (tmp_path / "target").open("w+b") as target, refused("timed out after"):
        Location(url, Retry(timeout_s=60, deadline_s=1)).download(target)


def test_an_attempt_that_was_given_up_writes_no_more(
    s3_url: str, s3_proxy: FaultProxy, tmp_path: Path
) -> None:
    url = join_url(s3_url, "key")
    Location(url).write(os.urandom(1_000_000))
    s3_proxy.fail("GET .*key", "stall", at=100_000, seconds=2)
    with (tmp_path / "target").open("w+b") as target:
        with pytest.raises(StoreError, match="timed out after"):
            Location(url, Retry(timeout_s=60, deadline_s=1)).download(target)
        target.seek(0)
        target.truncate()
        deadline = time.monotonic() + 30
        while (
            any(thread.name == "cloudload-store" for thread in threading.enumerate())
            and time.monotonic() < deadline
        ):
            time.sleep(0.1)
        assert target.seek(0, os.SEEK_END) == 0


# ---------------------------------------------------------------- logs and warnings


LONG = Retry(timeout_s=30.0, deadline_s=60.0, pause_s=0.01)


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("cloudload.data.storage.retries.warned", {})
    caplog.set_level(logging.INFO, "cloudload")


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno == level]


def test_retries_are_logged_at_first_and_then_rarely(
    faulty: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    faulty.put(b"data")
    faulty.fail("GET .*key", "status", times=9, status=503)
    Location(faulty.key, Retry(deadline_s=60, pause_s=0.001)).read()
    logged = messages(caplog, logging.INFO)
    assert [
        f"cannot read {faulty.url}/key yet ({number}, " in text
        for number, text in zip(
            ("1 attempt", "2 attempts", "4 attempts", "8 attempts"), logged, strict=True
        )
    ] == [True] * 4
    assert all("a fault of the test" in text and "Trying again in" in text for text in logged)
    assert messages(caplog, logging.WARNING) == []


class Watched:
    """A `watch` argument for downloads, which records the calls it receives."""

    def __init__(self) -> None:
        self.retries, self.told = 0, list[str]()

    def count_retry(self) -> None:
        self.retries += 1

    def describe(self, wait: str) -> None:
        self.told.append(wait)


def test_a_caller_counts_the_retries(faulty: FaultyStore) -> None:
    faulty.put(b"data")
    faulty.fail("GET .*key", "reset", times=3)

    watch = Watched()
    Location(faulty.key, PATIENT).download(io.BytesIO(), watch=watch)
    assert watch.retries == 3
    told = [text for text in watch.told if "failed" in text]
    attempts = list(dict.fromkeys(text.partition(" failed: Connection")[0] for text in told))
    assert attempts == [f"attempt {number + 1}; attempt {number}" for number in (1, 2, 3)]
    assert all(re.search(r"; gives up in \d+ s \(Retry.deadline_s\)$", text) for text in told)


def test_a_caller_hears_of_silence(faulty: FaultyStore) -> None:
    faulty.put(os.urandom(300_000))
    faulty.fail("GET .*key", "stall", times=1, seconds=4, at=100_000)
    watch = Watched()
    Location(faulty.key, LONG).download(io.BytesIO(), watch=watch)
    silent = [text for text in watch.told if text.startswith("no data for ")]
    assert re.fullmatch(r"no data for \d s; gives up in \d+ s \(Retry.deadline_s\)", silent[0])


@pytest.mark.parametrize("action", ["delay", "stall"])
def test_silence_is_a_warning_and_again_after_twice_the_time(
    faulty: FaultyStore,
    action: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cloudload.data.storage.retries.SILENT_S", 0.5)
    faulty.put(os.urandom(300_000))
    faulty.fail("GET .*key", action, times=1, seconds=7, at=100_000)
    with pytest.raises(StoreError):
        Location(faulty.key, Retry(timeout_s=30.0, deadline_s=6.0)).read()
    logged = messages(caplog, logging.WARNING)
    assert 2 <= len(logged) < 6
    assert all(text.startswith(f"cannot read {faulty.url}/key yet (1 attempt, ") for text in logged)
    assert ("stopped sending" if action == "stall" else "not answered") in logged[-1]
    assert f"{faulty.proxy.endpoint} (from " in logged[0]


def test_silence_after_a_timeout_still_names_the_setting_of_the_endpoint(
    faulty: FaultyStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudload.data.storage.retries.SILENT_S", 0.5)
    faulty.put(b"data")
    faulty.fail("GET .*key", "delay", seconds=30)
    with pytest.raises(StoreError):
        Location(faulty.key, Retry(timeout_s=1.0, deadline_s=4.0, pause_s=0.05)).read()
    logged = messages(caplog, logging.WARNING) + messages(caplog, logging.INFO)
    assert any("(2 attempts, " in text for text in logged)
    assert all("The last error was" not in text for text in logged)
    assert all(
        f"{faulty.proxy.endpoint} (from " in text and "not answered" in text for text in logged
    )


def test_a_listing_that_is_not_answered_is_a_warning(
    faulty: FaultyStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudload.data.storage.retries.SILENT_S", 0.5)
    faulty.put(b"data")
    faulty.fail("GET .*prefix=", "delay", times=1, seconds=2)
    assert len(Location(faulty.url, LONG).list_objects()) == 1
    assert f"cannot list {faulty.url} yet (1 attempt, " in messages(caplog, logging.WARNING)[0]


def test_a_slow_body_that_keeps_coming_is_no_warning(
    faulty: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    faulty.put(os.urandom(400_000))
    faulty.fail("GET .*key", "throttle", bytes_per_s=50_000)
    assert len(Location(faulty.key, LONG).read()) == 400_000
    assert messages(caplog, logging.WARNING) == []


def test_a_store_that_stays_busy_is_a_warning_with_its_last_error(
    faulty: FaultyStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudload.data.storage.retries.SILENT_S", 0.5)
    faulty.fail("(PUT|POST) ", "status", status=503)
    with pytest.raises(StoreError, match="cannot write"):
        Location(faulty.key, Retry(deadline_s=3, pause_s=0.05)).write(b"data")
    assert "The last error was" in messages(caplog, logging.WARNING)[0]
    assert "a fault of the test" in messages(caplog, logging.WARNING)[0]


# ---------------------------------------------------------------- processes


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_child_process_has_its_own_client(store_url: str, start_method: str) -> None:
    urls = [join_url(store_url, f"{number}") for number in range(4)]
    for url in urls:
        Location(url).write(url.encode() * 10_000)
    with multiprocessing.get_context(start_method).Pool(2) as children:
        pending = children.map_async(Location.read, map(Location, urls * 4))
        mine = [Location(url).read() for url in urls * 4]  # while the children read
        assert pending.get(60) == mine == [url.encode() * 10_000 for url in urls] * 4


def test_a_child_reads_that_was_forked_in_the_middle_of_a_request(faulty: FaultyStore) -> None:
    data = os.urandom(300_000)
    faulty.put(data)
    faulty.fail("GET .*key", "stall", times=4, at=100_000, seconds=8)
    with ThreadPoolExecutor(4) as threads:
        mine = [threads.submit(Location(faulty.key).read) for _ in range(4)]
        while len(faulty.proxy.requests("GET .*key")) < 4:
            time.sleep(0.01)
        with multiprocessing.get_context("fork").Pool(3) as children:
            assert (
                children.map_async(Location.read, [Location(faulty.key)] * 6).get(60) == [data] * 6
            )
        assert not any(each.done() for each in mine)  # the threads were still reading
        assert [each.result(60) for each in mine] == [data] * 4
