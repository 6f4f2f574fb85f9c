"""With token lengths, a world of any size reads the same rows and saves the same states as one
rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cloudload import CloudLoader
from cloudload.errors import CloudloadError, DatasetError
from cloudload.loading.workers.document_reader import DocumentReader
from cloudload.testing import Leg, Row, assert_same_rows, run_leg
from cloudload.warm import warm_cache
from testkit.examples import EXAMPLES
from testkit.loaders import make_loader
from testkit.quick_laws import quick_laws  # noqa: F401
from tests.promises.test_lengths import CASES, corpora, fail_on_some, streams_of  # noqa: F401

LEGS = st.builds(
    Leg,
    ranks=st.one_of(st.integers(1, 9), st.integers(1, 40)),
    workers=st.integers(0, 3),
    batch_size=st.integers(1, 4),
    batches=st.integers(1, 3),
    ranks_per_node=st.sampled_from([None, 1, 3, 8]),
    exchange_every=st.integers(1, 2),
).map(lambda leg: replace(leg, batches=leg.exchange_every * (leg.batches or 1)))
"""Legs that end at an exchange, because `seq_len` may change only there."""


@given(
    case=CASES,
    num_lanes=st.sampled_from([12, 30, 60]),
    shares=st.sampled_from([(None,), (None, None), (1.0, 3.0), (0.5, 1.0, 0.2)]),
    legs=st.lists(st.tuples(LEGS, st.sampled_from([16, 50])), min_size=1, max_size=4),
)
@example(
    # lanes that miss the only document with tokens for several epochs
    case={
        "packing": "best_fit",
        "overflow": "cut",
        "num_lanes": 1,
        "min_tokens": 20,
        "transform": None,
        "bos": None,
        "shuffle_algo": "py1e",
        "seed": 2,
        "epochs": None,
    },
    num_lanes=30,
    shares=(0.5, 1.0, 0.2),
    legs=[(Leg(15, 0, 3, 4, exchange_every=2), 50), (Leg(11, 0, 4, 4, exchange_every=2), 50)],
)
@settings(max_examples=EXAMPLES)
def test_a_chain_of_any_worlds_reads_the_rows_of_one_rank(
    corpora: list[Path],  # noqa: F811
    case: dict[str, Any],
    num_lanes: int,
    shares: tuple[float | None, ...],
    legs: list[tuple[Leg, int]],
) -> None:
    """Each leg continues from the previous leg's state, perhaps with a different `seq_len`."""
    options = {
        **case,
        "num_lanes": num_lanes,
        "epochs": None if shares[-1] is not None else case["epochs"],
        "on_error": "skip" if case["transform"] is fail_on_some else "raise",
    }
    if options["packing"] != "one_per_row":
        del options["overflow"]
    data, state = streams_of(corpora, shares), None
    for leg, seq_len in legs:

        def make(lengths: str, seq_len: int = seq_len, **rank: Any) -> CloudLoader:
            return make_loader(data, **{**options, **rank, "seq_len": seq_len, "lengths": lengths})

        alone = Leg(1, 0, leg.ranks * leg.batch_size, leg.batches)
        try:
            expected, expected_states = run_leg(lambda **rank: make("off", **rank), alone, state)
        except CloudloadError as error:
            if "no tokens" in str(error) or "tail" in str(error):
                return  # a lane has no tokens, or seq_len changed in a tail
            raise
        try:
            rows, states = run_leg(lambda **rank: make("require", **rank), leg, state)
        except DatasetError:
            # several ranks read further ahead than one, so they may fail earlier
            further = replace(alone, batches=64 + (leg.batches or 0))
            with pytest.raises(DatasetError, match="no tokens"):
                run_leg(lambda **rank: make("off", **rank), further, state)
            return
        assert_same_rows(rows, expected, f"{leg}")
        compare_states(states, expected_states, leg.exchange_every)
        state = states[-1]


def compare_states(states: list[Any], expected: list[Any], exchange_every: int) -> None:
    """Check that the states are equal. If not every batch has an exchange, compare only the states
    at exchanges."""
    if exchange_every > 1:
        states, expected = states[::exchange_every], expected[::exchange_every]
    for state, other in zip(states, expected, strict=True):
        assert without_place(state) == without_place(other)


def without_place(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name not in ("version", "sources")}


