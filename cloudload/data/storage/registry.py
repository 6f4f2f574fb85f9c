"""The backend of each URL scheme. Schemes that are not listed here use fsspec.

`docs/contributing/architecture.md` explains how to add a store.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from cloudload.data.storage.base import Backend
from cloudload.data.storage.fsspec import FsspecStore
from cloudload.data.storage.gcs import GCSStore
from cloudload.data.storage.local import LocalStore
from cloudload.data.storage.s3 import GCSByHMAC, S3Store
from cloudload.data.storage.streaming import STREAMING_ONLY, StreamingStore
from cloudload.data.storage.urls import scheme_of


def _make_gcs() -> Backend:
    return GCSByHMAC() if "GCS_KEY" in os.environ and "GCS_SECRET" in os.environ else GCSStore()


_BACKENDS: dict[str, Callable[[], Backend]] = {
    "file": LocalStore,
    "s3": S3Store,
    "gs": _make_gcs,
    **dict.fromkeys(STREAMING_ONLY, StreamingStore),
}

_open: dict[tuple[int, str], Backend] = {}


def backend_of(url: str) -> Backend:
    """Return the backend of a URL's scheme, and create it on first use.

    Each process creates its own backends, so a forked worker never uses an inherited connection.
    """
    scheme = scheme_of(url)
    key = (os.getpid(), scheme)
    # if several threads create a backend at the same time, keep the first
    return _open.get(key) or _open.setdefault(key, _BACKENDS.get(scheme, FsspecStore)())
