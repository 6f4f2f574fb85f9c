"""A test for the existence of a stored object."""

from __future__ import annotations

from cloudload.data.storage.base import Retry
from cloudload.data.storage.locations import Location
from cloudload.errors import StoreError


def object_exists(url: str, retry: Retry | None = None) -> bool:
    """Whether the object exists. Raises all errors except the one for a missing object."""
    try:
        Location(url, retry or Retry()).open().close()
    except StoreError as error:
        if error.is_missing:
            return False
        raise
    return True
