"""Fields of a state, encoded without cloudload's own code, and states without some fields."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np


def table(*cursors: tuple[int, int]) -> str:
    return base64.b64encode(np.array(cursors, "<i4").tobytes()).decode()


def residues(*parts: list[int], sizes: list[int] | None = None) -> str:
    """The encoded residues of 12 lanes. Lanes past the given `parts` have empty residues."""
    lanes = [np.array(part, "<i4").tobytes() for part in (*parts, *[[]] * (12 - len(parts)))]
    numbers = np.array(sizes or [len(lane) for lane in lanes], "<i4").tobytes() + b"".join(lanes)
    return base64.b64encode(
        zlib.compress(np.frombuffer(numbers, np.uint8).reshape(-1, 4).T.tobytes())
    ).decode()


def without(state: Mapping[str, Any], *fields: str) -> dict[str, Any]:
    """A copy of the state without these fields."""
    return {name: value for name, value in state.items() if name not in fields}
