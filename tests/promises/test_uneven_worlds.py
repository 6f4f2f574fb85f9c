"""With token lengths, a world of any size reads the same rows and saves the same states as one
rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cloudload.errors import CloudloadError, DatasetError
from cloudload.loading.workers.document_reader import DocumentReader
from cloudload.testing import Leg, assert_same_rows, run_leg
from cloudload.warm import warm_cache
from testkit.awkward import MANY_RANKS, legs
from testkit.counted_runs import CASES, SHARES, Shares, options_of, raise_unexpected, streams_of
from testkit.examples import EXAMPLES
from testkit.loaders import make_loader, numbered_rows, open_ranks, ranks, rows_of
from testkit.quick_laws import quick_laws  # noqa: F401
from testkit.state_fields import without

LEGS = legs(
    MANY_RANKS,
    batches=st.integers(1, 3),
    most_workers=3,
    nodes=(None, 1, 3, 8),
    exchange_every=st.integers(1, 2),
).map(lambda leg: replace(leg, batches=leg.exchange_every * (leg.batches or 1)))
"""Legs that end at an exchange, because `seq_len` may change only there."""


@given(
    case=CASES,
    num_lanes=st.sampled_from([12, 30, 60]),
    shares=SHARES,
    parts=st.lists(
        st.tuples(LEGS, st.sampled_from([16, 50]), st.sampled_from([None, "attention"])),
        min_size=1,
        max_size=4,
    ),
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
    parts=[
        (Leg(15, 0, 3, 4, exchange_every=2), 50, None),
        (Leg(11, 0, 4, 4, exchange_every=2), 50, None),
    ],
)
@settings(max_examples=EXAMPLES)
def test_a_chain_of_any_worlds_reads_the_rows_of_one_rank(
    corpora: list[Path],
    case: dict[str, Any],
    num_lanes: int,
    shares: Shares,
    parts: list[tuple[Leg, int, str | None]],
) -> None:
    """Each leg continues from the previous leg's state, perhaps with a different `seq_len`, and
    with balanced rows or without."""
    options = {**options_of(case, shares), "num_lanes": num_lanes}
    data, state = streams_of(corpora, shares, case), None
    for leg, seq_len, balance in parts:
        plain = ranks(data, **options, seq_len=seq_len, lengths="off")
        counted = ranks(data, **options, seq_len=seq_len, lengths="require", balance=balance)
        alone = Leg(1, 0, leg.ranks * leg.batch_size, leg.batches)
        try:
            expected, expected_states = run_leg(plain, alone, state)
        except CloudloadError as error:
            raise_unexpected(error)
            return
        try:
            rows, states = run_leg(counted, leg, state)
        except DatasetError:
            # several ranks read further ahead than one, so they may fail earlier
            further = replace(alone, batches=64 + (leg.batches or 0))
            with pytest.raises(DatasetError, match="no tokens"):
                run_leg(plain, further, state)
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
        assert without(state, "version", "sources") == without(other, "version", "sources")


def test_any_number_of_nodes_can_warm_its_caches_for_best_fit(counted_folder: str) -> None:
    with make_loader(counted_folder, packing="best_fit", lengths="require") as loader:
        assert all(warm_cache(loader, nodes=5, node=node).is_all for node in range(5))
    with (
        make_loader(counted_folder, packing="best_fit", lengths="off") as loader,
        pytest.raises(ValueError, match="5 ranks cannot share 12 lanes"),
    ):
        warm_cache(loader, nodes=5)


@pytest.mark.parametrize("tail", ["pad", "drop"])
@pytest.mark.parametrize(
    "ranks_of_world", [5, 13, *(pytest.param(ranks, marks=pytest.mark.long) for ranks in (7, 31))]
)
def test_a_finite_run_ends_on_the_same_step_of_all_ranks(
    counted_folder: str, ranks_of_world: int, tail: str
) -> None:
    plain, counted = (
        ranks(counted_folder, epochs=2, tail=tail, lengths=each) for each in ("off", "require")
    )
    expected, _ = run_leg(plain, Leg(1, 0, 2 * ranks_of_world, None))
    rows, _ = run_leg(counted, Leg(ranks_of_world, 2, 2, None))
    assert_same_rows(rows, expected, f"{ranks_of_world} ranks")
    loader = counted(dp_rank=3, dp_world_size=ranks_of_world, batch_size=2)
    assert len(loader) * ranks_of_world * 2 == len(rows)


def test_ranks_that_cannot_communicate_have_the_whole_state(counted_folder: str) -> None:
    loaders = open_ranks(counted_folder, 7, lengths="require", batch_size=2)
    found = numbered_rows(batch for loader in loaders for batch in loader.take(5))
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states)
    rest = make_loader(counted_folder, lengths="off", batch_size=10)
    rest.load_state_dict(states[3])
    found |= numbered_rows(rest.take(1))
    whole = make_loader(counted_folder, lengths="off", batch_size=80)
    assert [found[row] for row in range(80)] == rows_of(whole.take(1))


def test_rows_of_a_batch_are_known_where_their_steps_differ(counted_folder: str) -> None:
    loader = make_loader(
        counted_folder, lengths="require", dp_rank=0, dp_world_size=5, batch_size=4
    )
    batch = next(iter(loader))
    assert batch.rows.tolist() == [0, 5, 10, 12]
    assert (batch.first_row, batch.row_step) == (0, -1)
    assert batch.to("cpu").rows.tolist() == [0, 5, 10, 12]
    assert {span.row for span in loader.trace(batch, row=3)} == {12}


def test_without_lengths_the_refusal_says_what_would_work(counted_folder: str) -> None:
    for packing in ("concat", "best_fit"):
        with pytest.raises(ValueError, match="7 ranks cannot share 12 lanes evenly") as caught:
            make_loader(counted_folder, dp_rank=0, dp_world_size=7, lengths="off", packing=packing)
        message = str(caught.value)
        assert "Use 6 or 12 ranks" in message
        assert "cloudload count" in message
        assert "num_lanes=14" in message


def test_few_documents_are_tokenized_twice(
    counted_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 60 lanes and 7 ranks, rows move between ranks. Only their documents are read twice."""
    tokens: list[int] = []
    original = DocumentReader.read_texts

    def count(self: DocumentReader, samples: Any) -> Any:
        texts = original(self, samples)
        tokens.append(sum(len(str(text)) for text in texts))
        return texts

    monkeypatch.setattr(DocumentReader, "read_texts", count)
    counted = []
    for number in (6, 7):
        tokens.clear()
        make = ranks(counted_folder, num_lanes=60, seq_len=100, lengths="require")
        rows, _ = run_leg(make, Leg(number, 0, 8, 840 // number // 8))
        counted.append(sum(tokens) / len(rows))
    assert counted[1] < 1.25 * counted[0]
