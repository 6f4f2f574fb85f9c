"""Parse JSON objects with orjson if the standard library would parse the same values.

orjson is several times faster. It refuses some JSON that the standard library accepts, such as NaN
and unpaired surrogates, and reads an integer beyond 64 bits as a float. The standard library parses
the objects that orjson refuses or may read differently, and describes what is wrong with an invalid
object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cloudload.tools.convert.records import describe_not_json, describe_not_utf8, name_kind

try:
    import orjson
except ImportError:  # orjson has no wheel for some platforms
    orjson = None  # type: ignore[assignment]

NOT_JSON, NOT_AN_OBJECT = "the record is invalid JSON", "the record is not an object"

Parsed = tuple[Mapping[str, Any] | None, str | None]
"""(fields, None), or (None, the problem)."""

_ALWAYS_EQUAL = frozenset([str, int, bool, type(None)])
_INTEGERS_FIT_BELOW = 2.0**63
_MAX_DEPTH = 32  # far below the standard library's limit, which depends on the stack


def parse_object(data: bytes) -> Parsed:
    """Parse a JSON object. Return (its fields, None), or (None, the problem)."""
    if (fields := _parse_quickly(data)) is not None:
        return fields, None
    try:
        value = json.loads(data.decode())
    except UnicodeDecodeError as error:
        return None, f"the record is {describe_not_utf8(error)}"
    except json.JSONDecodeError as error:
        return None, f"{NOT_JSON} ({describe_not_json(error)} at column {error.colno})"
    except (ValueError, RecursionError) as error:
        return None, f"{NOT_JSON} ({error})"
    if isinstance(value, dict):
        return value, None
    return None, f"{NOT_AN_OBJECT}, but {name_kind(value)}"


def _parse_quickly(data: bytes) -> dict[str, Any] | None:
    """Return the fields of a JSON object, or None if the standard library must parse it."""
    if orjson is None:
        return None
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return value if type(value) is dict and _are_equal(value.values(), _MAX_DEPTH) else None


def _are_equal(values: Any, depth: int) -> bool:
    """Whether the standard library is certain to parse the same values."""
    for value in values:
        kind = type(value)
        if kind in _ALWAYS_EQUAL:
            continue
        if kind is float:
            if abs(value) >= _INTEGERS_FIT_BELOW:
                return False  # it may be an integer beyond 64 bits
        elif depth == 0 or not _are_equal(value.values() if kind is dict else value, depth - 1):
            return False
    return True
