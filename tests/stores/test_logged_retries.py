"""cloudload logs retries at INFO, and warns of requests that get no data or keep failing."""

from __future__ import annotations

import io
import logging
import os
import re

import pytest

from cloudload import Retry
from cloudload.data.storage.objects import download_object, list_objects, read_object, write_object
from cloudload.errors import StoreError
from testkit.faulty_store import FaultyStore
from testkit.patience import PATIENT

LONG = Retry(timeout_s=30.0, deadline_s=60.0, pause_s=0.01)


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("cloudload.data.storage.retries._warned", {})
    caplog.set_level(logging.INFO, "cloudload")


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno == level]


def test_retries_are_logged_at_first_and_then_rarely(
    faulty: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    faulty.put(b"data")
    faulty.fail("GET .*key", "status", times=9, status=503)
    read_object(faulty.key, Retry(deadline_s=60, pause_s=0.001))
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
    download_object(faulty.key, io.BytesIO(), PATIENT, watch=watch)
    assert watch.retries == 3
    told = [text for text in watch.told if "failed" in text]
    attempts = list(dict.fromkeys(text.partition(" failed: Connection")[0] for text in told))
    assert attempts == [f"attempt {number + 1}; attempt {number}" for number in (1, 2, 3)]
    assert all(re.search(r"; gives up in \d+ s \(Retry.deadline_s\)$", text) for text in told)


def test_a_caller_hears_of_silence(faulty: FaultyStore) -> None:
    faulty.put(os.urandom(300_000))
    faulty.fail("GET .*key", "stall", times=1, seconds=4, at=100_000)
    watch = Watched()
    download_object(faulty.key, io.BytesIO(), LONG, watch=watch)
    silent = [text for text in watch.told if text.startswith("no data for ")]
    assert re.fullmatch(r"no data for \d s; gives up in \d+ s \(Retry.deadline_s\)", silent[0])


@pytest.mark.parametrize("action", ["delay", "stall"])
def test_silence_is_a_warning_and_again_after_twice_the_time(
    faulty: FaultyStore,
    action: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cloudload.data.storage.retries._SILENT_S", 0.5)
    faulty.put(os.urandom(300_000))
    faulty.fail("GET .*key", action, times=1, seconds=7, at=100_000)
    with pytest.raises(StoreError):
        read_object(faulty.key, Retry(timeout_s=30.0, deadline_s=6.0))
    logged = messages(caplog, logging.WARNING)
    assert 2 <= len(logged) < 6
    assert all(text.startswith(f"cannot read {faulty.url}/key yet (1 attempt, ") for text in logged)
    assert ("stopped sending" if action == "stall" else "not answered") in logged[-1]
    assert f"{faulty.proxy.endpoint} (from " in logged[0]


def test_silence_after_a_timeout_still_names_the_setting_of_the_endpoint(
    faulty: FaultyStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudload.data.storage.retries._SILENT_S", 0.5)
    faulty.put(b"data")
    faulty.fail("GET .*key", "delay", seconds=30)
    with pytest.raises(StoreError):
        read_object(faulty.key, Retry(timeout_s=1.0, deadline_s=4.0, pause_s=0.05))
    logged = messages(caplog, logging.WARNING) + messages(caplog, logging.INFO)
    assert any("(2 attempts, " in text for text in logged)
    assert all("The last error was" not in text for text in logged)
    assert all(
        f"{faulty.proxy.endpoint} (from " in text and "not answered" in text for text in logged
    )


def test_a_listing_that_is_not_answered_is_a_warning(
    faulty: FaultyStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudload.data.storage.retries._SILENT_S", 0.5)
    faulty.put(b"data")
    faulty.fail("GET .*prefix=", "delay", times=1, seconds=2)
    assert len(list_objects(faulty.url, LONG)) == 1
    assert f"cannot list {faulty.url} yet (1 attempt, " in messages(caplog, logging.WARNING)[0]


def test_a_slow_body_that_keeps_coming_is_no_warning(
    faulty: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    faulty.put(os.urandom(400_000))
    faulty.fail("GET .*key", "throttle", bytes_per_s=50_000)
    assert len(read_object(faulty.key, LONG)) == 400_000
    assert messages(caplog, logging.WARNING) == []


def test_a_store_that_stays_busy_is_a_warning_with_its_last_error(
    faulty: FaultyStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudload.data.storage.retries._SILENT_S", 0.5)
    faulty.fail("(PUT|POST) ", "status", status=503)
    with pytest.raises(StoreError, match="cannot write"):
        write_object(faulty.key, b"data", Retry(deadline_s=3, pause_s=0.05))
    assert "The last error was" in messages(caplog, logging.WARNING)[0]
    assert "a fault of the test" in messages(caplog, logging.WARNING)[0]
