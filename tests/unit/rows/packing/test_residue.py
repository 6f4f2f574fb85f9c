"""Residues survive encoding and decoding, and a residue that no lane can have is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.rows.packing.residue import (
    EMPTY_GROUP,
    Span,
    decode_residue,
    encode_residue,
    encode_spans,
    extend_group,
    list_residue_spans,
    residue_spans,
    split_residues,
    unpack_residue,
)

numbers = st.integers(0, 9)
WAITING: list[Span] = [(0, 2, 9)]
OPEN: list[list[Span]] = [[(1, 0, 4), (4, 0, 3)], [(3, 5, 6)]]
RESIDUE = b"".join(map(encode_residue, [WAITING, *OPEN]))


def test_waiting_spans_and_open_rows_come_back() -> None:
    assert decode_residue(RESIDUE, 5) == (WAITING, OPEN)
    assert decode_residue(b"", 0) == ([], [])
    assert residue_spans(RESIDUE, 5) == [*WAITING, *OPEN[0], *OPEN[1]]


def test_for_rows_of_another_length_all_spans_wait() -> None:
    spans = residue_spans(RESIDUE, 5)
    assert decode_residue(unpack_residue(RESIDUE, 5), 5) == (spans, [])
    assert unpack_residue(b"", 5) == b""
    assert unpack_residue(EMPTY_GROUP, 5) == b""


def test_spans_that_are_added_one_by_one_are_the_group_of_all() -> None:
    group = EMPTY_GROUP
    for span in encode_spans(np.array(OPEN[0])):
        group = extend_group(group, span)
    assert group == encode_residue(OPEN[0])


@given(st.lists(st.lists(st.lists(st.tuples(numbers, numbers, numbers), max_size=3), max_size=4)))
def test_the_spans_of_many_residues_are_listed_at_once(
    residues: list[list[list[tuple[int, int, int]]]],
) -> None:
    encoded = [b"".join(map(encode_residue, groups)) for groups in residues]
    owners, spans = list_residue_spans(encoded)
    found = sorted(zip(owners.tolist(), map(tuple, spans.tolist()), strict=True))
    expected = [
        (owner, span) for owner, groups in enumerate(residues) for group in groups for span in group
    ]
    assert found == sorted(expected)


def test_joined_residues_are_split_by_their_sizes() -> None:
    assert split_residues(b"aabccc", [2, 0, 1, 3]) == [b"aa", b"", b"b", b"ccc"]


def encoded(*numbers: int) -> bytes:
    return np.array(numbers, "<i4").tobytes()


@pytest.mark.parametrize(
    ("residue", "message"),
    [
        (RESIDUE[:-1], f"a residue of {len(RESIDUE) - 1} bytes, which ends within a number"),
        (encoded(-1), "spans outside"),
        (encoded(1, 0, 0), "spans outside"),
        (encoded(1, 5, 0, 4), "spans outside"),
        (encoded(1, -1, 0, 4), "spans outside"),
        (encoded(1, 0, 4, 4), "spans outside"),
        (encoded(1, 0, -1, 4), "spans outside"),
        (encoded(0, 0), "an open row without a span"),
        (encoded(0, 2, 1, 0, 4, 1, 4, 8), "two spans of one document"),
    ],
)
def test_what_cannot_be_a_residue_is_refused(residue: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_residue(residue, 5)
