"""With token lengths, each rank computes the cursors of all lanes, and the end of a finite run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cloudload import CloudLoader, Stream
from cloudload.batch import Batch
from cloudload.errors import RanksDisagreeError
from cloudload.loading.workers.document_reader import DocumentReader
from cloudload.loading.workers.worker import Worker
from cloudload.loading.workers.worker_plan import WorkerPlan
from cloudload.system.arrays import Ints
from cloudload.testing import HubExchange, Leg, run_leg
from cloudload.tools.count import count_tokens
from testkit.corpora import byte_tokenizer, random_documents, write_mds
from testkit.loaders import make_loader

RANKS = 3
EVERY_PACKING = pytest.mark.parametrize(
    "packing",
    [
        {"packing": "concat"},
        {"packing": "best_fit"},
        {"packing": "one_per_row", "overflow": "cut"},
        {"packing": "one_per_row", "overflow": "rows"},
    ],
    ids=lambda packing: "-".join(packing.values()),
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two datasets with lengths: one of 150 documents, and one of 40."""
    root = tmp_path_factory.mktemp("ranks")
    for number, size in enumerate((150, 40)):
        write_mds(root / str(number), random_documents(number, size), shard_bytes=3_000)
        count_tokens(root / str(number), tokenizer=byte_tokenizer(), processes=1, progress=False)
    return [str(root / "0"), str(root / "1")]


def make_ranks(data: Any, **settings: Any) -> list[CloudLoader]:
    """Make one loader per rank, in one process, so the ranks cannot communicate."""
    return [
        make_loader(data, dp_rank=rank, dp_world_size=RANKS, **settings) for rank in range(RANKS)
    ]


def take_in_step(loaders: list[CloudLoader], number: int) -> list[list[Batch]]:
    """Take the next `number` batches of each rank, or fewer if the data ends."""
    batches: list[Iterator[Batch]] = [loader.take(number) for loader in loaders]
    return [list(each) for each in batches]


def rows_of(taken: list[list[Batch]]) -> dict[int, list[int]]:
    """Map the index of each row in the run to its token IDs."""
    return {
        batch.first_row + place * batch.row_step: ids
        for batches in taken
        for batch in batches
        for place, ids in enumerate(batch["input_ids"].tolist())
    }


def states_of(loaders: list[CloudLoader]) -> list[dict[str, Any]]:
    return [json.loads(json.dumps(loader.state_dict())) for loader in loaders]


@EVERY_PACKING
@pytest.mark.parametrize("is_mixed", [False, True], ids=["one stream", "mixed"])
def test_a_state_of_one_rank_that_cannot_communicate_is_whole(
    folders: list[str], packing: dict[str, Any], is_mixed: bool
) -> None:
    data: Any = [Stream(each, proportion=1 + n) for n, each in enumerate(folders)]
    data = data if is_mixed else folders[0]
    alone = make_loader(data, lengths="off", batch_size=12, **packing)
    expected = [batch["input_ids"].tolist() for batch in alone.take(6)]
    state = alone.state_dict()
    loaders = make_ranks(data, lengths="require", **packing)
    rows = rows_of(take_in_step(loaders, 6))
    assert [rows[row] for row in range(72)] == [ids for batch in expected for ids in batch]
    states = states_of(loaders)
    assert states == [state] * RANKS
    assert {loader.stats().tokens for loader in loaders} == {alone.stats().tokens}
    again = make_loader(data, lengths="off", batch_size=5, **packing)
    again.load_state_dict(states[1])
    more = [ids for batch in again.take(2) for ids in batch["input_ids"].tolist()]
    assert more == [ids for batch in alone.take(1) for ids in batch["input_ids"].tolist()][:10]


