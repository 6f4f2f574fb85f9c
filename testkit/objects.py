"""A test for the existence of a stored object."""

from __future__ import annotations

from cloudload.data.storage.base import Retry
from cloudload.data.storage.objects import open_object
from cloudload.errors import StoreError


def object_exists(url: str, retry: Retry | None = None) -> bool:
    """Whether the object exists. Raises all errors except the one for a missing object."""
    try:
        open_object(url, retry).close()
    except StoreError as error:
        if error.is_missing:
            return False
        raise
    return True
