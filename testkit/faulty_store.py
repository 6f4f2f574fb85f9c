"""An object store behind a fault proxy, and one object in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cloudload.data.storage.locations import Location
from cloudload.data.storage.urls import join_url
from testkit.fault_proxy import FaultProxy


@dataclass(frozen=True)
class FaultyStore:
    """A folder that is empty at first, the proxy in front of its store, and the object `key`."""

    url: str
    proxy: FaultProxy

    @property
    def key(self) -> str:
        return join_url(self.url, "key")

    def put(self, data: bytes) -> None:
        Location(self.key).write(data)

    def fail(self, match: str, action: str, **details: Any) -> None:
        self.proxy.fail(match, action, **details)
