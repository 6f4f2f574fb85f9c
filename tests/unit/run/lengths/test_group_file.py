"""The file of a group holds any lengths in 2 bytes each, and a damaged file says what is wrong."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.rows.packing.tables import Size
from cloudload.run.lengths.length_files import (
    LISTED,
    decode_group,
    encode_group,
    narrow,
    widen,
)

LONGEST = (1 << 32) - 3
LENGTHS = st.lists(
    st.integers(-2, 9) | st.integers(LISTED - 2, LISTED + 2) | st.sampled_from([LONGEST]),
    max_size=30,
)


def encode(*lengths: int) -> bytes:
    return encode_group({"samples": len(lengths)}, np.array(lengths, np.int64))


@given(lengths=LENGTHS)
def test_lengths_are_read_as_they_were_written(lengths: list[int]) -> None:
    found = decode_group(encode(*lengths))
    assert found.widen().tolist() == lengths
    assert found.header["samples"] == len(lengths)


def test_only_lengths_that_do_not_fit_2_bytes_are_listed() -> None:
    short, places, values = narrow(np.array([0, LISTED - 1, LISTED, Size.FILTERED, 7, Size.FAILED]))
    assert short.tolist() == [0, 65_534, LISTED, LISTED, 7, LISTED]
    assert places.tolist() == [2, 3, 5]
    assert values.tolist() == [65_535, (1 << 32) - 1, (1 << 32) - 2]
    assert widen(values).tolist() == [65_535, Size.FILTERED, Size.FAILED]


def test_the_longest_length_is_2_to_32_minus_3() -> None:
    assert decode_group(encode(LONGEST)).widen().tolist() == [LONGEST]
    with pytest.raises(ValueError, match=r"4,294,967,294 tokens. The maximum is 4,294,967,293"):
        encode(1, LONGEST + 1)


def test_the_bytes_are_those_of_the_format() -> None:
    content = encode(5, 70_000)
    magic, version, size = struct.unpack_from("<8sII", content)
    assert (magic, version, size % 8) == (b"CLLENGTH", 1, 0)
    assert json.loads(content[16 : 16 + size]) == {"samples": 2, "long": 1}
    assert content[16 + size :] == struct.pack("<HHII", 5, 65_535, 1, 70_000)


def test_equal_lengths_have_equal_bytes_whatever_the_order_of_the_header() -> None:
    lengths = np.array([1])
    one = encode_group({"samples": 1, "key": "a"}, lengths)
    assert one == encode_group({"key": "a", "samples": 1}, lengths)


def with_header(text: bytes) -> bytes:
    return struct.pack("<8sII", b"CLLENGTH", 1, len(text)) + text


GOOD = encode(5, 70_000)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"CLLENGTH", "the file has 8 bytes, which is too short"),
        (b"x" * 40, "the file does not contain token lengths"),
        (
            GOOD[:8] + b"\2" + GOOD[9:],
            "has format version 2, but this version of cloudload reads o",
        ),
        (GOOD[:-1], r"the file has \d+ bytes, but its header says \d+"),
        (GOOD + b"x", r"the file has \d+ bytes, but its header says \d+"),
        (with_header(b"{"), "the file's header is not JSON"),
        (with_header(b"[" * 9_999), "the file's header is not JSON"),
        (with_header(b"[]"), "the file's header is not a JSON object"),
        (with_header(b'{"samples": 1}'), "an invalid value for 'long', None"),
        (with_header(b'{"samples": -1, "long": 0}'), "an invalid value for 'samples', -1"),
        (with_header(b'{"samples": true, "long": 0}'), "an invalid value for 'samples', True"),
        (with_header(b'{"samples": 1099511627776, "long": 0}'), "an invalid value for 'samples'"),
        (
            GOOD.replace(struct.pack("<HH", 5, 65_535), struct.pack("<HH", 65_535, 5)),
            "list of long",
        ),
        (
            GOOD.replace(struct.pack("<II", 1, 70_000), struct.pack("<II", 0, 70_000)),
            "list of long",
        ),
    ],
)
def test_a_damaged_file_says_what_is_wrong(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_group(content)
