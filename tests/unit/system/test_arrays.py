"""Integers, and integer arrays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloudload.system.arrays import divisors


@given(st.integers(1, 5_000))
def test_divisors_divide(number: int) -> None:
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]
