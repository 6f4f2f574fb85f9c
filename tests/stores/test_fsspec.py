"""cloudload reads web servers, and, through fsspec, SFTP servers."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from urllib3.exceptions import ReadTimeoutError

from cloudload.data.storage.locations import Location
from testkit.fault_proxy import FaultProxy, start_fault_proxy
from testkit.patience import PATIENT, QUICK, SOON_S, refused, within
from testkit.web_server import web_server

DATA = os.urandom(300_000)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[FaultProxy]:
    """A fault proxy in front of a web server that serves one file, `key`."""
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "key").write_bytes(DATA)

    with web_server(folder) as url, start_fault_proxy(url) as proxy:
        yield proxy


def test_a_web_server_is_read_with_one_request(web: FaultProxy) -> None:
    assert Location(f"{web.endpoint}/key").read() == DATA
    assert [request.line for request in web.requests()] == ["GET /key"]
    with Location(f"{web.endpoint}/key").open() as stream:
        assert stream.read() == DATA


@pytest.mark.parametrize(
    ("status", "says"), [(401, "permissions"), (403, "permissions"), (410, "Check the location")]
)
def test_what_a_web_server_refuses_is_asked_once(web: FaultProxy, status: int, says: str) -> None:
    web.fail(".", "status", status=status)
    with refused(rf"1 attempt.*{status}.*{says}"):
        Location(f"{web.endpoint}/key").read()


@pytest.mark.parametrize("action", ["status", "reset", "truncate", "stall"])
def test_a_web_server_that_fails_is_asked_again(web: FaultProxy, action: str) -> None:
    web.fail("GET", action, times=2, at=100_000, seconds=5)
    with within(SOON_S):
        assert Location(f"{web.endpoint}/key", PATIENT).read() == DATA


@pytest.mark.parametrize("action", ["status", "reset", "truncate", "stall", "drop"])
def test_a_web_server_that_keeps_failing_is_an_error_at_the_deadline(
    web: FaultProxy, action: str
) -> None:
    web.fail(".", action, at=100_000, seconds=30)
    with refused(r"cannot read .*(did not answer in time|or was too busy|broke the connection)"):
        Location(f"{web.endpoint}/key", QUICK).read()


def test_a_stream_from_a_web_server_that_goes_silent_raises(web: FaultProxy) -> None:
    web.fail("GET", "stall", at=100_000, seconds=30)
    with (
        within(SOON_S),
        Location(f"{web.endpoint}/key", QUICK).open() as stream,
        pytest.raises(ReadTimeoutError),
    ):
        stream.read()


def test_the_tag_of_a_web_server_is_not_exact(web: FaultProxy) -> None:
    data, version = Location(f"{web.endpoint}/key").read_version()
    [listed] = Location(f"{web.endpoint}/key").list_objects()
    assert (version.tag, version.size, version.exact) == (listed.tag, len(data), "")
    assert version.is_known


@pytest.fixture
def sftp(tmp_path: Path) -> Iterator[str]:
    """The URL, with user and password, of an SFTP server that serves one file, `key`."""
    pytest.importorskip("fsspec")
    paramiko = pytest.importorskip("paramiko")
    folder = tmp_path / "sftp"
    folder.mkdir()
    (folder / "key").write_bytes(DATA)

    class Files(paramiko.SFTPServerInterface):  # type: ignore[name-defined,misc]
        def open(self, path: str, flags: int, attr: object) -> Any:
            handle = paramiko.SFTPHandle(flags)
            try:
                handle.readfile = open(folder / path.lstrip("/"), "rb")
            except OSError as error:
                return paramiko.SFTPServer.convert_errno(error.errno)
            return handle

        def stat(self, path: str) -> Any:
            try:
                return paramiko.SFTPAttributes.from_stat(os.stat(folder / path.lstrip("/")))
            except OSError as error:
                return paramiko.SFTPServer.convert_errno(error.errno)

    class Door(paramiko.ServerInterface):  # type: ignore[name-defined,misc]
        def check_auth_password(self, username: str, password: str) -> int:
            is_right = (username, password) == ("reader", "sftp-password")
            return int(paramiko.AUTH_SUCCESSFUL if is_right else paramiko.AUTH_FAILED)

        def check_channel_request(self, kind: str, chanid: int) -> int:
            return int(paramiko.OPEN_SUCCEEDED)

    key = paramiko.RSAKey.generate(2048)
    transports = []

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                transport = paramiko.Transport(listener.accept()[0])
                transports.append(transport)
                transport.add_server_key(key)
                transport.set_subsystem_handler("sftp", paramiko.SFTPServer, Files)
                transport.start_server(event=threading.Event(), server=Door())

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield f"sftp://reader:sftp-password@127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    for transport in transports:
        transport.close()


def test_an_sftp_server_is_read(sftp: str) -> None:
    assert Location(f"{sftp}/key").read() == DATA
    with refused(r"1 attempt.*object does not exist"):
        Location(f"{sftp}/nothing").read()


def test_a_wrong_sftp_password_is_called_so(sftp: str) -> None:
    wrong = sftp.replace("sftp-password", "another-password")
    with refused(r"1 attempt.*Check the credentials") as caught:
        Location(f"{wrong}/key").read()
    assert "another-password" not in str(caught.value)
