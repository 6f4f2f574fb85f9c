"""Values of ndarray columns as arrays.

encoding              value of a sample
ndarray:uint16:2,4    values
ndarray:uint16        shape, values
ndarray               dtype, shape, values

dtype   a byte
shape   a byte with the number of axes and the width of a length, then the length of each axis
"""

from __future__ import annotations

from typing import Any

import numpy as np

INTEGERS_BY_CODE = {
    **{8: "uint8", 9: "int8", 16: "uint16", 17: "int16"},
    **{32: "uint32", 33: "int32", 64: "uint64", 65: "int64"},
}
"""The integer dtype of a value with the encoding `ndarray`, by the value's first byte."""
_DTYPES_BY_CODE = {**INTEGERS_BY_CODE, 18: "float16", 34: "float32", 66: "float64"}


def decode_array(encoding: str, data: bytes) -> np.ndarray[Any, Any]:
    """Decode the value of a sample in a column of arrays. The array is read-only.

    Raises `ValueError` if the bytes do not fit the encoding.
    """
    _, _, rest = encoding.partition(":")
    name, _, lengths = rest.partition(":")
    start = 0
    if not name:
        if data[:1] == b"" or data[0] not in _DTYPES_BY_CODE:
            raise ValueError(f"{data[:1]!r} is not the code of a dtype")
        name, start = _DTYPES_BY_CODE[data[0]], 1
    if name not in _DTYPES_BY_CODE.values():
        raise ValueError(f"{name!r} is not the dtype of an array")
    shape = [int(length) for length in lengths.split(",")] if lengths else None
    if shape is None:
        shape, start = _read_shape(data, start)
    return np.frombuffer(data, np.dtype(name).newbyteorder("<"), -1, start).reshape(shape)


def encode_shape(length: int) -> bytes:
    """Encode the shape of an array with one axis."""
    width = next(width for width in range(4) if length < 1 << (8 << width))
    return bytes([1 << 2 | width]) + length.to_bytes(1 << width, "little")


def _read_shape(data: bytes, start: int) -> tuple[list[int], int]:
    """Return the shape at `start`, and the index of the first byte after it."""
    if start >= len(data):
        raise ValueError("the value has no shape")
    num_axes, width = data[start] >> 2, 1 << (data[start] & 3)
    stop = start + 1 + num_axes * width
    if stop > len(data):
        raise ValueError(f"the value has a shape of {num_axes} axes, but ends before it")
    return np.frombuffer(data, f"<u{width}", num_axes, start + 1).tolist(), stop
