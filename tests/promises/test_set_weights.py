"""Weights that are set while training are an entry of the schedule: replayed, saved, resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudload import CloudLoader, Stream
from cloudload.loading.delivery.rank_checks import list_facts
from cloudload.provenance import open_run, trace_steps
from cloudload.testing import Leg, Row, _Ranks, _rows_in_order, run_legs
from testkit.corpora import byte_tokenizer, random_documents
from testkit.counted import write_counted
from testkit.loaders import make_loader, ranks, rows_of

BEFORE, AFTER = {"a": 0.8, "b": 0.2}, {"a": 0.1, "b": 0.9}
STEP = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[Stream]:
    root = tmp_path_factory.mktemp("weights")
    return [
        Stream(
            write_counted(root / name, random_documents(seed, 60), shard_bytes=2_000),
            name=name,
            proportion=BEFORE[name],
        )
        for seed, name in enumerate("ab")
    ]


def scheduled(data: list[Stream], *entries: tuple[int, dict[str, float]]) -> dict[str, Any]:
    """The options of a run that has these entries in its schedule from the start."""
    return {"data": data, "schedule": [(0, BEFORE), *entries]}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("at_row", [None, 20, 31])
def test_rows_are_those_of_a_run_with_this_entry_in_its_schedule(
    data: list[Stream], at_row: int | None, num_workers: int
) -> None:
    found = []
    with make_loader(data, num_workers=num_workers) as loader:
        for number, batch in enumerate(loader.take(15), 1):
            found += rows_of([batch])
            if number == 5:
                loader.set_weights(AFTER, at_row=at_row)
            if number == 10:
                loader.set_weights(BEFORE)
    entries = [(at_row or 5 * STEP, AFTER), (10 * STEP, BEFORE)]
    with make_loader(**scheduled(data, *entries)) as loader:
        assert found == rows_of(loader.take(15))


def saved_after_change(data: list[Stream], at_row: int | None = None) -> dict[str, Any]:
    with make_loader(data) as loader:
        list(loader.take(3))
        loader.set_weights(AFTER, at_row=at_row)
        list(loader.take(2))
        return loader.state_dict()


@pytest.mark.parametrize("at_row", [None, 16, 40])
def test_a_resume_on_any_world_keeps_the_weights(data: list[Stream], at_row: int | None) -> None:
    legs = [Leg(2, batch_size=3, batches=3), Leg(3, workers=1, batch_size=2, batches=4)]
    found = run_legs(ranks(data), legs, saved_after_change(data, at_row))
    options = scheduled(data, (at_row or 3 * STEP, AFTER))
    whole = run_legs(ranks(**options), [Leg(batch_size=5 * STEP, batches=1), *legs])
    assert found == whole[5 * STEP :]


def test_a_config_that_changed_since_wins_over_the_weights_that_were_set(
    data: list[Stream],
) -> None:
    state = saved_after_change(data)
    half = {"a": 0.5, "b": 0.5}
    changed = [Stream(**{**vars(stream), "proportion": 0.5}) for stream in data]
    found = run_legs(ranks(changed), [Leg(batch_size=4, batches=6)], state)
    options = scheduled(data, (3 * STEP, AFTER), (5 * STEP, half))
    legs = [Leg(batch_size=5 * STEP, batches=1), Leg(batch_size=4, batches=6)]
    assert found == run_legs(ranks(**options), legs)[5 * STEP :]


def test_a_state_traces_the_rows_of_the_weights_that_were_set(data: list[Stream]) -> None:
    with make_loader(data, tokenizer=byte_tokenizer()) as loader:
        list(loader.take(2))
        loader.set_weights(AFTER)
        list(loader.take(1))
        state = loader.state_dict()
        [batch] = loader.take(1)
        expected = loader.trace(batch)
    run = open_run(state, tokenizer=byte_tokenizer())
    assert [*trace_steps(run, range(4, 5), num_workers=0)] == [(4, expected)]


def test_the_end_of_a_finite_run_follows_the_weights(data: list[Stream]) -> None:
    options: dict[str, Any] = {"epochs": 2, "stopping": "first", "lengths": "require"}
    with make_loader(data, **options) as loader:
        before = len(loader)
        list(loader.take(2))
        loader.set_weights(AFTER)
        after = len(loader)
        assert after == 2 + len(list(loader)) != before
    with make_loader(**scheduled(data, (2 * STEP, AFTER)), **options) as loader:
        assert len(loader) == after


def facts_of(loader: CloudLoader) -> dict[str, Any]:
    plan = loader.worker_plan()
    return list_facts(plan.inputs, plan.delivery, plan.share.world, plan.position)


def rows_of_step(job: _Ranks) -> list[Row]:
    return _rows_in_order(job.next_step())


def test_ranks_change_together_or_not_at_all(data: list[Stream]) -> None:
    with _Ranks(ranks(data), Leg(2, batch_size=2)) as job:
        job.start()
        found = rows_of_step(job) + rows_of_step(job)
        for loader in job.loaders:
            loader.set_weights(AFTER)
        found += rows_of_step(job) + rows_of_step(job)
        # ranks compare this before the next batch, and raise an error that names the mixture
        job.loaders[1].set_weights(BEFORE)
        mixtures = [facts_of(loader)["mixture"] for loader in job.loaders]
        assert mixtures[0] != mixtures[1]
    options = scheduled(data, (2 * STEP, AFTER))
    assert found == run_legs(ranks(**options), [Leg(batch_size=4 * STEP, batches=1)])


def test_what_cannot_be_set_is_refused_and_changes_nothing(
    data: list[Stream], tmp_path: Path
) -> None:
    with make_loader(data) as loader:
        list(loader.take(2))
        state = loader.state_dict()
        refused: list[tuple[Any, int | None, str]] = [
            ({"c": 1.0}, None, "'c'.* are not streams"),
            ({"c": 1.0, 3: 1.0}, None, "'c', 3.* are not streams"),
            ([0.5, 0.5], None, r"weights is \[0.5, 0.5\]. Use a dict"),
            (None, None, "weights is None"),
            ({"a": 10**400}, None, r"a weight is 1000.*Use a finite number"),
            ({"a": -1.0}, None, "weight -1"),
            ({"a": 0.0}, None, "all weights are 0"),
            (AFTER, 7, "at_row is 7. Use an integer from 8"),
        ]
        for weights, at_row, message in refused:
            with pytest.raises(ValueError, match=message):
                loader.set_weights(weights, at_row=at_row)
        assert loader.state_dict() == state
    plain = write_counted(tmp_path / "plain", random_documents(3, 20))
    with (
        CloudLoader(plain, tokenizer=byte_tokenizer(), eos=None, seq_len=8, batch_size=1) as loader,
        pytest.raises(ValueError, match="the run has no mixture"),
    ):
        loader.set_weights(AFTER)
    with make_loader(data, batch_size=None, global_batch_size=4, micro_batch_size=2) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(ValueError, match="between two steps"):
            loader.set_weights(AFTER)
        next(batches)
        loader.set_weights(AFTER)
