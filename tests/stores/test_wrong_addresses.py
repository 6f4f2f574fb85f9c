"""A wrong address is logged as a warning, then raised as an error. Both name the setting to fix."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cloudload import CloudLoader, Retry
from cloudload.data.storage.locations import Location
from cloudload.errors import FailureKind, StoreError
from testkit.clients import environment, new_clients
from testkit.patience import refused
from testkit.servers import GCSServer, S3Server, free_ports

SHORT = Retry(timeout_s=1.0, deadline_s=5.0, pause_s=0.05)
NO_HOST = "http://no-such-host.invalid:9"
S3_VARIABLES = ("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


@pytest.fixture(autouse=True)
def warn_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudload.data.storage.retries.FAILING_S", 0.4)
    monkeypatch.setattr("cloudload.data.storage.retries.warned", {})


@pytest.fixture
def closed_port() -> str:
    return f"http://127.0.0.1:{free_ports(1)[0]}"


@pytest.fixture(params=["refused", "unknown"])
def wrong(request: pytest.FixtureRequest, closed_port: str) -> tuple[str, FailureKind, str]:
    """An endpoint without a server, the expected failure kind, and part of the error message."""
    if request.param == "refused":
        return closed_port, FailureKind.REFUSED, "refused the connection"
    return NO_HOST, FailureKind.UNKNOWN_HOST, "could not be resolved"


@pytest.fixture(params=["s3", "gs", "gs by HMAC", "http"])
def location(
    request: pytest.FixtureRequest, wrong: tuple[str, FailureKind, str]
) -> Iterator[tuple[str, str]]:
    """A URL at a wrong address, and the text with which messages name that address."""
    endpoint, scheme = wrong[0], request.param.partition(" ")[0]
    variables: dict[str, str] = {}
    if scheme == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        variables = server.environment(endpoint)
        named = f"{endpoint} (from S3_ENDPOINT_URL)"
    elif scheme == "gs":
        gcs: GCSServer = request.getfixturevalue("gcs_server")
        variables = gcs.environment(endpoint)
        named = f"{endpoint} (from STORAGE_EMULATOR_HOST)"
        if "HMAC" in request.param:
            variables |= {"GCS_KEY": "key", "GCS_SECRET": "a secret"}
    with new_clients(variables):
        yield (f"{endpoint}/key", endpoint) if scheme == "http" else (f"{scheme}://b/key", named)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING]


def test_a_wrong_address_is_a_warning_at_once_and_the_error_names_it_too(
    location: tuple[str, str], wrong: tuple[str, FailureKind, str], caplog: pytest.LogCaptureFixture
) -> None:
    (url, named), (_, kind, what) = location, wrong
    caplog.set_level(logging.INFO, "cloudload.store")
    with refused(r"cannot read .*attempts, ") as failure:
        Location(url, SHORT).read()
    assert failure.value.kind is kind
    informed = [each.getMessage() for each in caplog.records if each.levelno == logging.INFO]
    assert re.fullmatch(r"cannot read .* yet \(1 attempt, \d+ s\)\. .*in \d\.\d s", informed[0])
    for text in (informed[0], warnings_of(caplog)[0], str(failure.value)):
        assert named in text
        assert what in text
        assert "did not answer in time" not in text


def test_a_request_that_waits_alone_warns_at_every_doubling(
    s3_server: S3Server, closed_port: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each warning has a fixed due time, even if a pause between attempts delays an earlier one."""
    retry = Retry(timeout_s=1.0, deadline_s=7.0, pause_s=0.5)
    with new_clients(s3_server.environment(closed_port)), pytest.raises(StoreError):
        Location("s3://b/key", retry).read()
    # warnings are due after 0.4, 0.8, 1.6, and 3.2 s; the 7 s deadline may prevent one after 6.4 s
    assert len(warnings_of(caplog)) >= 4


def test_writes_lists_and_deletes_warn_too(
    s3_server: S3Server, closed_port: str, caplog: pytest.LogCaptureFixture
) -> None:
    with new_clients(s3_server.environment(closed_port)):
        for act in (
            lambda: Location("s3://b/key", SHORT).write(b"data"),
            lambda: Location("s3://b/folder", SHORT).list_objects(),
            lambda: Location("s3://b/key", SHORT).delete(),
        ):
            caplog.clear()
            with pytest.raises(StoreError) as failure:
                act()
            assert failure.value.kind is FailureKind.REFUSED
            assert f"{closed_port} (from S3_ENDPOINT_URL)" in warnings_of(caplog)[0]


