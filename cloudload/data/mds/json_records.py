"""Parse lines of JSON to records, or say what is wrong with them.

    {"text": "a"}     {"text": "a"}
    {"text": "a",     None, "the record is invalid JSON (…). Write one object per line …"
    ["a"]             None, "the record is not an object, but a list. …"

The converter and the reader of JSON Lines that stay where they are share this module, so that both
find the same records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cloudload.data import file_kinds
from cloudload.data.file_content import BYTE_ORDER_MARK
from cloudload.data.mds.record_values import Parsed, name_kind

try:
    import orjson
except ImportError:  # orjson has no wheel for some platforms
    orjson = None  # type: ignore[assignment]

_ONE_PER_LINE = "Write one object per line"
_JQ = "jq -c . FILE"
_RECORD_SEPARATOR = b"\x1e"

NOT_JSON, NOT_AN_OBJECT = "the record is invalid JSON", "the record is not an object"

_ALWAYS_EQUAL = frozenset([str, int, bool, type(None)])
_INTEGERS_FIT_BELOW = 2.0**63
_MAX_DEPTH = 32  # far below the standard library's limit, which depends on the stack


def split_lines(data: bytes, *, is_first: bool) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line without its ending) of each line.

    `is_first` says whether the file begins with `data`, and so perhaps with a byte order mark.
    """
    begin = len(BYTE_ORDER_MARK) if is_first and data.startswith(BYTE_ORDER_MARK) else 0
    while begin < len(data):
        end = data.find(b"\n", begin)
        end = len(data) if end < 0 else end
        yield begin, data[begin:end].removesuffix(b"\r")
        begin = end + 1


def count_records(data: bytes, *, is_first: bool) -> int:
    """Count the lines of `data`, which are whole, that are not blank. See `split_lines`."""
    lines = (data.removeprefix(BYTE_ORDER_MARK) if is_first else data).split(b"\n")
    return sum(map(bool, map(bytes.strip, lines)))


def parse_lines(data: bytes, *, is_first: bool) -> Iterator[tuple[int, int, bytes, Parsed]]:
    """Yield (number, offset, line, its object as from `parse_line`) of each line that is not blank.

    The first line has the number 0. See `split_lines`.
    """
    for number, (begin, line) in enumerate(split_lines(data, is_first=is_first)):
        if (fields := _parse_quickly(line)) is not None:
            yield number, begin, line, (fields, None)
        elif line.strip():
            yield number, begin, line, parse_line(line)


def parse_line(line: bytes) -> Parsed:
    """Parse a line as `parse_object` does. The problem of a line that has no object says why."""
    # joined files have byte order marks between lines, and JSON text sequences a sign before each
    line = line.removeprefix(BYTE_ORDER_MARK).removeprefix(_RECORD_SEPARATOR)
    fields, problem = parse_object(line)
    if problem is None or not problem.startswith((NOT_JSON, NOT_AN_OBJECT)):
        return fields, problem
    if line.lstrip().startswith(b"["):
        return None, f"{problem}. {_ONE_PER_LINE}, not a list, or set format (--format) to json"
    if problem.startswith(NOT_AN_OBJECT):
        return None, f"{problem}. {_ONE_PER_LINE}"
    advice = _advise(line)
    return None, f"{problem}. {advice}" if advice else problem


def _advise(line: bytes) -> str | None:
    """Return how to repair a line of invalid JSON, or None if that is not clear."""
    try:
        json.loads(line)
    except json.JSONDecodeError as error:
        begins, rest = error.doc.lstrip().startswith("{"), error.doc[error.pos :].strip()
    except (ValueError, RecursionError):
        return None
    if begins and not rest:
        return f"{_ONE_PER_LINE} if objects span several lines: {_JQ}"
    if rest == ",":
        return "Remove the comma after the object"
    return f"{_ONE_PER_LINE}: {_JQ}" if begins and rest.startswith(("{", "\x1e")) else None


def parse_object(data: bytes) -> Parsed:
    """Parse a JSON object. Return (its fields, None), or (None, the problem).

    orjson is several times faster. It refuses some JSON that the standard library accepts, such as
    NaN and unpaired surrogates, and reads an integer beyond 64 bits as a float. The standard
    library parses the objects that orjson refuses or may read differently, and describes what is
    wrong with an invalid object.
    """
    if (fields := _parse_quickly(data)) is not None:
        return fields, None
    try:
        value = json.loads(data.decode())
    except UnicodeDecodeError as error:
        return None, f"the record is {file_kinds.describe_not_utf8(error)}"
    except json.JSONDecodeError as error:
        return (
            None,
            f"{NOT_JSON} ({describe_not_json(error)} at column {error.colno})",
        )
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
    if _ALWAYS_EQUAL.issuperset(map(type, values)):
        return True
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


def describe_not_json(error: json.JSONDecodeError) -> str:
    """Describe why text is not JSON, without the position."""
    # some of Python's messages end with a word that introduces the position
    return error.msg.rstrip(": ").removesuffix(" at").removesuffix(" starting")
