"""With token lengths, each rank computes the cursors of all lanes, and the end of a finite run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader, Stream
from cloudload.batch import Batch
from cloudload.errors import RanksDisagreeError
from cloudload.loading.workers.worker import Worker
from cloudload.system.arrays import Ints
from cloudload.testing import HubExchange, Leg, run_leg
from testkit.corpora import random_documents
from testkit.counted import write_counted
from testkit.finite_runs import every_packing
from testkit.loaders import ids_of, make_loader, numbered_rows, open_ranks, ranks, rows_of
from testkit.noted_calls import note_calls

RANKS = 3


@pytest.fixture(scope="module")
def folders(module_folder: Path) -> list[str]:
    """Two datasets with lengths: one of 150 documents, and one of 40."""
    return [
        write_counted(
            module_folder / f"{number}", random_documents(number, size), shard_bytes=3_000
        )
        for number, size in enumerate((150, 40))
    ]


def take_in_step(loaders: list[CloudLoader], number: int) -> list[list[Batch]]:
    """Take the next `number` batches of each rank, or fewer if the data ends."""
    batches: list[Iterator[Batch]] = [loader.take(number) for loader in loaders]
    return [list(each) for each in batches]


def rows_in(taken: list[list[Batch]]) -> dict[int, list[int]]:
    """Map the index of each row in the run to its token IDs."""
    return numbered_rows(batch for batches in taken for batch in batches)


def states_of(loaders: list[CloudLoader]) -> list[dict[str, Any]]:
    return [json.loads(json.dumps(loader.state_dict())) for loader in loaders]


@every_packing
@pytest.mark.parametrize("is_mixed", [False, True], ids=["one stream", "mixed"])
def test_a_state_of_one_rank_that_cannot_communicate_is_whole(
    folders: list[str], packing: dict[str, Any], is_mixed: bool
) -> None:
    data: Any = [Stream(each, proportion=1 + n) for n, each in enumerate(folders)]
    data = data if is_mixed else folders[0]
    alone = make_loader(data, lengths="off", batch_size=12, **packing)
    expected = rows_of(alone.take(6))
    state = alone.state_dict()
    loaders = open_ranks(data, RANKS, lengths="require", **packing)
    rows = rows_in(take_in_step(loaders, 6))
    assert [rows[row] for row in range(72)] == expected
    states = states_of(loaders)
    assert states == [state] * RANKS
    assert {loader.stats().tokens for loader in loaders} == {alone.stats().tokens}
    again = make_loader(data, lengths="off", batch_size=5, **packing)
    again.load_state_dict(states[1])
    assert rows_of(again.take(2)) == rows_of(alone.take(1))[:10]


@every_packing
@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_ranks_that_cannot_communicate_end_on_the_same_step(
    folders: list[str], packing: dict[str, Any], tail: Any
) -> None:
    settings = {**packing, "epochs": 2, "tail": tail, "batch_size": 2}
    alone = make_loader(folders[0], lengths="off", **{**settings, "batch_size": 2 * RANKS})
    expected = rows_of(alone)
    loaders = open_ranks(folders[0], RANKS, **settings)
    assert {len(loader) for loader in loaders} == {len(expected) // (2 * RANKS)}
    taken = take_in_step(loaders, 10_000)
    assert {len(batches) for batches in taken} == {len(expected) // (2 * RANKS)}
    rows = rows_in(taken)
    assert [rows[row] for row in range(len(rows))] == expected
    assert states_of(loaders) == [alone.state_dict()] * RANKS
    for loader in loaders:
        assert loader.stats().dropped == alone.stats().dropped


def test_passes_of_an_epoch_end_on_the_same_step_without_communication(folders: list[str]) -> None:
    alone = make_loader(folders[0], lengths="off", batch_size=2 * RANKS, stop_every="epoch")
    expected = [len(list(alone)) for _ in range(3)]
    for loader in open_ranks(folders[0], RANKS, batch_size=2, stop_every="epoch"):
        assert [len(list(loader)) for _ in range(3)] == expected


def test_ranks_without_lengths_still_need_to_communicate(folders: list[str]) -> None:
    loader = open_ranks(folders[0], RANKS, epochs=1, lengths="off")[0]
    with pytest.raises(RanksDisagreeError, match="ranks must communicate to end"):
        next(iter(loader))


@pytest.mark.parametrize("lengths", ["off", "require"])
def test_with_lengths_ranks_exchange_only_their_rows(
    folders: list[str], monkeypatch: pytest.MonkeyPatch, lengths: str
) -> None:
    sizes: list[int] = []
    note_calls(monkeypatch, HubExchange, "start", lambda _, message: sizes.append(len(message)))
    run_leg(ranks(folders[0], lengths=lengths, epochs=1), Leg(3, batch_size=4, batches=None))
    if lengths == "off":
        assert min(sizes) > 4
    else:
        assert set(sizes) == {1}


def test_ranks_out_of_step_are_an_error_with_lengths_too(
    folders: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = HubExchange.start

    def lag(self: HubExchange, message: Ints) -> Any:
        return start(self, message - self._rank)

    monkeypatch.setattr(HubExchange, "start", lag)
    make = ranks(folders[0], lengths="require")
    with pytest.raises(RanksDisagreeError, match=r"out of step.* at rows \[8, 7\]"):
        run_leg(make, Leg(ranks=2, batch_size=4, batches=3))


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the first row of each phase that a worker in this process begins."""
    found: list[int] = []
    note_calls(monkeypatch, Worker, "read_blocks", lambda _, plan: found.append(plan.position.rows))
    return found