@pytest.mark.parametrize("number", range(3))
def test_the_variable_that_is_named_is_the_one_that_the_client_uses(
    s3_server: S3Server, closed_port: str, number: int
) -> None:
    others = dict.fromkeys(S3_VARIABLES[number + 1 :], "http://127.0.0.1:1")
    unset = dict.fromkeys(S3_VARIABLES[:number], "")
    variables = {**others, S3_VARIABLES[number]: closed_port}
    with environment(unset), new_clients({**s3_server.environment(), **variables}):
        for name in unset:
            del os.environ[name]
        with pytest.raises(StoreError) as failure:
            Location("s3://b/key", SHORT).read()
    assert f"{closed_port} (from {S3_VARIABLES[number]}) refused" in str(failure.value)


def test_an_endpoint_of_a_profile_is_said_to_come_from_the_configuration(
    s3_server: S3Server, closed_port: str, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(f"[default]\nendpoint_url = {closed_port}\n")
    variables = {**s3_server.environment(), "AWS_CONFIG_FILE": str(config)}
    with environment(dict.fromkeys(S3_VARIABLES, "")), new_clients(variables):
        for name in S3_VARIABLES:
            del os.environ[name]
        with pytest.raises(StoreError) as failure:
            Location("s3://b/key", SHORT).read()
    assert f"{closed_port} (from the AWS configuration) refused" in str(failure.value)


def test_an_error_about_a_proxy_does_not_blame_the_endpoint(
    s3_server: S3Server, closed_port: str
) -> None:
    variables = s3_server.environment("http://store.example:9")
    proxies = {"HTTP_PROXY": closed_port, "http_proxy": closed_port, "NO_PROXY": "", "no_proxy": ""}
    with new_clients({**variables, **proxies}), pytest.raises(StoreError) as failure:
        Location("s3://b/key", SHORT).read()
    assert failure.value.kind is FailureKind.REFUSED
    assert f'Failed to connect to proxy URL: "{closed_port}"' in str(failure.value)
    assert f"The proxy {closed_port} (from http_proxy) refused the connection" in str(failure.value)
    assert "store.example:9" not in str(failure.value)


def test_an_address_shows_no_password(
    s3_server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    (port,) = free_ports(1)
    with (
        new_clients(s3_server.environment(f"http://me:hidden-word@127.0.0.1:{port}")),
        pytest.raises(StoreError) as failure,
    ):
        Location("s3://b/key", SHORT).read()
    assert "hidden-word" not in " ".join([str(failure.value), *warnings_of(caplog)])


def test_requests_that_wait_for_one_address_share_their_warnings(
    s3_server: S3Server, closed_port: str, caplog: pytest.LogCaptureFixture
) -> None:
    with new_clients(s3_server.environment(closed_port)), ThreadPoolExecutor(8) as threads:
        for each in [
            threads.submit(Location(f"s3://b/key-{number}", SHORT).read) for number in range(8)
        ]:
            assert isinstance(each.exception(), StoreError)
    assert 1 <= len(warnings_of(caplog)) <= 8


def test_a_loader_warns_while_it_opens_its_data(
    s3_server: S3Server, closed_port: str, caplog: pytest.LogCaptureFixture
) -> None:
    with new_clients(s3_server.environment(closed_port)), pytest.raises(StoreError):
        CloudLoader("s3://b/data", seq_len=8, batch_size=1, tokens_key="tokens", retry=SHORT)
    assert f"{closed_port} (from S3_ENDPOINT_URL) refused" in warnings_of(caplog)[0]


@pytest.mark.parametrize(
    "arguments",
    [["check", "s3://b/data"], ["convert", "s3://b/raw", "OUT"], ["convert", "RAW", "s3://b/mds"]],
)
def test_the_command_line_prints_the_warning(
    s3_server: S3Server, closed_port: str, tmp_path: Path, arguments: list[str]
) -> None:
    raw = tmp_path / "raw.jsonl"
    raw.write_text('{"text": "one"}\n')
    places = {"OUT": str(tmp_path / "out"), "RAW": str(raw)}
    command = [places.get(each, each) for each in arguments]
    with subprocess.Popen(
        [sys.executable, "-m", "cloudload", *command, *(["--quiet"] * (command[0] == "convert"))],
        env={**os.environ, **s3_server.environment(closed_port)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        line = next(each for each in process.stderr if "Retrying for up to" in each)
        process.kill()
    assert f"{closed_port} (from S3_ENDPOINT_URL) refused the connection" in line
