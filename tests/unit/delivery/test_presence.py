"""Processes of a job notice which of them have ended, and ignore other programs."""

from __future__ import annotations

import json
import select
import socket
from typing import Any

import pytest
import torch.distributed as dist

from cloudload.delivery import presence
from cloudload.delivery.presence import Presence, open_presence
from tests.support.patience import soon


@pytest.fixture
def store() -> Any:
    return dist.HashStore()


def is_pending(listener: socket.socket) -> bool:
    """Whether a connection waits to be accepted."""
    return bool(select.select([listener], [], [], 0.0)[0])


def knows(one: Presence, ended: set[int]) -> bool:
    return soon(lambda: one.find_ended() == ended)


def test_each_process_learns_which_others_have_ended(store: Any) -> None:
    third, first, second = (open_presence(store, rank) for rank in (3, 1, 2))
    assert knows(second, set())
    first.close()
    assert knows(third, {1})
    assert knows(second, {1})
    late = open_presence(store, 0)
    assert knows(late, {1})
    second.close()
    assert knows(late, {1, 2})
    assert knows(third, {1, 2})
    third.close()
    assert knows(late, {1, 2, 3})


def test_a_process_that_ended_before_the_others_came_has_ended(store: Any) -> None:
    open_presence(store, 5).close()
    assert soon(lambda: knows(open_presence(store, 2), {5}))


def test_a_stranger_is_no_process_of_the_job(store: Any) -> None:
    host = open_presence(store, 0)
    facts = json.loads(store.get("host"))
    member = open_presence(store, 1)
    for greeting in (b"", b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", b"short"):
        with socket.create_connection((facts["address"], facts["port"])) as stranger:
            stranger.sendall(greeting)
    member.close()
    assert knows(host, {1})
    host.close()


def test_a_stranger_at_the_address_of_the_host_is_not_believed(store: Any) -> None:
    store.add("hosts", 1)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port, machine = stranger.getsockname()[1], presence._describe_machine()
        facts = {"address": "127.0.0.1", "port": port, "token": "00" * 16, "rank": 0}
        store.set("host", json.dumps({**facts, "machine": machine}))
        guest = open_presence(store, 1)
        for answer in (b"", b"\x01" * 24):
            connection, _ = stranger.accept()
            connection.recv(1_000)
            connection.sendall(answer)
            connection.close()
            assert soon(lambda: not guest.find_ended() and is_pending(stranger))
        assert guest.find_ended() == set()
    assert knows(guest, {0}), "nobody listens there any more"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_an_address_that_two_machines_have_shows_nothing(store: Any, address: str) -> None:
    store.add("hosts", 1)
    facts = {"address": address, "port": 1, "token": "00" * 16, "rank": 0}
    store.set("host", json.dumps({**facts, "machine": "another"}))
    assert open_presence(store, 1).find_ended() == set()


def test_without_an_answer_from_the_store_nothing_is_watched(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "_CONNECT_S", 0.1)
    store.add("hosts", 1)
    assert open_presence(store, 1).find_ended() == set()


def test_nobody_waits_for_a_host_that_cannot_listen(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "missing")
    assert open_presence(store, 3).find_ended() == set()
    assert store.check(["host"])
    assert open_presence(store, 1).find_ended() == set()
