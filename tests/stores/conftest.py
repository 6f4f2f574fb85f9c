"""Fixtures for the tests of object stores.

faulty    S3, then GCS, each behind a fault proxy
"""

from __future__ import annotations

import pytest

from testkit.faulty_store import FaultyStore


@pytest.fixture(params=["s3", "gcs"])
def faulty(request: pytest.FixtureRequest) -> FaultyStore:
    url = request.getfixturevalue(f"{request.param}_url")
    return FaultyStore(url, request.getfixturevalue(f"{request.param}_proxy"))
