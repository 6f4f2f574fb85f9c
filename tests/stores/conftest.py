"""Fixtures for the tests of object stores.

faulty      S3, then GCS, each behind a fault proxy
hub_server  a stand-in for the Hugging Face Hub
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testkit.fake_hub import FakeHub, fake_hub
from testkit.faulty_store import FaultyStore


@pytest.fixture(params=["s3", "gcs"])
def faulty(request: pytest.FixtureRequest) -> FaultyStore:
    url = request.getfixturevalue(f"{request.param}_url")
    return FaultyStore(url, request.getfixturevalue(f"{request.param}_proxy"))


@pytest.fixture(scope="session")
def hub_server() -> Iterator[FakeHub]:
    """A Hub. There is one for all tests, because the Hub's client keeps its URL."""
    pytest.importorskip("fsspec")
    with fake_hub("owner/name", {"0" * 40: {}}) as hub:
        yield hub
