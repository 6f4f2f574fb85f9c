"""Values of records that become values of samples: IDs, and values of Arrow arrays.

    describe_id(7.0)                      "7"
    value_reader(times)(0)                "2024-01-31 23:59:59.000Z"

The converter and the reader of Parquet files share them, so that both make the same samples.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""The number of decimal digits of each unit of time, in seconds."""


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
