"""Detect processes of a job that have ended, because the kernel then closes their connections.

    process 2    creates a loader first: listens, and publishes its address in the store
    process 0    creates a loader: connects ───────── asks process 2 which have ended ──► 1
    process 1    creates a loader: connects ─── is killed: its connection closes

The connection of a living process stays open, even while the process compiles a model for an hour
or is stopped. A machine that is unreachable for 45 s counts as ended. If a process cannot connect,
the others do not notice its end.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import logging
import os
import secrets
import selectors
import socket
import struct
import threading
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_CONNECT_S = 5.0
_IDLE_S, _PROBE_EVERY_S, _PROBES = 15, 5, 6
_UNREACHABLE_MS = 1_000 * (_IDLE_S + _PROBE_EVERY_S * _PROBES)
_BACKLOG, _TOKEN_BYTES, _CHUNK, _MOST_TOLD = 4_096, 16, 4_096, 64
_RANK = struct.Struct("<I")
_ASK = b"?"
_GET_INTERFACE_ADDRESS = 0x8915  # SIOCGIFADDR of linux/sockios.h

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_in_child() -> None:
    """Close a child's copies of the sockets, because they would hide the end of its parent."""
    for each in list(_sockets):
        each.close()


os.register_at_fork(after_in_child=_close_in_child)


class Presence:
    """One process's connection to the others. This base class has none, and so finds no end."""

    def find_ended(self) -> set[int]:
        """Return the ranks of the processes that have ended, as far as this process knows.

        This also asks another process, whose answer is in the result of the next call.
        """
        return set()

    def close(self) -> None:
        """Close the connections. The other processes then regard this process as ended."""


def open_presence(store: Any, rank: int) -> Presence:
    """Connect process `rank` to the others. Does not wait for processes that have not called this.

    `store` is a `torch.distributed.Store`, with keys that only these calls use. Without an answer
    from the store or from the other process, no end is noticed.
    """
    try:
        if store.add("hosts", 1) == 1:
            return _open_host(store, rank)
        store.wait(["host"], timedelta(seconds=_CONNECT_S))
        host = json.loads(store.get("host"))
        if host is None:
            return Presence()
        if host["machine"] != _describe_machine() and _is_own(host["address"]):
            raise OSError(f"{host['address']} is an address of both this and another machine")
        return _Guest(rank, host)
    except (OSError, RuntimeError) as error:
        logger.debug("this process will not notice early if another process ends: %s", error)
        return Presence()


def _open_host(store: Any, rank: int) -> Presence:
    try:
        return _Host(store, rank)
    except OSError:
        store.set("host", "null")  # so that the others do not wait for an address
        raise


# ---------------------------------------------------------------- the process that listens


class _Host(Presence):
    """Listens for the other processes, and records the ranks whose connections have closed."""

    def __init__(self, store: Any, rank: int) -> None:
        self._token, self._ended = secrets.token_bytes(_TOKEN_BYTES), set[int]()
        self._listener = _listen()
        self._greetings: dict[socket.socket, bytes] = {}
        """The part of the token and rank that each connection has sent so far."""
        self._ranks: dict[socket.socket, int] = {}
        address, port = self._listener.getsockname()[:2]
        facts = {"address": address, "port": port, "token": self._token.hex(), "rank": rank}
        store.set("host", json.dumps({**facts, "machine": _describe_machine()}))
        threading.Thread(target=self._serve, name="cloudload-presence", daemon=True).start()

    def find_ended(self) -> set[int]:
        return set(self._ended)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # wakes the thread, which closes everything
            self._listener.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector, self._listener:
            selector.register(self._listener, selectors.EVENT_READ)
            is_open = True
            while is_open:
                for key, _ in selector.select():
                    if key.fileobj is self._listener:
                        is_open = self._accept(selector)
                    else:
                        self._read(key.fileobj, selector)  # type: ignore[arg-type]
        for connection in [*self._greetings, *self._ranks]:
            connection.close()

    def _accept(self, selector: selectors.BaseSelector) -> bool:
        """Accept a connection. Returns False if the listener was closed."""
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                selector.unregister(self._listener)
                logger.debug("too many open files to watch more processes: %s", error)
            return error.errno not in (errno.EINVAL, errno.EBADF)
        _sockets.add(connection)
        _watch(connection)
        self._greetings[connection] = b""
        selector.register(connection, selectors.EVENT_READ)
        return True

    def _read(self, connection: socket.socket, selector: selectors.BaseSelector) -> None:
        try:
            data = connection.recv(_CHUNK)
            is_open = bool(data)
            if is_open and connection in self._ranks:
                ended = itertools.islice(self._ended, _MOST_TOLD)
                connection.send(b"".join(map(_RANK.pack, ended)))
            elif is_open:
                is_open = self._greet(connection, data)
        except BlockingIOError:
            return
        except OSError:
            is_open = False
        if not is_open:
            selector.unregister(connection)
            self._greetings.pop(connection, None)
            if (rank := self._ranks.pop(connection, None)) is not None:
                self._ended.add(rank)
            connection.close()

    def _greet(self, connection: socket.socket, data: bytes) -> bool:
        """Read the rank of a connection. Returns False if it is not from a process of the job."""
        greeting = self._greetings[connection] + data
        self._greetings[connection] = greeting[: _TOKEN_BYTES + _RANK.size]
        if len(greeting) < _TOKEN_BYTES + _RANK.size:
            return True
        if not secrets.compare_digest(greeting[:_TOKEN_BYTES], self._token):
            return False
        del self._greetings[connection]
        (self._ranks[connection],) = _RANK.unpack_from(greeting, _TOKEN_BYTES)
        connection.send(self._token)
        return True