@pytest.mark.parametrize("packing", ["concat", "one_per_row", "best_fit"])
def test_the_tail_needs_no_measuring_and_if_it_is_foreseen_no_other_phase(
    folders: list[str], starts: list[int], samples_read: list[int], packing: Any
) -> None:
    found = {}
    for lengths in ("off", "require"):
        starts.clear()
        samples_read.clear()
        rows = list(make_loader(folders[0], lengths=lengths, epochs=1, packing=packing))
        found[lengths] = len(rows), len(starts), len(samples_read)
    assert found["off"][0] == found["require"][0]
    assert found["off"][1] == 3, (
        "workers must start three times: steady, measuring, and in the tail"
    )
    assert found["require"][1] == 1
    assert found["require"][2] < found["off"][2]


def test_a_resume_in_the_tail_measures_nothing(folders: list[str], starts: list[int]) -> None:
    for packing in ("concat", "best_fit"):
        first = make_loader(folders[0], lengths="off", epochs=1, packing=packing)
        states = [first.state_dict() for _ in first]
        state = states[-3]
        assert state["tail"]
        rows = []
        for lengths in ("off", "require"):
            starts.clear()
            loader = make_loader(folders[0], lengths=lengths, epochs=1, packing=packing)
            loader.load_state_dict(state)
            rows.append(ids_of(loader))
            assert len(starts) == (2 if lengths == "off" else 1)
        assert rows[0] == rows[1]


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_a_run_too_large_to_foresee_ends_alike(
    folders: list[str], starts: list[int], monkeypatch: pytest.MonkeyPatch, packing: Any
) -> None:
    options, leg = {"epochs": 2, "packing": packing}, Leg(3, batch_size=4, batches=None)
    expected = run_leg(ranks(folders[0], lengths="off", **options), leg)
    for limit in ("_MOST_FORESEEN", "_MOST_PLAYED"):
        monkeypatch.setattr(f"cloudload.run.lengths.run_lengths.{limit}", 100)
    starts.clear()
    assert run_leg(ranks(folders[0], lengths="require", **options), leg) == expected
    assert len(starts) == 3 * 3, (
        "workers must start three times on each rank: steady, sharing, and in the tail"
    )


def test_a_state_is_found_after_a_lagging_one(folders: list[str]) -> None:
    [loader, *_] = open_ranks(folders[0], RANKS)
    list(loader.take(5))
    late = [loader.state_dict(lag=lag) for lag in (0, 3, 1, 2)]
    again = make_loader(folders[0], lengths="off", batch_size=12)
    list(again.take(5))
    assert late == [again.state_dict(lag=lag) for lag in (0, 3, 1, 2)]
