"""Values of records that become values of samples: fields, IDs, JSON, and values of Arrow arrays.

    find_field({"meta": {"url": "u"}}, "meta.url")    "u"
    describe_id(7.0)                                  "7"
    encode_json({"a": None}, "meta")                  '{"a": null}'
    value_reader(times)(0)                            "2024-01-31 23:59:59.000Z"

The converter and the readers of files that stay where they are share them, so that both make the
same samples.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from cloudload.data.mds import writer

_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""The number of decimal digits of each unit of time, in seconds."""
_KINDS: dict[type, str] = {
    **{type(None): "null", bool: "a boolean", int: "an integer", float: "a number"},
    **{str: "text", bytes: "bytes", list: "a list", dict: "an object"},
}
_MOST_NAMED = 20
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\ud[89a-f]")


class BadRecordError(Exception):
    """A record cannot become a sample. The message says why."""


class Utf8(bytes):
    """A text, encoded as valid UTF-8."""


Parsed = tuple[Mapping[str, Any] | None, str | None]
"""A record: (its fields, None), or (None, its problem)."""


# ---------------------------------------------------------------- fields


def find_field(fields: Mapping[str, Any], name: str) -> Any:
    """Return a field's value. `meta.url` is the field `url` of the mapping in the field `meta`.

    A field whose name is exactly `name` takes precedence. Raises `KeyError` if no field is found.
    """
    if name in fields:
        return fields[name]
    outer, _, inner = name.partition(".")
    if not inner or not isinstance(fields.get(outer), Mapping):
        raise KeyError(name)
    return find_field(fields[outer], inner)


def list_fields(fields: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the names of all fields. The name of a nested field looks like `meta.url`."""
    for name, value in fields.items():
        if isinstance(value, Mapping) and value:
            yield from list_fields(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def describe_fields(fields: Mapping[str, Any]) -> str:
    """Name the fields of a record that lacks one, as a sentence after the problem."""
    names = sorted(set(list_fields(fields)))
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f". Its fields are: {', '.join(names[:_MOST_NAMED]) or 'none'}{more}"


def name_kind(value: Any) -> str:
    """Name the kind of a value, for messages."""
    return _KINDS.get(type(value), type(value).__name__)


def check_text(value: Any, name: str, advice: str = "") -> str:
    """Return the value of the field of the document. Raises `BadRecordError` unless it is text."""
    if isinstance(value, str):
        return value
    raise BadRecordError(f"the field {name!r} is {name_kind(value)}, not text{advice}")


def encode_plain(
    fields: Mapping[str, Any] | None, text_key: str, id_key: str
) -> tuple[bytes, bytes] | None:
    """Encode the text and the ID of a record, the fast way. The ID is b"" if the record has none.

    Returns None if the record must be read as any other, or is bad, or if its text is empty.
    """
    if type(fields) is not dict:
        return None
    text, own_id = fields.get(text_key), fields.get(id_key)
    if type(own_id) is not str and (own_id is not None or "." in id_key):
        return None
    try:
        data = text if type(text) is Utf8 else text.encode() if type(text) is str else b""
        return (data, (own_id or "").encode()) if data else None
    except UnicodeEncodeError:
        return None


# ---------------------------------------------------------------- values


def describe_id(value: Any) -> str | None:
    """Return the text of an ID, or None for a value that cannot be an ID.

    Bytes that are not text are in hex. A float that equals an integer is written as an integer,
    because tables with missing IDs store the others as floats.
    """
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            if (text := value.decode()).isprintable():
                return text or None
        return value.hex()
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value) if value.is_integer() else value)
    is_usable = isinstance(value, str | int | UUID) and not isinstance(value, bool)
    return str(value) or None if is_usable else None


def replace_surrogates(value: Any) -> Any:
    """Replace unpaired surrogates in a string with U+FFFD. Return any other value unchanged."""
    if not isinstance(value, str) or not _SURROGATE.search(value):
        return value
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def encode_json(value: Any, name: str, *, replaces: bool = False) -> tuple[writer.JsonText, bool]:
    """Return (the JSON of a field's value, whether unpaired surrogates were replaced).

    Raises `BadRecordError` if the value cannot be written as JSON, or if it has an unpaired
    surrogate, unless `replaces`.
    """
    text = dump_json(value, name)
    # characters above U+FFFF are escaped like this, too, as pairs
    plain = dump_json(value, name, ensure_ascii=False) if _ESCAPED_SURROGATE.search(text) else ""
    if (valid := replace_surrogates(plain)) == plain:
        return writer.JsonText(text), False
    if not replaces:
        raise BadRecordError(
            f"the field {name!r} has an unpaired surrogate, which UTF-8 cannot encode"
        )
    return writer.JsonText(json.dumps(json.loads(valid))), True


def dump_json(value: Any, name: str, *, ensure_ascii: bool = True) -> str:
    """Return the JSON of a field's value. Raises `BadRecordError` if it cannot be expressed."""
    try:
        return json.dumps(value, default=_to_json, ensure_ascii=ensure_ascii)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRecordError(
            f"the field {name!r} cannot be written as JSON (it is {writer.shorten(value)}: {error})"
        ) from error


def _to_json(value: Any) -> Any:
    """Convert a value that JSON cannot express: dates, decimals and UUIDs to text, arrays to lists.

    Raises `TypeError` for any other value, such as bytes.
    """
    if isinstance(value, date | time | timedelta | Decimal | UUID):
        return str(value)
    if hasattr(value, "tolist"):  # of NumPy and torch
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes):
        raise TypeError("it contains bytes. To keep them, name their field, such as meta.raw:bytes")
    raise TypeError(f"it contains {name_kind(value)}")


def leave_out_absent(value: Any) -> Any:
    """Leave out the null fields of mappings in lists, at any depth.

    Tables store null for a field that an item of a list does not have.
    """
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    if isinstance(value, dict):
        return {name: leave_out_absent(item) for name, item in value.items()}
    return value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list | tuple) else value


