"""`send` sends what `Connection.recv` receives, and its errors keep no view of a `BytesIO`."""

from __future__ import annotations

import threading
import traceback
from multiprocessing import Pipe

import pytest

from cloudload.system.child_processes import send


def test_a_value_is_received_unchanged() -> None:
    ours, theirs = Pipe()
    value = {"one": [b"x" * 10_000], "two": print}
    send(ours, value)
    assert theirs.recv() == value


def test_the_traceback_of_a_failed_send_has_no_view_of_a_bytes_io() -> None:
    ours, theirs = Pipe()
    theirs.close()
    with pytest.raises(BrokenPipeError) as raised:
        send(ours, b"x" * 10_000)
    frames = [frame for frame, _ in traceback.walk_tb(raised.tb)]
    views = [value for frame in frames for value in frame.f_locals.values()]
    views = [value for value in views if isinstance(value, memoryview)]
    assert views, "the frame that writes has a view of the bytes"
    assert all(isinstance(view.obj, bytes) for view in views)


def test_a_value_without_a_pickle_raises_the_picklers_error() -> None:
    ours, _theirs = Pipe()
    with pytest.raises(TypeError, match="cannot pickle"):
        send(ours, threading.Lock())
