"""Fixtures for the tests of object stores.

faulty    S3, then GCS, each behind a fault proxy
"""

from __future__ import annotations

import pytest

from testkit.fault_proxy import FaultProxy


@pytest.fixture(params=["s3", "gcs"])
def faulty(request: pytest.FixtureRequest) -> tuple[str, FaultProxy]:
    """The URL of an empty folder in S3 or GCS, and the fault proxy in front of the store."""
    url = request.getfixturevalue(f"{request.param}_url")
    return url, request.getfixturevalue(f"{request.param}_proxy")
