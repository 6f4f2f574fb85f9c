"""Pass large bytes between processes as descriptors of anonymous memory, not through a pipe.

    worker ── result: [memory] ──► parent ── task: [memory, cut] ──► worker
                                   never reads or copies the bytes

The sender copies bytes of 1 MiB or more to anonymous memory. The parent receives them from a worker
as `SharedBytes`, which it can slice and send to a different worker without reading them. The kernel
frees the memory when its last descriptor is closed, even if a process is killed.
"""

from __future__ import annotations

import errno
import io
import os
import pickle
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cloudload.system.shared_memory import anonymous_file

_SHARED_FROM_BYTES = 1 << 20
_DESCRIPTORS_AT_ONCE = 200


class _Descriptor:
    """A file descriptor, closed when the last reference to it is dropped."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class SharedBytes:
    """Bytes in anonymous memory that processes can share. A slice uses the same memory."""

    def __init__(self, descriptor: _Descriptor, start: int, stop: int) -> None:
        self.descriptor, self.start, self.stop = descriptor, start, stop

    @staticmethod
    def of(data: bytes) -> SharedBytes:
        """Copy `data` to anonymous memory."""
        descriptor = _Descriptor(anonymous_file())
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor.number, left) :]
        return SharedBytes(descriptor, 0, len(data))

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, place: slice) -> SharedBytes:
        start, stop, _ = place.indices(len(self))
        return SharedBytes(self.descriptor, self.start + start, self.start + max(start, stop))

    def read(self) -> bytes:
        """Copy the bytes out of the shared memory."""
        pieces: list[bytes] = []
        place = self.start
        while place < self.stop:
            pieces.append(os.pread(self.descriptor.number, self.stop - place, place))
            place += len(pieces[-1])
        return b"".join(pieces) if len(pieces) != 1 else pieces[0]


class _Pickler(pickle.Pickler):
    """Pickles large bytes as references to descriptors, which `Message` sends separately."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.shared: list[SharedBytes] = []

    def persistent_id(self, value: Any) -> Any:
        if type(value) is bytes and len(value) >= _SHARED_FROM_BYTES:
            value = SharedBytes.of(value)
        if not isinstance(value, SharedBytes):
            return None
        self.shared.append(value)
        return len(self.shared) - 1, value.start, value.stop


class _Unpickler(pickle.Unpickler):
    """Unpickles each reference to shared bytes as `convert(SharedBytes)`."""

    def __init__(
        self,
        file: io.BytesIO,
        descriptors: list[_Descriptor],
        convert: Callable[[SharedBytes], Any],
    ) -> None:
        super().__init__(file)
        self._descriptors, self._convert = descriptors, convert

    def persistent_load(self, name: Any) -> Any:
        number, start, stop = name
        return self._convert(SharedBytes(self._descriptors[number], start, stop))


@dataclass(frozen=True)
class Message:
    """A pickled value and the shared bytes that it references."""

    pickled: bytes
    shared: tuple[SharedBytes, ...]

    @staticmethod
    def of(value: Any) -> Message:
        """Pickle a value. Raises the errors of `pickle` unchanged."""
        buffer = io.BytesIO()
        pickler = _Pickler(buffer)
        pickler.dump(value)
        return Message(buffer.getvalue(), tuple(pickler.shared))

    def send(self, pipe: socket.socket) -> None:
        """Send the message to a process that calls `receive`.

        Raises `OSError` if that process is gone.
        """
        numbers = [shared.descriptor.number for shared in self.shared]
        pipe.sendall(struct.pack("<QQ", len(self.pickled), len(numbers)))
        for first in range(0, len(numbers), _DESCRIPTORS_AT_ONCE):
            socket.send_fds(pipe, [b"d"], numbers[first : first + _DESCRIPTORS_AT_ONCE])
        pipe.sendall(self.pickled)


def receive(pipe: socket.socket, convert: Callable[[SharedBytes], Any]) -> Any:
    """Receive the next value, with `convert` applied to each of its `SharedBytes`.

    Raises `EOFError` if the sender closed its socket, and `OSError` if the connection fails or this
    process has too many open files.
    """
    size, count = struct.unpack("<QQ", _receive_exactly(pipe, 16))
    descriptors: list[_Descriptor] = []
    while len(descriptors) < count:
        expected = min(_DESCRIPTORS_AT_ONCE, count - len(descriptors))
        data, numbers, _, _ = socket.recv_fds(pipe, 1, expected)
        descriptors += map(_Descriptor, numbers)
        if not data:
            raise EOFError
        if len(numbers) < expected:
            raise OSError(errno.EMFILE, "too many open files: raise the limit (ulimit -n)")
    return _Unpickler(io.BytesIO(_receive_exactly(pipe, size)), descriptors, convert).load()


def _receive_exactly(pipe: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    left = memoryview(data)
    while left:
        count = pipe.recv_into(left)
        if not count:
            raise EOFError
        left = left[count:]
    return data