@pytest.fixture
def folder(corpora: list[Path]) -> str:  # noqa: F811
    return str(corpora[2])


def test_any_number_of_nodes_can_warm_its_caches_for_best_fit(folder: str) -> None:
    with make_loader(folder, packing="best_fit", lengths="require") as loader:
        assert all(warm_cache(loader, nodes=5, node=node).is_all for node in range(5))
    with (
        make_loader(folder, packing="best_fit", lengths="off") as loader,
        pytest.raises(ValueError, match="5 ranks cannot share 12 lanes"),
    ):
        warm_cache(loader, nodes=5)


@pytest.mark.parametrize("tail", ["pad", "drop"])
@pytest.mark.parametrize(
    "ranks", [5, 13, *(pytest.param(ranks, marks=pytest.mark.long) for ranks in (7, 31))]
)
def test_a_finite_run_ends_on_the_same_step_of_all_ranks(
    folder: str, ranks: int, tail: str
) -> None:
    def make(lengths: str, **rank: Any) -> CloudLoader:
        return make_loader(folder, **{"epochs": 2, "tail": tail, "lengths": lengths, **rank})

    alone = Leg(1, 0, 2 * ranks, None)
    expected, _ = run_leg(lambda **rank: make("off", **rank), alone)
    rows, _ = run_leg(lambda **rank: make("require", **rank), Leg(ranks, 2, 2, None))
    assert_same_rows(rows, expected, f"{ranks} ranks")
    assert len(make("require", dp_rank=3, dp_world_size=ranks, batch_size=2)) * ranks * 2 == len(
        rows
    )


def test_ranks_that_cannot_communicate_have_the_whole_state(folder: str) -> None:
    loaders = [
        make_loader(folder, lengths="require", dp_rank=rank, dp_world_size=7, batch_size=2)
        for rank in range(7)
    ]
    found: dict[int, list[int]] = {}
    for loader in loaders:
        for batch in loader.take(5):
            found |= dict(zip(batch.rows.tolist(), batch["input_ids"].tolist(), strict=True))
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states)
    rest = make_loader(folder, lengths="off", batch_size=10)
    rest.load_state_dict(states[3])
    found |= {70 + row: ids for row, ids in enumerate(next(iter(rest))["input_ids"].tolist())}
    whole = make_loader(folder, lengths="off", batch_size=80)
    assert [found[row] for row in range(80)] == next(iter(whole))["input_ids"].tolist()


def test_rows_of_a_batch_are_known_where_their_steps_differ(folder: str) -> None:
    loader = make_loader(folder, lengths="require", dp_rank=0, dp_world_size=5, batch_size=4)
    batch = next(iter(loader))
    assert batch.rows.tolist() == [0, 5, 10, 12]
    assert (batch.first_row, batch.row_step) == (0, -1)
    assert batch.to("cpu").rows.tolist() == [0, 5, 10, 12]
    assert [span.row for span in loader.trace(batch, row=3)] == [12] * len(
        loader.trace(batch, row=3)
    )


def test_without_lengths_the_refusal_says_what_would_work(folder: str) -> None:
    for packing in ("concat", "best_fit"):
        with pytest.raises(ValueError, match="7 ranks cannot share 12 lanes evenly") as caught:
            make_loader(folder, dp_rank=0, dp_world_size=7, lengths="off", packing=packing)
        message = str(caught.value)
        assert "Use 6 or 12 ranks" in message
        assert "cloudload count" in message
        assert "num_lanes=14" in message


def test_few_documents_are_tokenized_twice(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 60 lanes and 7 ranks, rows move between ranks. Only their documents are read twice."""
    tokens: list[int] = []
    original = DocumentReader.read_texts

    def count(self: DocumentReader, samples: Any) -> Any:
        texts = original(self, samples)
        tokens.append(sum(len(str(text)) for text in texts))
        return texts

    monkeypatch.setattr(DocumentReader, "read_texts", count)
    counted = []
    for ranks in (6, 7):
        tokens.clear()

        def make(**rank: Any) -> CloudLoader:
            return make_loader(folder, num_lanes=60, seq_len=100, lengths="require", **rank)

        rows: list[Row] = run_leg(make, Leg(ranks, 0, 8, 840 // ranks // 8))[0]
        counted.append(sum(tokens) / len(rows))
    assert counted[1] < 1.25 * counted[0]
