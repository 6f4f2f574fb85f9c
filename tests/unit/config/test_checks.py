"""Sizes in bytes may be numbers or text with a unit, and anything else is an error."""

from __future__ import annotations

import math

import pytest

from cloudload.config import parse_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [(5, 5), ("5", 5), ("2kb", 2048), ("1.5GB", 3 << 29), ("64MiB", 64 << 20), ("1t", 1 << 40)],
)
def test_sizes_are_read_as_people_write_them(text: int | str, expected: int) -> None:
    assert parse_bytes(text) == expected
    assert math.isfinite(parse_bytes(text))


@pytest.mark.parametrize("text", ["", "gb", "-5", "5 apples", "1.2.3mb", 0, -1, True, "0.1"])
def test_what_is_no_size_is_refused(text: int | str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(text)