def value_reader(column: Any) -> Callable[[int], Any]:
    """Return a function that returns the value at a position as a Python value.

    Python's own types have neither nanoseconds, nor years above 9999, nor all time zones. So times
    are text of ISO 8601, in UTC if they have a time zone. The function raises `ValueError` for a
    time that has no text, and pyarrow's errors for other values that Python cannot express.
    """
    from pyarrow import types

    kind = column.type
    if types.is_temporal(kind) and not types.is_interval(kind):
        texts = _describe_times(column)
        return lambda position: _check_time(texts[position])
    if has_times(kind):
        return lambda position: leave_out_absent(_read_times(column[position]))
    if _has_structs_in_lists(kind):
        return lambda position: leave_out_absent(column[position].as_py())
    return lambda position: column[position].as_py()


def has_times(kind: Any) -> bool:
    """Whether values of an Arrow type are, or contain, dates, times, or durations."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return has_times(kind.value_type)
    children = (kind.field(place).type for place in range(kind.num_fields))
    return types.is_temporal(kind) or any(map(has_times, children))


def _has_structs_in_lists(kind: Any, *, is_in_list: bool = False) -> bool:
    from pyarrow import types

    if types.is_struct(kind) and is_in_list:
        return True
    is_in_list |= hasattr(kind, "value_type")
    children = (kind.field(place).type for place in range(kind.num_fields))
    return any(_has_structs_in_lists(child, is_in_list=is_in_list) for child in children)


def _read_times(value: Any) -> Any:
    """Convert a scalar that may contain times to Python values."""
    import pyarrow
    from pyarrow import types

    kind = value.type
    if not value.is_valid or not has_times(kind) or types.is_interval(kind):
        return value.as_py()
    if types.is_dictionary(kind):
        return _read_times(value.value)
    if types.is_temporal(kind):
        return _check_time(_describe_times(pyarrow.array([value]))[0])
    if types.is_map(kind):
        return [list(_read_times(pair).values()) for pair in value.values]
    if not types.is_struct(kind):
        return list(map(_read_times, value.values))
    fields = {name: _read_times(inner) for name, inner in value.items()}
    if len(fields) < kind.num_fields:
        raise ValueError("two of its fields have the same name")
    return fields


def _describe_times(times: Any) -> list[str | None]:
    import pyarrow
    from pyarrow import types

    kind = times.type
    if types.is_duration(kind):
        counts = times.cast(pyarrow.int64()).to_pylist()
        return [
            None if count is None else f"PT{Decimal(count).scaleb(-_DIGITS[kind.unit]):f}S"
            for count in counts
        ]
    if types.is_timestamp(kind) and kind.tz is not None:
        times = times.cast(pyarrow.timestamp(kind.unit, "UTC"))
    texts: list[str | None] = times.cast(pyarrow.string()).to_pylist()
    return texts


def _check_time(text: str | None) -> str | None:
    """Raise `ValueError` for text such as `<value out of range: 10000000000000>`, from pyarrow."""
    if text is not None and text.startswith("<"):
        raise ValueError(text.strip("<>"))
    return text
