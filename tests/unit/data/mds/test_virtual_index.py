"""Row groups are cut into shards of about the same size, ranges close together are joined, and an
index is plain JSON."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudload.data.mds import row_groups, writer
from cloudload.data.mds.virtual_index import PartSize, cut_runs

GROUPS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), max_size=30)


def test_a_run_ends_where_its_size_is_closest_to_the_limit() -> None:
    sizes = [PartSize(1, size, size) for size in (3, 3, 3, 9, 1, 7, 30, 2)]
    assert [run.groups for run in cut_runs(sizes, 8)] == [(0, 3), (3, 4), (4, 6), (6, 7), (7, 8)]


@given(groups=GROUPS, limit=st.integers(1, 40))
def test_runs_have_all_rows_once_and_in_order(groups: list[tuple[int, int]], limit: int) -> None:
    sizes = [PartSize(rows, size if rows else 0, 2 * size) for rows, size in groups]
    runs = cut_runs(sizes, limit)
    for run in runs:
        own = sizes[slice(*run.groups)]
        assert run.size.samples == sum(size.samples for size in own) > 0
        assert run.size.raw_bytes == sum(size.raw_bytes for size in own)
        with_rows = [size for size in own if size.samples]
        # without its last group, a run is too small
        assert run.size.raw_bytes - with_rows[-1].raw_bytes / 2 <= limit or len(with_rows) == 1
    assert sum(run.size.samples for run in runs) == sum(rows for rows, _ in groups)
    assert all(one.groups[1] <= two.groups[0] for one, two in itertools.pairwise(runs))


@given(
    spans=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=9),
    gap=st.integers(0, 9),
)
def test_ranges_that_are_close_are_joined(spans: list[tuple[int, int]], gap: int) -> None:
    ranges = sorted((start, start + size) for start, size in spans)
    joined = row_groups.join_spans(ranges, gap)
    assert all(any(a <= start and stop <= b for a, b in joined) for start, stop in ranges)
    assert all(two[0] - one[1] > gap for one, two in itertools.pairwise(joined))
    edges = {edge for each in joined for edge in each}
    assert edges <= {edge for each in ranges for edge in each}


@pytest.mark.parametrize("count", [0, 1, 3])
def test_an_index_is_json_with_sorted_keys(count: int) -> None:
    entries = [{"samples": n, "format": "mds"} for n in range(count)]
    index = {"version": 2, "shards": entries}
    assert writer.encode_index(iter(entries)) == json.dumps(index, sort_keys=True).encode()
