"""A URL whose scheme has no backend is refused with an error that names the scheme."""

from __future__ import annotations

import pytest

from cloudload.data.storage.objects import read_object
from cloudload.errors import StoreError
from testkit.patience import SOON_S, within


def test_a_scheme_that_nothing_serves_is_named() -> None:
    with within(SOON_S), pytest.raises(StoreError, match="nosuch://"):
        read_object("nosuch://bucket/key")
