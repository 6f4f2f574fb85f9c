"""Fixtures of the stores.

faulty    S3, then GCS, each behind a fault proxy
"""

from __future__ import annotations

import pytest

from tests.support.fault_proxy import FaultProxy


@pytest.fixture(params=["s3", "gcs"])
def faulty(request: pytest.FixtureRequest) -> tuple[str, FaultProxy]:
    """A location in a store that is reached through a fault proxy, and the proxy."""
    url = request.getfixturevalue(f"{request.param}_url")
    return url, request.getfixturevalue(f"{request.param}_proxy")
