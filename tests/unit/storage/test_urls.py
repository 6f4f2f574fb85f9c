"""Locations are checked and joined."""

from __future__ import annotations

import pytest

from cloudload.storage.urls import check_location

PASSWORD = "correct-horse-battery"


@pytest.mark.parametrize("url", [f"s3:reader:{PASSWORD}@host", f"https:reader:{PASSWORD}@host/key"])
def test_a_location_that_is_none_is_named_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="Did you mean") as caught:
        check_location(url)
    assert PASSWORD not in str(caught.value)
