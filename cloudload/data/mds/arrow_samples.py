"""Encode batches of rows of Arrow tables as MDS samples, without a loop over the rows.

    rows      id "a", text "xy"       id "b", text null
    sizes     1, 2                    1, 5
    samples   1 2 a x y               1 5 b NULL_TEXT

Arrow type                  encoding           null
string                      str                `NULL_TEXT`, which makes a document bad
binary                      bytes              no bytes
list of integers            ndarray:<dtype>    an error
any other, without bytes    json               null, as in a conversion
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cloudload.data.mds import record_values, shard_entries
from cloudload.data.mds.array_values import encode_shape
from cloudload.data.mds.encoded_rows import EncodedRows
from cloudload.data.mds.shard import ID_KEY, NULL_TEXT
from cloudload.system import Ints

_ARRAY = "ndarray:"
_BAD_JSON = b"\xff"  # reading it fails, as for any other bad document


class BadColumnError(ValueError):
    """A column has a value that its encoding cannot express. The message is a clause."""


def encoding_of(kind: Any) -> str | None:
    """The MDS encoding of a column with an Arrow type, or None if it has none."""
    from pyarrow import types

    kind = _plain_type(kind)
    if _is_text(kind):
        return "str"
    if _is_binary(kind):
        return "bytes"
    if _is_list(kind) and types.is_integer(kind.value_type):
        return f"{_ARRAY}{kind.value_type}"
    return None if _has_binary(kind) else "json"


def encode_rows(
    batch: Any, columns: Sequence[shard_entries.Column], file: str, first_row: int
) -> EncodedRows:
    """Encode a `pyarrow.RecordBatch` whose first row is the row `first_row` of the file.

    Rows count from 1. A row without a usable ID gets the name of the `file` and its number, as in a
    conversion. Raises `BadColumnError` if a value does not fit, and pyarrow's errors.
    """
    import pyarrow
    from pyarrow import compute

    values = [
        _encode_ids(find_column(batch, ID_KEY), batch.num_rows, file, first_row)
        if (column.name, column.encoding) == (ID_KEY, "str")
        else _encode_column(find_column(batch, column.name), column)
        for column in columns
    ]
    sizes = np.empty((batch.num_rows, len(columns)), "<u4")
    for index, value in enumerate(values):
        sizes[:, index] = np.diff(_find_ends(value))
    heads = pyarrow.FixedSizeBinaryArray.from_buffers(
        pyarrow.binary(4 * len(columns)), batch.num_rows, [None, pyarrow.py_buffer(sizes.tobytes())]
    )
    kind = pyarrow.large_binary()
    joined = compute.binary_join_element_wise(
        heads.cast(kind), *values, _as_scalar(b""), null_handling="emit_null"
    )
    ends = _find_ends(joined)
    samples = memoryview(joined.buffers()[2] or b"")[int(ends[0]) : int(ends[-1])]
    return EncodedRows(samples, np.diff(ends))


# pyarrow's `array`, `scalar` and `to_numpy` import pandas, which is slow


def _join(values: Sequence[bytes]) -> Any:
    """A `large_binary` array of `values`."""
    return _lay_out(np.fromiter(map(len, values), np.int64, len(values)), b"".join(values))


def _lay_out(sizes: Ints, data: Any) -> Any:
    """A `large_binary` array of values, one after another in `data`, of `sizes`, int64 [n]."""
    import pyarrow

    ends = pyarrow.py_buffer(np.append(0, np.cumsum(sizes)).astype(np.int64).tobytes())
    kind = pyarrow.large_binary()
    return pyarrow.LargeBinaryArray.from_buffers(
        kind, len(sizes), [None, ends, pyarrow.py_buffer(data)]
    )


def _as_scalar(value: bytes) -> Any:
    """A `large_binary` scalar."""
    return _join([value])[0]


def _find_ends(array: Any) -> Ints:
    """The offset in its data at which each value of a `large_binary` array starts, and the end of
    the last one: int64 [n + 1]."""
    ends: Ints = np.frombuffer(array.buffers()[1], np.int64)
    return ends[array.offset : array.offset + len(array) + 1]


def _read_numbers(array: Any) -> Ints:
    """The values of an array of integers without nulls: [n]."""
    numbers: Ints = np.frombuffer(array.buffers()[1] or b"", str(array.type))
    return numbers[array.offset : array.offset + len(array)]


def find_column(batch: Any, name: str) -> Any:
    """The column of a batch, or the nested field such as `meta.text`; None if there is none."""
    from pyarrow import compute

    if name in batch.schema.names:
        return batch.column(name)
    outer, dot, inner = name.partition(".")
    if not dot or outer not in batch.schema.names:
        return None
    return compute.struct_field(batch.column(outer), inner.split("."))


def _plain_type(kind: Any) -> Any:
    """An Arrow type without the dictionary or the extension around it."""
    import pyarrow
    from pyarrow import types

    while True:
        if types.is_dictionary(kind):
            kind = kind.value_type
        elif isinstance(kind, pyarrow.BaseExtensionType):
            kind = kind.storage_type
        else:
            return kind


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    is_view = getattr(types, "is_string_view", None)  # since pyarrow 16
    return bool(types.is_string(kind) or types.is_large_string(kind) or (is_view and is_view(kind)))


def _is_binary(kind: Any) -> bool:
    from pyarrow import types

    is_view = getattr(types, "is_binary_view", None)  # since pyarrow 16
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or (is_view and is_view(kind))
    )


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def _has_binary(kind: Any) -> bool:
    kind = _plain_type(kind)
    children = (kind.field(index).type for index in range(kind.num_fields))
    return _is_binary(kind) or any(map(_has_binary, children))


def _plain(array: Any) -> Any:
    """An array without the dictionary or the extension around its values."""
    import pyarrow
    from pyarrow import types

    while True:
        if isinstance(array, pyarrow.ExtensionArray):
            array = array.storage
        elif types.is_dictionary(array.type):
            array = array.dictionary_decode()
        else:
            return array


def _as_binary(array: Any) -> Any:
    """An array of text or binary as `large_binary`."""
    import pyarrow
    from pyarrow import types

    if types.is_string(array.type):
        array = array.view(pyarrow.binary())  # a cast would check the text
    elif types.is_large_string(array.type):
        array = array.view(pyarrow.large_binary())
    return array.cast(pyarrow.large_binary())


def _encode_ids(array: Any, num_rows: int, file: str, first_row: int) -> Any:
    from pyarrow import compute

    if array is not None and _is_text((array := _plain(array)).type) and not array.null_count:
        values = _as_binary(array)
        if compute.min(compute.binary_length(values)).as_py():
            return values
    ids = [None] * num_rows if array is None else _read_ids(array)
    texts = [
        (record_values.describe_id(value) or f"{file}:{row}").encode("utf-8", "replace")
        for row, value in enumerate(ids, first_row)
    ]
    return _join(texts)


def _read_ids(array: Any) -> list[Any]:
    try:
        values: list[Any] = array.to_pylist()
    except (UnicodeDecodeError, OverflowError, ValueError):
        values = _as_binary(array).to_pylist()
    return values


def _encode_column(array: Any, column: shard_entries.Column) -> Any:
    from pyarrow import compute

    if array is None:
        raise BadColumnError(f"it has no column {column.name!r}")
    if column.encoding == "json":
        return _join(list(map(_encode_json(array), range(len(array)))))
    array = _plain(array)
    if column.encoding.startswith(_ARRAY):
        return _encode_arrays(array, column)
    values = _as_binary(array)
    null = NULL_TEXT if column.encoding == "str" else b""
    return compute.fill_null(values, _as_scalar(null)) if array.null_count else values


def _encode_json(array: Any) -> Callable[[int], bytes]:
    """A function that encodes the value of a row. A value that JSON cannot express is a bad one."""
    read = record_values.value_reader(array)

    def encode(row: int) -> bytes:
        try:
            return json.dumps(read(row), default=str).encode()
        except Exception:  # pyarrow and Python raise various errors for such values
            return _BAD_JSON

    return encode


def _encode_arrays(array: Any, column: shard_entries.Column) -> Any:
    """Encode lists of integers, each after its shape, as `mds.writer` does."""
    from pyarrow import compute

    if array.null_count or array.flatten().null_count:
        raise BadColumnError(
            f"the column {column.name!r} has a null, or a list with a null, where token IDs must be"
        )
    lengths = _read_numbers(compute.list_value_length(array)).astype(np.int64)
    dtype = np.dtype(column.encoding.removeprefix(_ARRAY)).newbyteorder("<")
    ids = np.ascontiguousarray(_read_numbers(_plain(array.flatten())), dtype)
    heads = _join([encode_shape(length) for length in lengths.tolist()])
    bodies = _lay_out(lengths * dtype.itemsize, ids)
    return compute.binary_join_element_wise(heads, bodies, _as_scalar(b""))
