"""Mixed streams get their shares of the rows. Each is read in its own order, regardless of the
shares."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cloudload import Stream
from cloudload.testing import Leg, Row, check_worlds, run_leg
from testkit.corpora import EOS_ID, random_documents, write_mds
from testkit.loaders import make_loader, ranks
from testkit.trainer import streams_of

SIZES = {"web": 300, "code": 90, "books": 7}


@pytest.fixture(scope="module")
def urls(module_folder: Path) -> dict[str, str]:
    return {
        name: write_mds(module_folder / name, random_documents(seed, count), shard_bytes=2_000)
        for seed, (name, count) in enumerate(SIZES.items())
    }


def loaders(urls: dict[str, str], shares: Mapping[str, float | None], **settings: Any) -> Any:
    streams = [Stream(urls[name], name=name, proportion=share) for name, share in shares.items()]
    return ranks(streams, **{"seq_len": 32, **settings})


def stream_of(row: Row) -> int:
    [stream] = {span[0] for span in row.spans}
    return stream


def by_lane_and_stream(
    rows: Sequence[Row], num_lanes: int = 12
) -> dict[tuple[int, int], list[Row]]:
    """Map (lane, stream) to its rows, in order."""
    parts: dict[tuple[int, int], list[Row]] = {}
    for number, row in enumerate(rows):
        parts.setdefault((number % num_lanes, stream_of(row)), []).append(row)
    return parts


def assert_prefixes(
    some: dict[tuple[int, int], list[Row]], others: dict[tuple[int, int], list[Row]]
) -> None:
    for key in some.keys() & others.keys():
        for one, other in zip(some[key], others[key], strict=False):
            assert one == other, f"the rows of (lane, stream) {key} differ"


def test_how_a_stream_is_read_does_not_depend_on_its_share_nor_on_other_streams(
    urls: dict[str, str],
) -> None:
    leg = Leg(batch_size=12, batches=30)
    one, _ = run_leg(loaders(urls, {"web": 0.7, "code": 0.3}), leg)
    two, _ = run_leg(loaders(urls, {"web": 1, "code": 5, "books": 2}), leg)
    alone, _ = run_leg(loaders(urls, {"web": None}), leg)
    assert_prefixes(by_lane_and_stream(one), by_lane_and_stream(two))
    assert_prefixes(by_lane_and_stream(one), by_lane_and_stream(alone))


def test_a_small_stream_begins_its_next_epoch_by_itself(urls: dict[str, str]) -> None:
    make = loaders(urls, {"web": 1, "books": 1})
    rows, _ = run_leg(make, Leg(batch_size=12, batches=20))
    spans = [[span for row in rows for span in row.spans if span[0] == each] for each in (0, 1)]
    assert max(span[1] for span in spans[0]) == 0
    assert max(span[1] for span in spans[1]) > 3
    starts = Counter(span[1:3] for span in spans[1] if span[3] == 0)
    assert max(starts.values()) == 1, "each document must be read once per epoch"
    loader = make(batch_size=12)
    list(loader.take(20))
    assert loader.stats().streams["web"].epoch < 1 < loader.stats().streams["books"].epoch


def test_a_schedule_changes_the_shares_at_its_rows(urls: dict[str, str]) -> None:
    schedule = [(0, {"web": 1}), (60, {"web": 1, "code": 1}), (120, {"code": 0.2, "books": 0.8})]
    make = loaders(urls, dict.fromkeys(SIZES), schedule=schedule)
    legs = [
        Leg(2, batch_size=7, batches=3),
        Leg(4, 2, 5, batches=4),
        Leg(3, batch_size=9, batches=4),
    ]
    rows = check_worlds(make, legs)
    streams = [stream_of(row) for row in rows]
    assert set(streams[:60]) == {0}
    assert abs(streams[60:120].count(0) - 30) <= 2
    assert set(streams[60:120]) == {0, 1}
    assert set(streams[120:]) == {1, 2}
    assert abs(streams[120:].count(1) - 0.2 * len(streams[120:])) <= 2


@pytest.mark.parametrize("packing", ["concat", "best_fit", "one_per_row"])
def test_other_shares_at_a_resume_hold_from_the_next_row_on(
    urls: dict[str, str], packing: str
) -> None:
    before = loaders(urls, {"web": 0.8, "code": 0.2}, packing=packing)
    after = loaders(urls, {"web": 0.1, "code": 0.9}, packing=packing)
    first, states = run_leg(before, Leg(2, batch_size=11, batches=3, exchange_every=2))
    second, more = run_leg(after, Leg(4, workers=2, batch_size=6, batches=5), states[-1])
    unchanged, _ = run_leg(before, Leg(batch_size=186))
    assert first == unchanged[:66]
    streams = [stream_of(row) for row in second]
    assert abs(streams.count(1) - 0.9 * len(streams)) <= 2
    assert_prefixes(by_lane_and_stream(first + second), by_lane_and_stream(unchanged))
    assert [row for row, _ in json.loads(more[-1]["mixture"])["schedule"]] == [0, 66]
    again, _ = run_leg(after, Leg(batch_size=12, batches=4), more[-1])
    straight, _ = run_leg(after, Leg(batch_size=168, batches=1), states[-1])
    assert again == straight[120:168], "a second resume must keep the changes of the first"


def test_a_stream_added_on_resume_begins_there_and_the_others_continue(
    urls: dict[str, str],
) -> None:
    before = loaders(urls, {"web": None})
    after = loaders(urls, {"web": 0.5, "books": 0.5})
    first, states = run_leg(before, Leg(2, batch_size=12, batches=3))
    second, more = run_leg(after, Leg(3, batch_size=8, batches=4), states[-1])
    unchanged, _ = run_leg(before, Leg(batch_size=200, batches=1))
    assert_prefixes(by_lane_and_stream(first + second), by_lane_and_stream(unchanged))
    assert abs([stream_of(row) for row in second].count(1) - len(second) / 2) <= 2
    assert min(span[1] for row in second for span in row.spans if span[0] == 1) == 0
    check_again, _ = run_leg(after, Leg(batch_size=24, batches=1), more[2])
    assert check_again == second[48:72]


def test_a_stream_that_moved_continues_at_its_new_location(
    urls: dict[str, str], tmp_path: Path
) -> None:
    def unnamed(urls: Sequence[str]) -> Any:
        return ranks([Stream(url, proportion=1) for url in urls], seq_len=32)

    _, states = run_leg(unnamed([urls["web"], urls["books"]]), Leg(batch_size=9))
    moved = write_mds(tmp_path / "moved", random_documents(0, SIZES["web"]), shard_bytes=2_000)
    rows, _ = run_leg(unnamed([moved, urls["books"]]), Leg(batch_size=9), states[-1])
    expected, _ = run_leg(unnamed([urls["web"], urls["books"]]), Leg(batch_size=9), states[-1])
    assert rows == expected


def test_statistics_do_not_depend_on_the_world(urls: dict[str, str]) -> None:
    def stats(legs: Sequence[Leg]) -> Any:
        state = None
        for leg in legs:
            _, states = run_leg(make, leg, state)
            state = states[-1]
        loader = make(batch_size=1)
        loader.load_state_dict(state or {})
        return loader.stats()

    make = loaders(urls, {"web": 2, "code": 1, "books": 1}, packing="best_fit", min_tokens=30)
    whole = stats([Leg(batch_size=240, batches=1)])
    assert whole == stats(
        [Leg(4, 2, 10, batches=3), Leg(2, 3, 5, batches=6), Leg(6, 0, 10, batches=1)]
    )
    assert whole.tokens + whole.padding == whole.rows * 32 == 240 * 32
    assert whole.filtered > 0
    assert whole.streams["books"].epoch > whole.streams["web"].epoch
    assert whole.as_dict()["streams/books/documents"] == whole.streams["books"].documents


def test_a_stream_may_have_its_own_frame(urls: dict[str, str]) -> None:
    streams = [Stream(urls["web"], proportion=1), Stream(urls["code"], proportion=1, eos=None)]
    batch = next(iter(make_loader(streams, seq_len=32, batch_size=48)))
    ids = batch["input_ids"].tolist()
    assert {stream for row, stream in batch.spans[:, :2].tolist() if EOS_ID in ids[row]} == {0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([{"proportion": 1}, {}], "code has no proportion, but other streams have one"),
        ([{"proportion": -1}, {"proportion": 1}], "proportion of web is -1"),
        ([{"choose": 0}], "choose of web is 0. Use an integer of at least 1"),
        (
            [{"repeat": 2, "proportion": 1}],
            "has a proportion, which cannot be combined with repeat or choose",
        ),
    ],
)
def test_streams_that_make_no_sense_are_named(
    urls: dict[str, str], options: list[dict[str, Any]], message: str
) -> None:
    named = zip(("web", "code"), options, strict=False)
    with pytest.raises(ValueError, match=message):
        make_loader([Stream(urls[name], name=name, **each) for name, each in named])


def test_streams_have_shares_of_the_tokens(tmp_path: Path) -> None:
    documents = random_documents(12, 300)
    folders = [write_mds(tmp_path / name, documents, shard_bytes=4_000) for name in "ab"]
    with make_loader(streams_of(*folders), seq_len=64, num_lanes=8, batch_size=8) as loader:
        assert [stream.share for stream in loader.stats().streams.values()] == [0, 0]
        list(loader.take(50))
        stats = loader.stats()
        shares = {name: stream.share for name, stream in stats.streams.items()}
        assert shares == pytest.approx({"a": 0.7, "b": 0.3}, abs=0.01)
        assert shares["a"] == stats.streams["a"].tokens / stats.tokens
