"""Rows of a file that were encoded as samples, and how they are transferred to a shard.

    row groups ─► arrow_samples ─┐
                                 ├─► EncodedRows, EncodedRows, … ─► virtual_shards ─► raw shard
    lines      ─► json_lines ────┘

A reader of a stored form yields them in order. It raises `FileFaultError` if the file is damaged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from cloudload.data.storage.retries import Watch
from cloudload.system import Ints

Resize = Callable[[int], object]
"""Called with the size, in bytes, that the file of a shard must have room for."""


class EncodedRows(NamedTuple):
    """Encoded samples, one after another, and the size of each in bytes: int64 [samples]."""

    data: bytes | memoryview
    sizes: Ints


class FileFaultError(Exception):
    """The fault of a file, as text to put after its name."""


@dataclass(frozen=True)
class Transfer:
    """How a shard is read and written."""

    count_bytes: Callable[[int], None]
    """Called once with the number of downloaded bytes."""
    resize: Resize = lambda _: None
    """Called before the file grows, and at the end with its size."""
    watch: Watch | None = None
    """The observer of the requests; see `storage.retries`."""
    checks_hash: bool = True
    """Whether to check the hash of the stored bytes, if the index has one."""
