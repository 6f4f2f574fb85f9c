"""Detect processes of a job that have ended, because the kernel then closes their connections.

    process 2    creates a loader first: listens, and publishes its address in the store
    process 0    creates a loader: connects ◄──────── tells which have ended ── process 2
    process 1    creates a loader: connects ─── is killed: its connection closes

A connection does not depend on what a process does: one that compiles a model for an hour, or is
stopped, keeps it. A thread connects again if a connection breaks. A process that cannot connect is
not watched. Every doubt means that a process has not ended.

The store may contain the address of an earlier job. A process that is refused there, or that
remembers the address from a job that it left, listens and publishes an address itself.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import resource
import secrets
import selectors
import socket
import struct
import threading
import time
import weakref
from collections.abc import Collection
from typing import Any

logger = logging.getLogger(__name__)

_CONNECT_S = 5.0
_RETRY_S, _LONGEST_RETRY_S = 0.2, 60.0
_IDLE_S, _PROBE_EVERY_S, _PROBES = 15, 5, 6
_UNREACHABLE_MS = 1_000 * (_IDLE_S + _PROBE_EVERY_S * _PROBES)
_BACKLOG, _TOKEN_BYTES, _CHUNK, _MOST_TOLD = 4_096, 16, 4_096, 64
_RANK = struct.Struct("<i")
_GET_INTERFACE_ADDRESS = 0x8915  # SIOCGIFADDR of linux/sockios.h

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_in_child() -> None:
    """Close a child's copies of the sockets, because they would hide the end of its parent."""
    for each in list(_sockets):
        each.close()


os.register_at_fork(after_in_child=_close_in_child)


class Presence:
    """One process's connection to the others. This base class has none, and so finds no end."""

    generation = ""
    """Equal for processes that are connected to the same process of the same job."""

    def find_ended(self) -> set[int]:
        """The processes that seem to have ended. One that connects again is left out again."""
        return set()

    def close(self) -> None:
        """Close the connections. The other processes then regard this process as ended."""


def open_presence(store: Any, rank: int, retired: Collection[str] = ()) -> Presence:
    """Connect process `rank` to the others. Does not wait for processes that have not called this.

    `store` is a `torch.distributed.Store`, with keys that only these calls use. `retired` has the
    generations of earlier jobs of this process. Without an answer from the store or from the other
    process, nothing is watched.
    """
    try:
        return _open(store, rank, retired)
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        logger.debug("the end of other processes will not be noticed early: %s", error)
        return Presence()


def _open(store: Any, rank: int, retired: Collection[str]) -> Presence:
    found = store.get("host").decode() if store.check(["host"]) else ""
    if found and json.loads(found)["token"] not in retired:
        with contextlib.suppress(ConnectionRefusedError):  # an earlier job's, or it has ended
            return _Guest(rank, json.loads(found))
    host = _Host(rank)
    current = store.compare_set("host", found, host.facts).decode()
    if current == host.facts:
        return host
    host.close()
    return _Guest(rank, json.loads(current))


# ---------------------------------------------------------------- the process that listens


