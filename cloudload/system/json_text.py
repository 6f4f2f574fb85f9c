"""Reports as JSON: dataclasses as objects, and null for numbers that JSON does not have."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any


def to_json(value: Any, *, indent: int | None = 2, ensure_ascii: bool = True) -> str:
    """Format a report as JSON that every parser accepts. See `to_plain`."""
    plain = to_plain(value)
    return json.dumps(plain, indent=indent, ensure_ascii=ensure_ascii, allow_nan=False, default=str)


def to_plain(value: Any) -> Any:
    """Convert dataclasses to dicts, tuples to lists, and NaN and infinities to None, recursively.

    JSON can represent neither NaN nor infinities.
    """
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {name: to_plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