@EVERY_PACKING
@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_ranks_that_cannot_communicate_end_on_the_same_step(
    folders: list[str], packing: dict[str, Any], tail: Any
) -> None:
    settings = {**packing, "epochs": 2, "tail": tail, "batch_size": 2}
    alone = make_loader(folders[0], lengths="off", **{**settings, "batch_size": 2 * RANKS})
    expected = [ids for batch in alone for ids in batch["input_ids"].tolist()]
    loaders = make_ranks(folders[0], **settings)
    assert {len(loader) for loader in loaders} == {len(expected) // (2 * RANKS)}
    taken = take_in_step(loaders, 10_000)
    assert {len(batches) for batches in taken} == {len(expected) // (2 * RANKS)}
    rows = rows_of(taken)
    assert [rows[row] for row in range(len(rows))] == expected
    assert states_of(loaders) == [alone.state_dict()] * RANKS
    for loader in loaders:
        assert loader.stats().dropped == alone.stats().dropped


def test_passes_of_an_epoch_end_on_the_same_step_without_communication(folders: list[str]) -> None:
    alone = make_loader(folders[0], lengths="off", batch_size=2 * RANKS, stop_every="epoch")
    expected = [len(list(alone)) for _ in range(3)]
    for loader in make_ranks(folders[0], batch_size=2, stop_every="epoch"):
        assert [len(list(loader)) for _ in range(3)] == expected


def test_ranks_without_lengths_still_need_to_communicate(folders: list[str]) -> None:
    loader = make_ranks(folders[0], epochs=1, lengths="off")[0]
    with pytest.raises(RanksDisagreeError, match="ranks must communicate to end"):
        next(iter(loader))


@pytest.mark.parametrize("lengths", ["off", "require"])
def test_with_lengths_ranks_exchange_only_their_rows(
    folders: list[str], monkeypatch: pytest.MonkeyPatch, lengths: str
) -> None:
    sizes: list[int] = []
    start = HubExchange.start

    def note(self: HubExchange, message: Ints) -> Any:
        sizes.append(len(message))
        return start(self, message)

    monkeypatch.setattr(HubExchange, "start", note)

    def make(**rank: Any) -> CloudLoader:
        return make_loader(folders[0], lengths=lengths, epochs=1, **rank)

    run_leg(make, Leg(ranks=3, batch_size=4, batches=None))
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

    def make(**rank: Any) -> CloudLoader:
        return make_loader(folders[0], lengths="require", **rank)

    with pytest.raises(RanksDisagreeError, match=r"out of step.* at rows \[8, 7\]"):
        run_leg(make, Leg(ranks=2, batch_size=4, batches=3))


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the first row of each phase that a worker in this process begins."""
    found: list[int] = []
    original = Worker.read_blocks

    def note(self: Worker, plan: WorkerPlan) -> Any:
        found.append(plan.position.rows)
        return original(self, plan)

    monkeypatch.setattr(Worker, "read_blocks", note)
    return found


@pytest.mark.parametrize("packing", ["concat", "one_per_row", "best_fit"])
def test_the_tail_needs_no_measuring_and_if_it_is_foreseen_no_other_phase(
    folders: list[str], starts: list[int], monkeypatch: pytest.MonkeyPatch, packing: Any
) -> None:
    read: list[int] = []
    original = DocumentReader.read_texts

    def count(self: DocumentReader, samples: Any) -> Any:
        read.append(len(samples))
        return original(self, samples)

    monkeypatch.setattr(DocumentReader, "read_texts", count)
    found = {}
    for lengths in ("off", "require"):
        starts.clear()
        read.clear()
        rows = list(make_loader(folders[0], lengths=lengths, epochs=1, packing=packing))
        found[lengths] = len(rows), len(starts), sum(read)
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
            rows.append([batch["input_ids"].tolist() for batch in loader])
            assert len(starts) == (2 if lengths == "off" else 1)
        assert rows[0] == rows[1]


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_a_run_too_large_to_foresee_ends_alike(
    folders: list[str], starts: list[int], monkeypatch: pytest.MonkeyPatch, packing: Any
) -> None:
    def make(lengths: str, **rank: Any) -> CloudLoader:
        return make_loader(folders[0], lengths=lengths, epochs=2, packing=packing, **rank)

    leg = Leg(ranks=3, batch_size=4, batches=None)
    expected = run_leg(lambda **rank: make("off", **rank), leg)
    for limit in ("_MOST_FORESEEN", "_MOST_PLAYED"):
        monkeypatch.setattr(f"cloudload.run.lengths.run_lengths.{limit}", 100)
    starts.clear()
    assert run_leg(lambda **rank: make("require", **rank), leg) == expected
    assert len(starts) == 3 * 3, (
        "workers must start three times on each rank: steady, sharing, and in the tail"
    )


def test_a_state_is_found_after_a_lagging_one(folders: list[str]) -> None:
    [loader, *_] = make_ranks(folders[0])
    list(loader.take(5))
    late = [loader.state_dict(lag=lag) for lag in (0, 3, 1, 2)]
    again = make_loader(folders[0], lengths="off", batch_size=12)
    list(again.take(5))
    assert late == [again.state_dict(lag=lag) for lag in (0, 3, 1, 2)]
