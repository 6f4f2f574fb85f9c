"""A row's index determines its stream, and each stream gets its share of every window of rows. A
resume changes only later rows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cloudload.errors import StreamChangedError
from cloudload.order.mixture import (
    Mixture,
    Weights,
    build_mixture,
    find_step,
    list_arcs,
    merge_entries,
    unevenness,
)
from cloudload.system.arrays import Ints
from testkit.examples import EXAMPLES
from testkit.reference_order import shares_at

MANY = settings(max_examples=3 * EXAMPLES, suppress_health_check=list(HealthCheck))
LANES = [1, 7, 12, 60, 240, 960, 1000, 3840, 8192]
ROWS = st.integers(0, 2**40)
NUM_LANES = st.sampled_from(LANES) | st.integers(1, 8192)
WEIGHT = (
    st.just(0.0)
    | st.floats(0, 1)
    | st.integers(1, 9).map(float)
    | st.floats(0, 1e300, allow_subnormal=True)
)


def weights(num_streams: int) -> st.SearchStrategy[Weights]:
    return st.lists(WEIGHT, min_size=num_streams, max_size=num_streams).filter(any).map(tuple)


def names(num_streams: int) -> tuple[str, ...]:
    return tuple(f"stream-{number}" for number in range(num_streams))


def plain(*shares: float) -> Mixture:
    return build_mixture(names(len(shares)), shares, None)


@st.composite
def mixtures(draw: st.DrawFn, num_streams: int | None = None) -> Mixture:
    """Mixtures as users pass them. Weights change by row 300, so 400 rows include every change."""
    count = num_streams or draw(st.integers(1, 5))
    rows = [0, *sorted(draw(st.sets(st.integers(1, 300), max_size=3)))]
    entries = [(row, dict(zip(names(count), draw(weights(count)), strict=True))) for row in rows]
    return build_mixture(names(count), [], entries)


def furthest(mixture: Mixture, rows: Ints, num_lanes: int, window: int = 1000) -> float:
    """The largest deviation of any stream from its share, in rows, over all windows of `rows`."""
    streams = mixture.components(rows, num_lanes)
    shares = np.array([float(weight) for weight in mixture.schedule[0][1]])
    shares /= shares.max()
    shares /= shares.sum()
    counts = np.zeros((len(rows) + 1, len(shares)))
    counts[1:] = np.cumsum(streams[:, None] == np.arange(len(shares)), axis=0)
    assert not counts[-1, shares == 0].any(), "a stream of weight 0 must not get a row"
    return float(np.abs(counts[window:] - counts[:-window] - shares * window).max())


@MANY
@given(shares=st.integers(1, 50).flatmap(weights), num_lanes=NUM_LANES, start=ROWS)
def test_any_thousand_rows_of_the_run_hold_each_share_within_two(
    shares: Weights, num_lanes: int, start: int
) -> None:
    assert furthest(plain(*shares), start + np.arange(4000), num_lanes) <= 2


@MANY
@given(
    shares=st.integers(1, 50).flatmap(weights),
    num_lanes=NUM_LANES,
    start=ROWS,
    lane=st.integers(0, 8191),
)
def test_any_thousand_rows_of_a_lane_hold_each_share_within_two(
    shares: Weights, num_lanes: int, start: int, lane: int
) -> None:
    rows = (start // num_lanes + np.arange(4000)) * num_lanes + lane % num_lanes
    assert furthest(plain(*shares), rows, num_lanes) <= 2


@pytest.mark.parametrize("num_lanes", LANES)
@pytest.mark.parametrize(("window", "most"), [(100, 10), (10_000, 20)])
def test_shorter_and_longer_windows_are_even_too(num_lanes: int, window: int, most: int) -> None:
    for shares in [(1, 1), (3, 1), (0.2, 0.3, 0.5), (1000, 10, 1), (0.01,) * 100]:
        assert furthest(plain(*shares), np.arange(4 * window), num_lanes, window) <= most
        assert (
            furthest(
                plain(*shares),
                num_lanes // 2 + num_lanes * np.arange(4 * window),
                num_lanes,
                window,
            )
            <= most
        )


def test_a_small_stream_gets_its_rows_over_a_long_run() -> None:
    streams = plain(1, 1e-4).components(np.arange(1_000_000), 960)
    assert abs(int(streams.sum()) - 100) <= 10
    assert shares_at(plain(1e300, 1e-300), 0) == (1.0, 0.0)


def stream_of(mixture: Mixture, row: int, num_lanes: int) -> int:
    """Compute the stream of one row with exact fractions, as a reference for `components`."""
    share = [Fraction(part) for part in shares_at(mixture, row)]
    ends = list(itertools.accumulate(share))
    point = row * find_step(num_lanes) % 2**64
    return next(index for index, end in enumerate(ends) if point < 2**64 * end // ends[-1])


@MANY
@given(
    mixture=mixtures(),
    num_lanes=NUM_LANES,
    rows=st.lists(st.integers(0, 400) | ROWS | st.integers(0, 2**62), max_size=30),
)
@example(mixture=plain(1, 0, 0), num_lanes=960, rows=[0, 2**62])
def test_each_row_is_found_by_itself_in_any_order(
    mixture: Mixture, num_lanes: int, rows: list[int]
) -> None:
    streams = mixture.components(np.array(rows, np.int64), num_lanes)
    assert streams.dtype == np.int64
    assert streams.tolist() == [stream_of(mixture, row, num_lanes) for row in rows]


@pytest.mark.parametrize("row", [1, 3, 4, 9, 2**11, 2**40 + 1, 2**40 + 2, 2**40 + 3])
def test_a_row_goes_by_the_last_bit_where_two_arcs_meet(row: int) -> None:
    point = row * find_step(960) % 2**64
    for end, stream in [((point >> 11) + 1, 0), (point >> 11, 1)]:
        assert plain(end / 2**53, 1 - end / 2**53).components(np.array([row]), 960).tolist() == [
            stream
        ]


@pytest.mark.parametrize(
    ("weights", "streams", "ends"),
    [
        ((2, 1, 1), [0, 1, 2], [1 << 63, 3 << 62]),
        ((0, 1, 0, 3), [1, 3], [1 << 62]),
        ((0, 5), [1], []),
        ((1, 1, 1), [0, 1, 2], [2**64 // 3, 2**65 // 3]),
    ],
    ids=str,
)
def test_arcs_end_at_the_sums_of_the_shares_before_them(
    weights: Weights, streams: list[int], ends: list[int]
) -> None:
    found, found_ends = list_arcs(weights)
    assert found.tolist() == streams
    assert found_ends.dtype == np.uint64
    # a share is a float, which is off by up to 2⁻⁵³ of the circle
    assert [
        abs(found - end) >> 11 for found, end in zip(found_ends.tolist(), ends, strict=True)
    ] == [0] * len(ends)


def test_entries_that_change_no_share_are_dropped() -> None:
    entries = [
        (0, (1.0, 2.0)),
        (5, (2.0, 4.0)),
        (9, (1.0, 0.0)),
        (12, (3.0, 0.0)),
        (20, (1.0, 2.0)),
    ]
    assert merge_entries(entries) == (entries[0], entries[2], entries[4])


def test_an_entry_holds_until_the_next_one() -> None:
    mixture = Mixture(("a", "b"), ((0, (1, 0)), (10, (0, 1)), (20, (1, 1))))
    assert [mixture.weights_at(row) for row in (0, 9, 10, 19, 20, 10**9)] == [
        (1, 0),
        (1, 0),
        (0, 1),
        (0, 1),
        (1, 1),
        (1, 1),
    ]
    assert mixture.components(np.array([9, 10]), 60).tolist() == [0, 1]


GOLDEN_ROWS = "wwwcbwwcbwwwcbwwcbwwwcbwwcbwwwcbwwcbwwwcbwwcbwww"
GOLDEN_STEPS = {
    1: 7046644058423656465,
    7: 4445666567330984561,
    12: 5128182554139185424,
    60: 2176740413455737155,
    240: 2914579412261654781,
    960: 4113625466734605639,
    1000: 1271552512214050994,
    3840: 8421740911030917563,
    8192: 7850463202736301934,
}


def test_the_rows_of_a_mixture_never_change() -> None:
    mixture = build_mixture(["web", "code", "books"], [2, 1, 1], None)
    assert (
        "".join("wcb"[stream] for stream in mixture.components(np.arange(48), 960)) == GOLDEN_ROWS
    )
    assert {num_lanes: find_step(num_lanes) for num_lanes in LANES} == GOLDEN_STEPS


@MANY
@given(mixture=mixtures(), num_lanes=NUM_LANES)
def test_weights_change_at_their_row_exactly(mixture: Mixture, num_lanes: int) -> None:
    rows = np.arange(400)
    streams = mixture.components(rows, num_lanes)
    ends = [row for row, _ in mixture.schedule[1:]] + [len(rows)]
    for (start, given_weights), end in zip(mixture.schedule, ends, strict=True):
        alone = plain(*given_weights)
        assert streams[start:end].tolist() == alone.components(rows[start:end], num_lanes).tolist()
        assert shares_at(mixture, start) == shares_at(mixture, end - 1) == shares_at(alone, 0)


def test_a_stream_that_an_entry_does_not_name_gets_no_row() -> None:
    mixture = build_mixture(["a", "b", "c"], [1, 1, 1], [(0, {"a": 1, "c": 3}), (100, {"b": 2})])
    assert mixture == Mixture(("a", "b", "c"), ((0, (1, 0, 3)), (100, (0, 2, 0))))
    assert shares_at(mixture, 99) == (0.25, 0, 0.75)
    assert shares_at(mixture, 100) == shares_at(mixture, 10**9) == (0, 1, 0)
    assert set(mixture.components(np.arange(100), 60)) == {0, 2}
    assert set(mixture.components(np.arange(100, 200), 60)) == {1}


def check_rows(mixture: Mixture, segments: Sequence[tuple[int, Mixture]]) -> None:
    """Check that the rows up to each segment's end are those of the segment's mixture."""
    rows = np.arange(500)
    expected, start = [], 0
    for end, wanted in segments:
        expected += wanted.components(rows[start:end], 60).tolist()
        start = max(start, end)
    assert mixture.components(rows, 60).tolist() == expected


@MANY
@given(mixture=mixtures(), row=st.integers(0, 400))
def test_a_resume_that_asks_for_nothing_new_changes_nothing(mixture: Mixture, row: int) -> None:
    assert mixture.resume(mixture, row) == mixture


@MANY
@given(before=mixtures(3), after=mixtures(3), row=st.integers(0, 400), again=st.integers(0, 400))
def test_a_resume_keeps_the_rows_before_it_and_changes_those_after(
    before: Mixture, after: Mixture, row: int, again: int
) -> None:
    resumed = after.resume(before, row)
    check_rows(resumed, [(row, before), (500, after)])
    assert after.resume(resumed, row) == resumed
    assert after.resume(resumed, max(row, again)) == resumed, (
        "a resume with the same weights must not change the mixture"
    )


@MANY
@given(chain=st.lists(st.tuples(mixtures(2), st.integers(0, 400)), min_size=2, max_size=6))
def test_any_chain_of_resumes_reads_what_each_asked_for(chain: list[tuple[Mixture, int]]) -> None:
    mixture, _ = chain[0]
    wanted = mixture.components(np.arange(500), 60)
    for after, row in chain[1:]:
        mixture = after.resume(mixture, row)
        wanted[row:] = after.components(np.arange(row, 500), 60)
        assert mixture.components(np.arange(500), 60).tolist() == wanted.tolist()
        shares = [shares_at(mixture, row) for row, _ in mixture.schedule]
        assert all(one != other for one, other in itertools.pairwise(shares)), (
            "consecutive entries of the schedule must differ"
        )


@MANY
@given(before=mixtures(2), after=mixtures(4), row=st.integers(0, 400))
def test_a_stream_that_is_added_begins_at_the_resume(
    before: Mixture, after: Mixture, row: int
) -> None:
    resumed = after.resume(before, row)
    check_rows(resumed, [(row, before), (500, after)])
    assert resumed.names == after.names
    assert all(shares_at(resumed, earlier)[2:] == (0, 0) for earlier in range(row))


def test_the_same_shares_in_other_numbers_are_no_change() -> None:
    saved = build_mixture(["a", "b"], [0.3, 0.7], None)
    for same in ([3, 7], [30, 70], [0.6, 1.4]):
        assert build_mixture(["a", "b"], same, None).resume(saved, 100) == saved
    assert build_mixture(
        ["a", "b"], [], [(0, {"a": 1, "b": 1}), (50, {"a": 2, "b": 2})]
    ).schedule == ((0, (1, 1)),)


def test_a_resume_from_an_older_state_forgets_what_was_changed_since() -> None:
    saved = build_mixture(["a", "b"], [1, 1], None)
    later = build_mixture(["a", "b"], [1, 3], None).resume(saved, 100)
    assert later.schedule == ((0, (1, 1)), (100, (1, 3)))
    assert build_mixture(["a", "b"], [1, 7], None).resume(later, 100).schedule == (
        (0, (1, 1)),
        (100, (1, 7)),
    )
    assert build_mixture(["a", "b"], [1, 7], None).resume(later, 101).schedule == (
        (0, (1, 1)),
        (100, (1, 3)),
        (101, (1, 7)),
    )
    assert saved.resume(later, 50) == saved


@pytest.mark.parametrize("found", [["b", "a"], ["a"], ["a", "c", "b"]])
def test_streams_that_are_gone_or_in_another_order_are_named(found: list[str]) -> None:
    saved = build_mixture(["a", "b"], [1, 1], None)
    with pytest.raises(StreamChangedError) as error:
        build_mixture(found, [1] * len(found), None).resume(saved, 10)
    message = f"the state has streams ['a', 'b'], but the loader has {found}"
    assert message in str(error.value)
    assert "weight to 0" in str(error.value)


@MANY
@given(mixture=mixtures())
def test_a_mixture_is_restored_from_a_state(mixture: Mixture) -> None:
    text = mixture.to_json()
    assert Mixture.from_json(text) == mixture
    assert Mixture.from_json(json.dumps(json.loads(text))).to_json() == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "null",
        "[]",
        "{}",
        '{"names": ["a"]}',
        '{"names": "a", "schedule": [[0, [1]]]}',
        '{"names": [1], "schedule": [[0, [1]]]}',
        '{"names": [], "schedule": [[0, []]]}',
        '{"names": ["a", "a"], "schedule": [[0, [1, 1]]]}',
        '{"names": ["a"], "schedule": []}',
        '{"names": ["a"], "schedule": 7}',
        '{"names": ["a"], "schedule": [[1, [1]]]}',
        '{"names": ["a"], "schedule": [[0, [1]], [0, [1]]]}',
        '{"names": ["a"], "schedule": [[0, [1]], [1e3, [1]]]}',
        '{"names": ["a"], "schedule": [[0, [1]], [99999999999999999999, [1]]]}',
        '{"names": ["a"], "schedule": [[false, [1]]]}',
        '{"names": ["a"], "schedule": [[0, [1, 1]]]}',
        '{"names": ["a"], "schedule": [[0, [0]]]}',
        '{"names": ["a"], "schedule": [[0, [-1]]]}',
        '{"names": ["a"], "schedule": [[0, [NaN]]]}',
        '{"names": ["a"], "schedule": [[0, [1e999]]]}',
        '{"names": ["a"], "schedule": [[0, ["1"]]]}',
        '{"names": ["a"], "schedule": [[0, [true]]]}',
        '{"names": ["a"], "schedule": [[0, [1' + "0" * 400 + "]]]}",
        '{"names": ["a"], "schedule": [[0]]}',
        '{"names": ["a"], "schedule": [[0, [1]]], "more": 1}',
        "[" * 100_000,
    ],
)
def test_a_damaged_state_is_refused(text: str) -> None:
    with pytest.raises(StreamChangedError, match=r"mixture: cannot read .* The state is damaged"):
        Mixture.from_json(text)


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "[]",
        "{}",
        '{"names": ["a"]}',
        '{"schedule": [[0, [1]]]}',
        '{"names": ["a"], "schedule": 7}',
        '{"names": ["a"], "schedule": [[0]]}',
        '{"names": ["a"], "schedule": [[0, 1]]}',
        '{"names": ["a"], "schedule": ["01"]}',
    ],
)
def test_a_mixture_of_another_form_is_described(text: str) -> None:
    with pytest.raises(
        StreamChangedError, match="it is not an object with `names` \\(a list of str"
    ):
        Mixture.from_json(text)


Entries = Sequence[tuple[int, Mapping[str, float]]]


@pytest.mark.parametrize(
    ("given_names", "proportions", "schedule", "message"),
    [
        ([], [], None, r"streams: the names are \[\]. Pass at least one"),
        (["a", "a"], [1, 1], None, r"streams: the names are \['a', 'a'\]. Pass at least one"),
        (["a", "b"], [1], None, "1 weights for 2 streams from row 0. Use one weight"),
        (
            ["a", "b"],
            [1, -0.5],
            None,
            "'b' has weight -0.5 from row 0. Use a finite number of at least 0",
        ),
        (
            ["a", "b"],
            [float("nan"), 1],
            None,
            "'a' has weight nan from row 0. Use a finite number of at least 0",
        ),
        (
            ["a", "b"],
            [1, float("inf")],
            None,
            "'b' has weight inf from row 0. Use a finite number of at least 0",
        ),
        (["a", "b"], [0, 0], None, "all weights are 0 from row 0. Set at least one above 0"),
        (["a"], ["1"], None, "a weight is '1'. Use a finite number of at least 0"),
        (["a"], [1], [], r"schedule: the entries start at rows \[\]. Start the first entry at"),
        (
            ["a"],
            [1],
            [(5, {"a": 1})],
            r"schedule: the entries start at rows \[5\]. Start the first entry at",
        ),
        (
            ["a"],
            [1],
            [(0, {"a": 1}), (9, {"a": 1}), (5, {"a": 1})],
            r"rows \[0, 9, 5\]. .* each later entry at a higher row",
        ),
        (
            ["a"],
            [1],
            [(0, {"a": 1}), (0, {"a": 2})],
            r"rows \[0, 0\]. .* each later entry at a higher row",
        ),
        (["a"], [1], [(0.5, {"a": 1})], "an entry starts at row 0.5. Use a whole number"),
        (
            ["a"],
            [1],
            [(0, {"a": 1}), (7, {"b": 1})],
            r"the entry for row 7 names \['b'\], which are not streams. Use names from \['a'\]",
        ),
        (
            ["a"],
            [1],
            [(0, {"a": 1}), (7_000, {"a": -2})],
            "'a' has weight -2.0 from row 7,000. Use a finite number of at least 0",
        ),
        (
            ["a"],
            [1],
            [(0, {"a": 1}), (7, {})],
            "all weights are 0 from row 7. Set at least one above 0",
        ),
    ],
)
def test_a_wrong_mixture_is_named_with_what_to_do(
    given_names: list[str], proportions: list[float], schedule: Entries | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build_mixture(given_names, proportions, schedule)


# ---------------------------------------------------------------- the step


@pytest.mark.parametrize(("walk", "most"), [("run", 7), ("lane", 10)])
def test_no_stretch_of_up_to_1_000_rows_is_further_off_than_the_guide_says(
    walk: str, most: int
) -> None:
    """An arc deviates by at most 1 plus the spread of how far the sorted points are ahead."""
    stride = find_step(960) * (1 if walk == "run" else 960) % 2**64
    points = np.arange(1000, dtype=np.uint64) * np.uint64(stride) / 2.0**64
    ahead = [np.arange(rows) - rows * np.sort(points[:rows]) for rows in range(1, 1001)]
    spreads = [1 + each.max() - each.min() for each in ahead]
    assert most - 1 < max(spreads) < most
    assert spreads[-1] <= 2


@pytest.mark.parametrize("num_lanes", [*LANES, 36, 100, 500, 4096, 100_000])
@pytest.mark.parametrize("walk", ["run", "lane"])
def test_no_weights_could_be_further_off(num_lanes: int, walk: str) -> None:
    stride = find_step(num_lanes) * (1 if walk == "run" else num_lanes)
    points = np.array(sorted(row * stride % 2**64 >> 12 for row in range(1000)))
    between = np.arange(1000)[:, None] - np.arange(1000)
    expected = (points[:, None] - points) * 1000
    longer = between > 0
    most = ((between + 1) * 2**52 - expected)[longer].max() / 2**52
    fewest = (expected - (between - 1) * 2**52)[longer].max() / 2**52
    assert max(most, fewest) <= 2, "an arc must have at most 2 rows more or fewer than its share"


def test_unevenness_is_the_furthest_that_an_arc_can_be_from_its_share() -> None:
    """With step 1/4, rows are at four points, so the narrowest arc can have 250 of 1,000 rows."""
    steps = np.array([0, 1 << 63, 1 << 62, 0x9E3779B97F4A7C15], np.uint64)
    assert (unevenness(steps) / (1 << 21)).round(2).tolist() == [1000, 500, 250, 2.65]


def test_the_unevenness_of_many_steps_is_that_of_each() -> None:
    steps = np.arange(1, 201, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    alone = [int(unevenness(steps[index : index + 1])[0]) for index in (0, 63, 64, 150, 199)]
    assert unevenness(steps)[[0, 63, 64, 150, 199]].tolist() == alone
