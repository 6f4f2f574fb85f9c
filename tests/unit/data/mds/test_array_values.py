"""Values of ndarray columns are the arrays that Streaming's writer stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from cloudload.data.mds.array_values import decode_array

streaming = pytest.importorskip("streaming.base.format.mds.encodings")

DTYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
DTYPES += ["float16", "float32", "float64"]
shapes = arrays.array_shapes(max_dims=4, max_side=300).filter(lambda shape: np.prod(shape) < 5_000)


@given(
    value=st.sampled_from(DTYPES).flatmap(lambda dtype: arrays.arrays(dtype, shapes)),
    has_dtype=st.booleans(),
    has_shape=st.booleans(),
)
def test_arrays_are_those_that_were_stored(
    value: np.ndarray[Any, Any], *, has_dtype: bool, has_shape: bool
) -> None:
    encoding = "ndarray"
    if has_dtype:
        encoding += f":{value.dtype.name}"
    if has_dtype and has_shape:
        encoding += ":" + ",".join(map(str, value.shape))
    _, _, rest = encoding.partition(":")
    found = decode_array(encoding, streaming.NDArray.from_str(rest).encode(value))
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    assert found.tobytes() == value.tobytes()


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("ndarray", b""),
        ("ndarray", b"\x07"),
        ("ndarray", b"\x08"),
        ("ndarray:uint16", b"\x04"),
        ("ndarray:uint16", b"\x04\x02\x00\x00\x00"),
        ("ndarray:uint16:3", b"\x00\x00"),
        ("ndarray:uint16:3", b"\x00\x00\x00"),
        ("ndarray:object", b"\x04\x01\x00"),
        ("ndarray:uint8:x", b"\x00"),
    ],
)
def test_bytes_that_are_not_an_array_are_refused(encoding: str, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"the value|dtype|buffer|reshape|literal"):
        decode_array(encoding, data)
