"""Processes of a job notice which of them have ended, and ignore other programs."""

from __future__ import annotations

import errno
import functools
import json
import resource
import selectors
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


def test_a_process_that_was_never_connected_is_not_known_to_have_ended(store: Any) -> None:
    first = open_presence(store, 5)
    first.close()
    assert soon(lambda: refuses(address_of(store)))
    second, third = open_presence(store, 2), open_presence(store, 1)
    assert second.find_ended() == third.find_ended() == set()
    assert second.generation == third.generation != first.generation
    second.close()
    assert knows(third, {2})


def test_a_process_joins_no_generation_that_it_has_left(store: Any) -> None:
    earlier = open_presence(store, 0)
    later = open_presence(store, 1, {earlier.generation})
    earlier.close()
    other = open_presence(store, 2)
    assert other.generation == later.generation
    assert other.find_ended() == later.find_ended() == set()


@pytest.mark.parametrize("way", ["the host's side", "the other side"])
def test_a_process_whose_connection_broke_connects_again(store: Any, way: str) -> None:
    host, guest, other = (open_presence(store, rank) for rank in range(3))
    assert isinstance(host, presence._Host)
    assert isinstance(guest, presence._Guest)
    for _ in range(3):
        assert soon(lambda: sorted(host._ranks.values()) == [1, 2])
        [broken] = [each for each, rank in host._ranks.items() if rank == 1]
        (broken if way == "the host's side" else guest._connection).shutdown(socket.SHUT_RDWR)
        assert soon(functools.partial(is_closed, broken))
        assert soon(lambda: sorted(host._ranks.values()) == [1, 2])
        assert knows(host, set())
        assert knows(other, set())
        assert knows(guest, set())
    guest.close()
    assert knows(other, {1})


def test_an_error_about_one_connection_ends_no_other(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, guest = open_presence(store, 0), open_presence(store, 1)
    assert isinstance(host, presence._Host)
    register, errors = selectors.EpollSelector.register, ["No space left on device"]

    def fail_once(self: Any, file: Any, events: Any, data: Any = None) -> Any:
        if errors:
            raise OSError(errno.ENOSPC, errors.pop())
        return register(self, file, events, data)

    monkeypatch.setattr(selectors.EpollSelector, "register", fail_once)
    unwatched, watched = open_presence(store, 2), open_presence(store, 3)
    assert unwatched.generation == ""
    assert watched.generation == guest.generation == host.generation
    assert guest.find_ended() == unwatched.find_ended() == set()
    watched.close()
    assert knows(host, {3})


def test_a_socket_without_an_option_is_watched(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "TCP_USER_TIMEOUT", 9_999)
    host, guest = open_presence(store, 0), open_presence(store, 1)
    guest.close()
    assert knows(host, {1})


def test_most_of_the_open_files_are_left_to_the_program(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (12, 12))
    host = open_presence(store, 0)
    monkeypatch.undo()
    others = [open_presence(store, rank) for rank in range(1, 8)]
    assert isinstance(host, presence._Host)
    assert len(host._ranks) == 3
    assert [bool(each.generation) for each in others] == 3 * [True] + 4 * [False]
    [broken] = [each for each, rank in host._ranks.items() if rank == 1]
    broken.shutdown(socket.SHUT_RDWR)
    assert soon(lambda: broken.fileno() < 0 and len(host._ranks) == 3)
    assert knows(host, set()), "a process that returns has a place"
    others[-1].close()
    others[0].close()
    assert knows(host, {1})


def test_a_host_name_that_cannot_be_encoded_is_no_error(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: 64 * "x" + ".example")
    host, guest = open_presence(store, 0), open_presence(store, 1)
    guest.close()
    assert knows(host, {1})


def is_closed(connection: socket.socket) -> bool:
    return connection.fileno() < 0


def address_of(store: Any) -> tuple[str, int]:
    facts = json.loads(store.get("host"))
    return facts["address"], facts["port"]


def refuses(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address).close()
    except ConnectionRefusedError:
        return True
    return False


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


def test_a_stranger_at_the_address_of_the_host_is_not_believed(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "_CONNECT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        facts = {"address": "127.0.0.1", "port": port, "token": "00" * 16, "rank": 0}
        store.set("host", json.dumps(facts))
        guest = open_presence(store, 1)
        connection, _ = stranger.accept()
        connection.recv(1_000)
        connection.sendall(b"\x01" * 24)
        connection.close()
        assert guest.generation == ""
    assert guest.find_ended() == set(), "nobody listens there any more"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_refused_connection_shows_nothing(store: Any, address: str) -> None:
    store.set("host", json.dumps({"address": address, "port": 1, "token": "00" * 16, "rank": 0}))
    first, second = open_presence(store, 1), open_presence(store, 2)
    assert first.find_ended() == second.find_ended() == set()
    assert first.generation == second.generation != ""


def test_without_an_answer_from_the_store_nothing_is_watched(store: Any) -> None:
    store.set("host", "what an older version wrote")
    assert open_presence(store, 1).find_ended() == set()


def test_a_process_that_cannot_listen_leaves_that_to_another(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "missing")
    assert open_presence(store, 3).find_ended() == set()
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    host = open_presence(store, 1)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "missing")
    open_presence(store, 2).close()
    assert knows(host, {2})
