"""Start the object stores of the campaigns, each behind a fault proxy."""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from testkit.fault_proxy import Fault, FaultProxy, start_fault_proxy
from testkit.servers import BUCKET, GCSServer, S3Server, start_gcs, start_s3

S3_ERRORS = (
    (503, "SlowDown"),
    (500, "InternalError"),
    (429, "TooManyRequests"),
    (504, "GatewayTimeout"),
)
GCS_ERRORS = (
    (503, "backendError"),
    (500, "internalError"),
    (429, "rateLimitExceeded"),
    (504, "gatewayTimeout"),
)


@dataclass(frozen=True)
class Store:
    """A running store, and the fault proxy through which jobs read from it."""

    scheme: str
    """The scheme of the store's URLs, `s3` or `gs`."""
    server: S3Server | GCSServer
    proxy: FaultProxy

    def url(self, path: str) -> str:
        """The URL of a folder in the store's bucket."""
        return f"{self.scheme}://{BUCKET}/{path}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of a job that reads this store through the proxy."""
        return self.server.environment(self.proxy.endpoint)

    def set_faults(self, draw: random.Random, share: float) -> None:
        """Inject faults into about `share` of the shard requests, and fewer of all others."""
        is_gcs, at = self.scheme == "gs", draw.randrange(600)
        status, code = draw.choice(GCS_ERRORS if is_gcs else S3_ERRORS)
        of_shards = [
            Fault("GET .*shard", "truncate", share=share / 4, at=at),
            # corruption is rare, because a job fails if a shard is corrupt twice in a row
            Fault("GET .*shard", "corrupt", share=share / 10, at=at),
            Fault("GET .*shard", "stall", share=share / 20, at=at, seconds=5),
        ]
        of_all = [
            Fault(".", "status", share=share / 4, status=status, code=code, as_json=is_gcs),
            Fault(".", "reset", share=share / 4),
            Fault(".", "delay", share=share / 8, seconds=0.3),
            Fault(".", "drop", share=share / 40, seconds=5),
        ]
        self.proxy.set_faults(of_shards + of_all)

    def count_faults(self) -> Counter[str]:
        """Count the faults of each kind that were injected since the last `set_faults`."""
        return Counter(request.action for request in self.proxy.requests() if request.action)


@contextlib.contextmanager
def start_stores() -> Iterator[tuple[Store, ...]]:
    """Start an S3 and a GCS server, and let this process read from both without a proxy."""
    with (
        start_s3() as s3,
        start_fault_proxy(s3.endpoint) as s3_proxy,
        start_gcs() as gcs,
        start_fault_proxy(gcs.endpoint) as gcs_proxy,
    ):
        os.environ.update(s3.environment() | gcs.environment())
        yield Store("s3", s3, s3_proxy), Store("gs", gcs, gcs_proxy)
