"""`best_fit` lanes advance by lengths to the state and the statistics of the reference packer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.errors import StreamChangedError
from cloudload.rows.packing.packers import PackedRow
from cloudload.rows.packing.residue import encode_residue, residue_spans
from cloudload.run.lengths.best_fit_walker import BestFitWalker
from cloudload.stats import COUNTS
from cloudload.system.arrays import Ints
from testkit.tiny_runs import TinyRun

LENGTHS = st.lists(st.integers(0, 12), min_size=4, max_size=20).filter(
    lambda lengths: any(lengths[::2]) and any(lengths[1::2]) and len(lengths) % 2 == 0
)
EMPTY = np.array([b"", b""], object)
ZERO = np.zeros((2, 3), np.int64)


def open_run(*lengths: list[int], **options: Any) -> tuple[TinyRun, BestFitWalker]:
    run = TinyRun(*lengths, packing="best_fit", open_rows=3, **options)
    [walker] = run.lengths.walkers
    assert isinstance(walker, BestFitWalker)
    return run, walker


def waiting(*spans: tuple[int, int, int]) -> bytes:
    """A residue with one open row."""
    return encode_residue(()) + encode_residue(spans)


def lone(cursor: tuple[int, int, int], residue: bytes = b"") -> tuple[Ints, np.ndarray]:  # type: ignore[type-arg]
    """The state of a single lane."""
    return np.array([cursor]), np.array([residue], object)


def named(counts: Ints) -> dict[str, int]:
    """The statistics that are not 0, by name."""
    return {name: value for name, value in zip(COUNTS, counts.tolist(), strict=True) if value}


def tokens_of(rows: list[PackedRow]) -> int:
    return sum(stop - start for row in rows for _, start, stop, _ in row.pieces)


@given(lengths=LENGTHS, rows=st.tuples(st.integers(0, 20), st.integers(0, 20)))
def test_after_any_rows_the_state_and_statistics_are_those_of_the_packer(
    lengths: list[int], rows: tuple[int, int]
) -> None:
    run, walker = open_run(lengths)
    found = walker.advance(ZERO, np.array(rows), EMPTY)
    assert found.residues is not None
    documents = tokens = 0
    for lane, number in enumerate(rows):
        packed = run.naive.lane_rows(lane, number)
        ordinal, offset = packed[-1].cursor if packed else (0, 0)
        sizes = run.naive.documents(lane, ordinal + 1)
        assert found.cursors[lane].tolist() == [ordinal, offset, sizes[ordinal] if offset else 0]
        assert found.residues[lane] == (packed[-1].residue if packed else b"")
        documents += sum(size > 0 for size in sizes[:ordinal])
        tokens += tokens_of(packed)
    counts = dict(zip(COUNTS, found.counts[0].tolist(), strict=True))
    assert (counts["tokens"], counts["documents"]) == (tokens, documents)
    assert counts["padding"] == 5 * sum(rows) - tokens


@given(
    first=LENGTHS, second=LENGTHS, rows=st.integers(0, 12), then=st.integers(0, 12),
    limits=st.sampled_from([(0, None), (3, None), (0, 6)]),
)  # fmt: skip
def test_two_steps_are_one_step_with_the_statistics_of_each_stream(
    first: list[int], second: list[int], rows: int, then: int, limits: tuple[int, int | None]
) -> None:
    _, walker = open_run(first, second, min_tokens=limits[0], max_tokens=limits[1])
    whole = walker.advance(ZERO, np.array([rows + then, rows]), EMPTY)
    if whole.is_dry.any():  # the limits may leave a lane without tokens
        return
    half = walker.advance(ZERO, np.array([rows, rows]), EMPTY)
    rest = walker.advance(half.cursors, np.array([then, 0]), half.residues)
    assert whole.residues is not None
    assert rest.residues is not None
    assert rest.cursors.tolist() == whole.cursors.tolist()
    assert rest.residues.tolist() == whole.residues.tolist()
    counts = half.counts + rest.counts
    assert counts.tolist() == whole.counts.tolist()


def test_a_document_in_the_residue_was_counted_and_its_tokens_were_not() -> None:
    """Document 0 of 2 tokens waits; row 0 is document 1. Row 1 is documents 0 and 2."""
    _, walker = open_run([2, 5, 3, 9], num_lanes=1)
    cursors, residues = lone((2, 0, 0), waiting((0, 0, 2)))
    found = walker.advance(cursors, np.array([1]), residues)
    assert found.cursors.tolist() == [[3, 0, 0]]
    assert found.residues is not None
    assert found.residues.tolist() == [b""]
    assert named(found.counts[0]) == {"tokens": 5, "documents": 1}


def test_from_within_a_document_only_its_rest_is_packed() -> None:
    _, walker = open_run([12, 5], num_lanes=1)
    cursors, residues = lone((0, 5, 12))
    found = walker.advance(cursors, np.array([2]), residues)
    assert found.residues is not None
    # row 0: tokens 5 to 10. The last 2 tokens wait while row 1 takes document 1
    assert found.cursors.tolist() == [[2, 0, 0]]
    assert residue_spans(found.residues[0], 2) == [(0, 10, 12)]
    assert named(found.counts[0]) == {"tokens": 10, "documents": 2}


def test_min_tokens_does_not_drop_the_rest_of_a_document_that_was_begun() -> None:
    _, walker = open_run([7, 8], num_lanes=1, min_tokens=8)
    cursors, residues = lone((0, 2, 7))
    found = walker.advance(cursors, np.array([1]), residues)
    assert found.cursors.tolist() == [[1, 0, 0]]
    assert named(found.counts[0]) == {"tokens": 5, "documents": 1}


def test_a_lane_that_needs_no_rows_keeps_its_state() -> None:
    _, walker = open_run([3, 4, 5, 5])
    residues = np.array([waiting((0, 0, 3)), b""], object)
    cursors = np.array([[1, 0, 0], [0, 0, 0]])
    found = walker.advance(cursors, np.array([0, 1]), residues)
    assert found.cursors.tolist()[0] == [1, 0, 0]
    assert found.residues is not None
    assert found.residues[0] == residues[0]
    assert residues[1] == b""
    assert cursors.tolist() == [[1, 0, 0], [0, 0, 0]]


def test_a_finite_lane_ends_where_its_packer_has_no_more_rows() -> None:
    run, walker = open_run([5, 3, 3, 4, 5, 5], epochs=2)
    rows = walker.count_rows(ZERO, EMPTY)
    assert rows.tolist() == [len(run.naive.lane_rows(lane, 99)) for lane in (0, 1)]
    assert not walker.advance(ZERO, rows, EMPTY).is_dry.any()
    assert walker.advance(ZERO, rows + np.array([0, 1]), EMPTY).is_dry.tolist() == [False, True]


def test_an_endless_lane_without_tokens_is_dry() -> None:
    _, walker = open_run([0, 5, 0, 5])
    assert walker.advance(ZERO, np.array([1, 1]), EMPTY).is_dry[0]


@pytest.mark.parametrize(
    ("cursor", "residue", "message"),
    [
        ((0, 4, 9), b"", "lane 0: the state is at token 4 of document 0, which had 9 tokens"),
        ((2, 0, 0), waiting((1, 0, 3)), "has a part of document 1, which had 3 tokens.*it has 5"),
        ((2, 0, 0), waiting((0, 3, 9)), "has a part of document 0, which had 9 tokens.*it has 12"),
        ((1, 0, 0), waiting((1, 0, 2)), "residues: .*spans outside the documents read so far"),
        ((2, 0, 0), b"\1", "residues: .*a residue of 1 bytes"),
        ((2, 0, 0), waiting((0, 0, 12)), "residues: .*open rows that do not fit 5 tokens"),
    ],
)
def test_a_state_that_does_not_match_the_lengths_is_refused(
    cursor: tuple[int, int, int], residue: bytes, message: str
) -> None:
    _, walker = open_run([12, 5], num_lanes=1)
    cursors, residues = lone(cursor, residue)
    with pytest.raises(StreamChangedError, match=message):
        walker.advance(cursors, np.array([1]), residues)


def test_after_a_refused_state_the_lanes_still_advance() -> None:
    run, walker = open_run([12, 5], num_lanes=1)
    wrong, residues = lone((0, 4, 9))
    with pytest.raises(StreamChangedError):
        walker.advance(wrong, np.array([1]), residues)
    right, residues = lone((0, 0, 0))
    found = walker.advance(right, np.array([3]), residues)
    assert tuple(found.cursors[0, :2].tolist()) == run.naive.lane_rows(0, 3)[-1].cursor
