"""`set_world` changes the ranks between two batches without changing the rows of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import CloudLoader
from cloudload.errors import CacheError, CloudloadError, RanksDisagreeError
from cloudload.testing import Leg, check_worlds
from testkit.awkward import legs
from testkit.corpora import random_documents
from testkit.counted import write_counted
from testkit.counted_runs import CASES, Shares, options_of, streams_of
from testkit.examples import EXAMPLES
from testkit.loaders import make_loader, numbered_rows, open_ranks

LEGS = legs(st.integers(1, 8), batches=st.integers(0, 2))


@given(
    case=CASES,
    shares=st.sampled_from([(None,), (1.0, 3.0)]),
    parts=st.lists(LEGS, min_size=2, max_size=4),
    ways=st.tuples(st.integers(1, 3), st.booleans()),
)
@settings(max_examples=EXAMPLES)
def test_ranks_that_leave_and_join_between_batches_read_one_stream(
    corpora: list[Path],
    case: dict[str, Any],
    shares: Shares,
    parts: list[Leg],
    ways: tuple[int, bool],
) -> None:
    exchange_every, is_to_end = ways
    options = options_of(case)
    parts = [replace(leg, exchange_every=exchange_every) for leg in parts]
    is_to_end = is_to_end and options["epochs"] is not None
    parts[-1] = replace(parts[-1], batches=None if is_to_end else 1 + (parts[-1].batches or 0))

    def make(**rank: Any) -> CloudLoader:
        return make_loader(streams_of(corpora, shares, case), **{**options, **rank})

    try:
        check_worlds(make, parts, restarts=False)
    except CloudloadError as error:
        if "no tokens" not in str(error):
            raise


def read(loaders: list[CloudLoader], number: int) -> dict[int, list[int]]:
    """Map the index of each row in the next `number` batches of each rank to its token IDs."""
    return numbered_rows(batch for loader in loaders for batch in loader.take(number))


def first_rows(counted_folder: str, number: int) -> dict[int, list[int]]:
    loader = make_loader(counted_folder, lengths="off", batch_size=number)
    return dict(enumerate(next(iter(loader))["input_ids"].tolist()))


def test_the_next_batch_of_a_loop_in_progress_is_that_of_the_new_world(counted_folder: str) -> None:
    loader = make_loader(counted_folder, dp_rank=3, dp_world_size=4, batch_size=3, num_workers=1)
    found, expected = [], first_rows(counted_folder, 60)
    with loader:
        for batch in loader:
            found.append(batch.rows.tolist())
            assert batch["input_ids"].tolist() == [expected[row] for row in found[-1]]
            if batch.rows[0] == 3:
                loader.set_world(0, 1, batch_size=5)
            if loader.rows == 22:
                loader.set_world(1, 2)
            if len(found) == 5:
                break
    assert found[1:3] == [[12, 13, 14, 15, 16], [17, 18, 19, 20, 21]]
    assert (loader.rows, loader.world_size, loader.batch_size) == (42, 2, 5)


def test_ranks_that_agree_on_a_row_have_one_state_although_some_did_not_read_up_to_it(
    counted_folder: str,
) -> None:
    for read_before in ([3, 2, 2], [1, 0, 0], [5, 5, 2], [6, 1, 0]):
        loaders = open_ranks(counted_folder, 3, batch_size=2)
        for loader, number in zip(loaders, read_before, strict=True):
            list(loader.take(number))
        row = max(loader.rows for loader in loaders)
        for rank, loader in enumerate(loaders):
            loader.set_world(rank, 3, rows=row)
        states = [loader.state_dict() for loader in loaders]
        assert states[0]["batches"] == max(read_before)
        assert states == [states[0]] * 3
        read(loaders, 2)
        assert len({loader.state_dict()["batches"] for loader in loaders}) == 1


@pytest.mark.parametrize(("rows", "skipped"), [(18, 0), (6, 3), (14, 1)])
def test_a_pass_that_a_new_world_moves_past_its_end_is_over(
    counted_folder: str, rows: int, skipped: int
) -> None:
    """A pass has 4 batches of 4 rows: the first pass ends before row 16, the second before 32."""
    loader = make_loader(counted_folder, stop_every=4, dp_rank=0, dp_world_size=1)
    iterator = iter(loader)
    next(iterator)
    loader.set_world(0, 2, batch_size=2, rows=rows)
    loader.skip(skipped)
    assert [loader.rows for _ in iterator] == []
    assert [loader.rows for _ in loader] == list(range(18 + 4, 32 + 4, 4))


def test_a_pass_that_a_new_world_moves_back_ends_where_it_would_have(counted_folder: str) -> None:
    loader = make_loader(counted_folder, stop_every=4, dp_rank=0, dp_world_size=1)
    assert len(list(loader)) == 4
    iterator = iter(loader)
    next(iterator)
    loader.set_world(0, 2, batch_size=2, rows=12)
    assert [loader.rows for _ in iterator] == [16, 20, 24, 28, 32]


def test_ranks_that_cannot_communicate_go_back_to_the_row_that_they_agree_on(
    counted_folder: str,
) -> None:
    """Two of four ranks are ahead: rank 2 by two batches, and rank 3 by one. Rank 0 then leaves."""
    ranks = open_ranks(counted_folder, 4, batch_size=2)
    found = read(ranks, 5)
    agreed = ranks[0].state_dict()
    list(ranks[2].take(2))
    list(ranks[3].take(1))
    for place, loader in enumerate(ranks[1:]):
        loader.set_world(place, 3, rows=40)
        assert loader.state_dict() == agreed
    joined = make_loader(counted_folder, batch_size=2, dp_rank=0, dp_world_size=1)
    joined.set_world(3, 4, rows=58)  # needs only the row, not a state
    found |= read(ranks[1:], 3)
    for place, loader in enumerate(ranks[1:]):
        loader.set_world(place, 4, rows=58)
    found |= read([*ranks[1:], joined], 2)
    assert found == first_rows(counted_folder, 74)
    assert joined.stats().tokens == ranks[1].stats().tokens


def test_a_world_that_cannot_be_changed_leaves_the_loader_as_it_was(counted_folder: str) -> None:
    loader = make_loader(counted_folder, lengths="off", dp_rank=0, dp_world_size=1, batch_size=2)
    iterator = iter(loader)
    for _ in range(6):
        next(iterator)
    refused: dict[str, tuple[type[Exception], dict[str, Any]]] = {
        "5 ranks cannot share 12 lanes evenly": (ValueError, {"rank": 1, "size": 5}),
        "the data-parallel rank is 2, but the world size is 2": (
            ValueError,
            {"rank": 2, "size": 2},
        ),
        "batch_size is 0": (ValueError, {"rank": 0, "size": 2, "batch_size": 0}),
        "ranks_per_node is 0": (ValueError, {"rank": 0, "size": 2, "ranks_per_node": 0}),
        "already at row 12": (ValueError, {"rank": 0, "size": 2, "rows": 2}),
    }
    for message, (error, arguments) in refused.items():
        with pytest.raises(error, match=message):
            loader.set_world(**arguments)
    assert next(iterator).rows.tolist() == [12, 13]


def test_the_cache_limit_of_a_new_world_is_checked_before_the_world_changes(tmp_path: Path) -> None:
    """One machine of three reads about a third of the 16 canonical nodes, so it needs less cache
    than a machine that reads all of them."""
    documents, stored = random_documents(5, 800), {"shard_bytes": 1_000, "compression": "zstd"}
    url = write_counted(tmp_path / "data", documents, **stored)
    common: dict[str, Any] = {"num_lanes": 32, "num_canonical_nodes": 16, "num_workers": 1}
    common |= {"shuffle_block_size": 48, "download_threads": 1}
    arguments: Any = {"ranks_per_node": 1, "rows": 48}
    of_four = {"dp_rank": 1, "dp_world_size": 4, "batch_size": 12}
    needed = {}
    for hosts in (1, 3, 4):
        with make_loader(url, **common, **of_four) as loader:
            loader.set_world(0, hosts, ranks_per_node=1)
            needed[hosts] = loader.describe()["working_set_bytes"]
    assert needed[4] <= needed[3] < 0.6 * needed[1]
    loader = make_loader(url, **common, **of_four, cache_limit=needed[3])
    with loader:
        loader.set_world(1, 4, ranks_per_node=1)
        iterator = iter(loader)
        assert next(iterator).rows[0] == 1
        with pytest.raises(CacheError, match=f"is below the {needed[1]:,} bytes"):
            loader.set_world(0, 1, **arguments)
        assert (loader.world_size, next(iterator).rows[0]) == (4, 49)
        loader.set_world(1, 3, **arguments)
        assert len(next(iterator).rows) == 12


def test_ranks_that_know_only_their_own_lanes_cannot_change_their_world(
    counted_folder: str,
) -> None:
    [loader, _] = open_ranks(counted_folder, 2, lengths="off")
    next(iter(loader))
    with pytest.raises(RanksDisagreeError, match="no rank knows the whole state"):
        loader.set_world(0, 1)


def test_a_run_that_has_ended_has_ended_in_any_world(counted_folder: str) -> None:
    loader = make_loader(counted_folder, epochs=1, dp_rank=0, dp_world_size=1)
    iterator = iter(loader)
    rows = sum(len(batch.rows) for batch in iterator)
    loader.set_world(0, 7)
    assert next(iterator, None) is None
    assert not list(loader)
    assert loader.rows == rows