class _Host(Presence):
    """Listens for the other processes, and knows whose connection has closed.

    Only a quarter of the files that this process may open are used for connections.
    """

    def __init__(self, rank: int) -> None:
        self._token, self._ended = secrets.token_bytes(_TOKEN_BYTES), set[int]()
        self.generation = self._token.hex()
        self._listener, self._selector = _listen(), selectors.DefaultSelector()
        self._greetings: dict[socket.socket, bytes] = {}
        """The part of the token and rank that each connection has sent so far."""
        self._ranks: dict[socket.socket, int] = {}
        address, port = self._listener.getsockname()[:2]
        facts = {"address": address, "port": port, "token": self.generation, "rank": rank}
        self.facts = json.dumps(facts)
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = open_files // 4 if open_files != resource.RLIM_INFINITY else 1 << 16
        threading.Thread(target=self._serve, name="cloudload-presence", daemon=True).start()

    def find_ended(self) -> set[int]:
        return set(self._ended)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # wakes the thread, which closes everything
            self._listener.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        with self._selector as selector, self._listener:
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
            if error.errno in (errno.EMFILE, errno.ENFILE):  # it would be ready again at once
                time.sleep(_RETRY_S)
            return error.errno not in (errno.EINVAL, errno.EBADF)
        try:
            if len(self._greetings) + len(self._ranks) >= 2 * self._most:
                raise OSError("too many connections")
            _watch(connection)
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ)
            self._greetings[connection] = b""
        except Exception as error:  # an end of this thread would look like the end of the process
            logger.debug("a process is not watched: %s", error)
            connection.close()
        return True

    def _read(self, connection: socket.socket, selector: selectors.BaseSelector) -> None:
        try:
            data = connection.recv(_CHUNK)
            is_open = bool(data)
            if is_open and connection in self._greetings:
                is_open = self._greet(connection, data)
        except BlockingIOError:
            return
        except OSError:
            is_open = False
        if not is_open:
            selector.unregister(connection)
            self._greetings.pop(connection, None)
            rank = self._ranks.pop(connection, None)
            connection.close()
            if rank is not None and rank not in self._ranks.values():
                self._ended.add(rank)
                if len(self._ended) <= _MOST_TOLD:
                    self._tell(rank + 1)

    def _greet(self, connection: socket.socket, data: bytes) -> bool:
        """Learn which process has connected. Returns False if it cannot be watched."""
        greeting = self._greetings[connection] + data
        self._greetings[connection] = greeting[: _TOKEN_BYTES + _RANK.size]
        if len(greeting) < _TOKEN_BYTES + _RANK.size:
            return True
        if not secrets.compare_digest(greeting[:_TOKEN_BYTES], self._token):
            return False
        (rank,) = _RANK.unpack_from(greeting, _TOKEN_BYTES)
        if rank in self._ended:
            self._ended.discard(rank)
            self._tell(-rank - 1)
        elif len(self._ranks) >= self._most:
            return False
        del self._greetings[connection]
        self._ranks[connection] = rank
        told = sorted(self._ended)[:_MOST_TOLD]
        connection.send(self._token + b"".join(_RANK.pack(each + 1) for each in told))
        return True

    def _tell(self, change: int) -> None:
        """Tell the others that process `change - 1` has ended, or that `-change - 1` has not."""
        for connection in self._ranks:
            with contextlib.suppress(OSError):
                try:
                    connection.send(_RANK.pack(change))
                except OSError:  # it must connect again to learn of the change
                    connection.shutdown(socket.SHUT_RDWR)


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
    with contextlib.suppress(OSError, UnicodeError):  # a label of over 63 characters
        found_all = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
        addresses = [str(each[4][0]) for each in found_all]
    return [*addresses, "127.0.0.1"]


# ---------------------------------------------------------------- the processes that connect


class _Guest(Presence):
    """A connection to the host.

    The host proves itself by its token, because another program may listen at its address. If the
    connection breaks after that, and then nobody listens there, the host has ended. Raises
    `OSError` if it cannot connect: nothing is known of the host then.
    """

    def __init__(self, rank: int, host: dict[str, Any]) -> None:
        self._greeting = bytes.fromhex(host["token"]) + _RANK.pack(rank)
        self._host, self._token = host["rank"], host["token"]
        self._address = (host["address"], host["port"])
        self._ended, self._closing = set[int](), threading.Event()
        self._answered = threading.Event()
        self._connection = self._connect()
        threading.Thread(target=self._follow, name="cloudload-presence", daemon=True).start()
        self._answered.wait(_CONNECT_S)

    def find_ended(self) -> set[int]:
        return set(self._ended)

    def close(self) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):  # wakes the thread
            self._connection.shutdown(socket.SHUT_RDWR)

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(self._address, _CONNECT_S)
        _watch(connection)
        connection.settimeout(None)
        connection.send(self._greeting)
        return connection

    def _follow(self) -> None:
        """Follow what the host tells, and connect again whenever the connection breaks."""
        is_connected = True
        while is_connected:
            with contextlib.suppress(OSError), self._connection:
                self._receive(self._connection)
            self._answered.set()
            is_connected = bool(self.generation) and self._connect_again()

    def _receive(self, connection: socket.socket) -> None:
        received, is_proven = b"", False
        while data := connection.recv(_CHUNK):
            received += data
            if not is_proven:
                if len(received) < _TOKEN_BYTES:
                    continue
                if received[:_TOKEN_BYTES].hex() != self._token:
                    return
                is_proven, received = True, received[_TOKEN_BYTES:]
                self.generation = self._token
                self._answered.set()
            whole = len(received) // _RANK.size * _RANK.size
            for (change,) in _RANK.iter_unpack(received[:whole]):
                if change > 0:
                    self._ended.add(change - 1)
                else:
                    self._ended.discard(-change - 1)
            received = received[whole:]

    def _connect_again(self) -> bool:
        """Try until it succeeds. Returns False if this process closes the connection."""
        wait_s, known = _RETRY_S, self._ended
        self._ended = set()
        while not self._closing.wait(wait_s):
            try:
                self._connection = self._connect()
                return not self._closing.is_set()
            except ConnectionRefusedError:
                self._ended = {self._host, *known}
            except OSError as error:
                logger.debug("cannot connect to process %d again: %s", self._host, error)
            wait_s = min(2 * wait_s, _LONGEST_RETRY_S)
        return False


def _watch(connection: socket.socket) -> None:
    """Let the kernel probe the other machine, and end the connection if it does not answer."""
    _sockets.add(connection)
    for level, option, value in (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREACHABLE_MS),
    ):
        with contextlib.suppress(OSError):  # not every network stack has all options
            connection.setsockopt(level, option, value)
