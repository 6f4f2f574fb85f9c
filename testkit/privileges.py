"""Calls without the privilege to read every file, which root has."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_VERSION = 0x20080522  # of the structures that capset takes


def call_unprivileged(function: Callable[[], T]) -> T:
    """Call a function in a thread for which the modes of files hold, even if the user is root."""
    with ThreadPoolExecutor(1, initializer=_give_up_capabilities) as thread:
        return thread.submit(function).result()


def _give_up_capabilities() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)  # 0 is this thread
    if libc.capset(header, (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "capset failed")