def _listen() -> socket.socket:
    """Listen at the address at which gloo would listen, because all processes can connect to it."""
    for address in _own_addresses():
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        _sockets.add(listener)
        with contextlib.suppress(OSError):
            listener.bind((address, 0))
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            return listener
        listener.close()
    raise OSError("this process cannot listen at any address")


def _own_addresses() -> list[str]:
    if interface := os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            request = struct.pack("256s", interface.encode()[:15])
            found = fcntl.ioctl(any_socket.fileno(), _GET_INTERFACE_ADDRESS, request)
        return [socket.inet_ntoa(found[20:24])]
    addresses: list[str] = []
    with contextlib.suppress(OSError):
        found_all = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
        addresses = [str(each[4][0]) for each in found_all]
    return [*addresses, "127.0.0.1"]


# ---------------------------------------------------------------- the processes that connect


class _Guest(Presence):
    """A connection to the host. If it closes, the host has ended.

    The host first sends its token, because another program may listen at this address. A connection
    that closes before the token arrives proves nothing, so the guest connects again. If the address
    refuses the connection, the host has ended.
    """

    def __init__(self, rank: int, host: dict[str, Any]) -> None:
        self._rank, self._host, self._token = rank, host["rank"], bytes.fromhex(host["token"])
        self._address, self._received = (host["address"], host["port"]), b""
        self._connection: socket.socket | None = None
        self._has_lost_host = False
        self._connect()

    def _connect(self) -> None:
        try:
            connection = socket.create_connection(self._address, _CONNECT_S)
        except ConnectionRefusedError:
            self._has_lost_host = True
            return
        _sockets.add(connection)
        _watch(connection)
        self._connection, self._received = connection, b""
        connection.send(self._token + _RANK.pack(self._rank))

    def find_ended(self) -> set[int]:
        if self._connection is not None and not self._receive(self._connection):
            self.close()
            if self._received.startswith(self._token):
                self._has_lost_host = True
            else:
                with contextlib.suppress(OSError):
                    self._connect()
        ended = {self._host} if self._has_lost_host else set()
        if self._received.startswith(self._token):
            ranks = self._received[_TOKEN_BYTES:]
            whole = ranks[: len(ranks) // _RANK.size * _RANK.size]
            ended |= {rank for (rank,) in _RANK.iter_unpack(whole)}
        return ended

    def _receive(self, connection: socket.socket) -> bool:
        """Ask the host for ended ranks, and read its answers. Returns False if it has closed."""
        with contextlib.suppress(
            OSError
        ):  # `recv` reports the error, after the data that arrived before it
            connection.send(_ASK)
        try:
            while data := connection.recv(_CHUNK):
                self._received += data
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _watch(connection: socket.socket) -> None:
    """Make the kernel probe the other machine, and close the connection if it does not answer."""
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in {
        socket.TCP_KEEPIDLE: _IDLE_S,
        socket.TCP_KEEPINTVL: _PROBE_EVERY_S,
        socket.TCP_KEEPCNT: _PROBES,
        socket.TCP_USER_TIMEOUT: _UNREACHABLE_MS,
    }.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _describe_machine() -> str:
    """A text that is the same for all processes with the same network interfaces."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/net')}"
    return socket.gethostname()


def _is_own(address: str) -> bool:
    """Whether an address belongs to this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family) as trial:
        trial.bind((address, 0))
        return True
    return False
