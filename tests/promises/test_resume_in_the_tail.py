"""A run that resumes near the end of its data, or in its tail, ends with the same rows, and has
counted every document once, even if it was left out."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cloudload.errors import DatasetError, StreamChangedError
from cloudload.run.state import State
from cloudload.testing import Leg, Row, assert_same_rows, real_tokens
from testkit.corpora import EOS
from testkit.finite_runs import (
    PACKINGS,
    THOROUGH,
    TO_THE_END,
    Case,
    Packing,
    Write,
    cases,
    counts_of,
    every_packing,
    leave_out,
    tokens_in,
    trimmed,
    uneven,
    write_corpus,
)
from testkit.loaders import ids_of


def in_tail(states: list[State]) -> list[State]:
    return [state for state in states if state["tail"]]


def test_a_run_that_seeks_in_its_tail_can_be_saved_there(write: Write) -> None:
    corpus = write(uneven(14, 20))
    whole, states = corpus.run(Leg(batches=None))
    state = in_tail(states)[0]
    loader = corpus.open(batch_size=1)
    loader.load_state_dict(state)
    loader.seek(state["rows"] + 2)
    rest, _ = corpus.run(Leg(2, batches=None), loader.state_dict())
    assert trimmed(rest) == whole[state["rows"] + 2 :]


@every_packing
def test_a_state_saved_anywhere_continues_to_the_same_end_on_any_world(
    write: Write, packing: Packing
) -> None:
    corpus = write(uneven(8, 34), **packing, min_tokens=2, seq_len=6)
    whole, states = corpus.run(Leg(batches=None))
    first = states.index(in_tail(states)[0])
    assert 3 < first <= len(states) - 3, (
        "at least three states must be before the tail, and at least three in the tail"
    )
    for taken in range(first - 3, len(states)):
        leg = replace(TO_THE_END[taken % 3], workers=taken % 4)
        rest, after = corpus.run(leg, states[taken])
        assert_same_rows(trimmed(rest), whole[taken:], f"saved after row {taken}, {leg}")
        assert {**counts_of(after[-1]), "padding": 0} == {**counts_of(states[-1]), "padding": 0}


@every_packing
def test_a_run_stopped_after_every_batch_on_another_world_is_the_run_that_never_stopped(
    write: Write, packing: Packing
) -> None:
    corpus = write(uneven(9, 30), **packing)
    worlds = [(1, 1), (6, 1), (2, 2), (3, 1), (1, 5)]
    legs = [Leg(ranks, turn % 3, size, batches=1) for turn in range(6) for ranks, size in worlds]
    rows = corpus.check_worlds([*legs, Leg(batches=None)])
    assert tokens_in(rows) == corpus.expected


@every_packing
@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_a_run_that_has_ended_has_nothing_more(write: Write, packing: Packing, tail: str) -> None:
    corpus = write(uneven(10, 20), **packing)
    _, states = corpus.run(Leg(3, batch_size=2, batches=None), tail=tail)
    # with tail="drop", legs with smaller batches could still deliver rows that were dropped
    legs = TO_THE_END if tail == "pad" else []
    for leg in [*legs, Leg(2, 1, 3, batches=None), Leg(6, batch_size=50, batches=None)]:
        rows, again = corpus.run(leg, states[-1], tail=tail)
        assert rows == []
        assert again == [states[-1]], "a resume at the end must not change the state"


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_another_seq_len_at_every_point_of_the_tail_loses_and_repeats_no_token(
    write: Write, packing: str
) -> None:
    corpus = write(uneven(11, 24), packing=packing, open_rows=2, seq_len=6)
    whole, states = corpus.run(Leg(batches=None))
    first = states.index(in_tail(states)[0])
    assert len(states) - first >= 4
    for taken in range(first - 1, len(states)):
        rows, state = whole[:taken], states[taken]
        last = (6, 7 + taken, None)
        for ranks, seq_len, batches in [(1, 6, 1), (3, 13, 1), (2, 2, 2), (1, 6, 1), last]:
            more, later = corpus.run(Leg(ranks, taken % 3, batches=batches), state, seq_len=seq_len)
            rows, state = rows + more, later[-1]
        assert tokens_in(rows) == corpus.expected, (
            f"tokens differ if seq_len changes from row {taken} on"
        )
        assert counts_of(state)["documents"] == len(corpus.expected)


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_rows_of_another_seq_len_do_not_depend_on_the_world_either(
    write: Write, packing: str
) -> None:
    corpus = write(uneven(12, 40), packing=packing, open_rows=1, seq_len=9)
    for first in (0, 3, 5, 7):
        chains = []
        for ranks in (1, 2, 6):
            rows, states = corpus.run(Leg(ranks, 2, 6 // ranks, batches=first))
            for seq_len, batches in [(4, 2), (17, 1), (3, 2), (6, None)]:
                more, states = corpus.run(
                    Leg(ranks, 1, 6 // ranks, batches=batches), states[-1], seq_len=seq_len
                )
                rows += more
            chains.append((rows, states[-1]))
        assert chains[0] == chains[1] == chains[2]
        assert tokens_in(chains[0][0]) == corpus.expected


@pytest.mark.parametrize(
    ("field", "before", "after"),
    [("open_rows", 4, 1), ("min_tokens", 0, 4), ("min_tokens", 4, 0), ("max_tokens", 40, 20)],
)
@pytest.mark.parametrize("where", ["in the tail", "between exchanges"])
def test_what_packs_the_rows_does_not_change_where_rows_are_packed_again(
    write: Write, field: str, before: int, after: int, where: str
) -> None:
    epochs = 1 if where == "in the tail" else None
    corpus = write(uneven(15, 40), packing="best_fit", epochs=epochs, **{field: before})
    _, states = corpus.run(Leg(batches=None if epochs else 10, exchange_every=4))
    behind = [state for state in states if state["rows"] > state["table_rows"]]
    state = (in_tail(states) if epochs else behind)[0]
    loader = corpus.open(batch_size=1, **{field: after})
    with pytest.raises(StreamChangedError, match=rf"{field}: .*(exchange|tail)"):
        loader.load_state_dict(state, on_change={field: "accept"})


def test_an_endless_run_becomes_finite_at_an_exchange_only(write: Write) -> None:
    corpus = write(uneven(16, 40), epochs=None)
    rows, states = corpus.run(Leg(batches=6, exchange_every=4))
    finite = corpus.open(batch_size=1, epochs=1)
    with pytest.raises(StreamChangedError, match=r"epochs: .*exchange"):
        finite.load_state_dict(states[6], on_change={"epochs": "accept"})
    finite.load_state_dict(states[4], on_change={"epochs": "accept"})
    rest = sum(int((batch["labels"] >= 0).sum()) for batch in finite)
    expected = sum(len(corpus.tokens(text)) for text in corpus.documents)
    assert len(real_tokens(rows[:4])) + rest == expected


def test_fewer_open_rows_taken_on_purpose_give_one_stream_of_rows_again(write: Write) -> None:
    corpus = write(uneven(12, 60), packing="best_fit", open_rows=6, num_lanes=1, epochs=None)
    _, states = corpus.run(Leg(batches=5))
    at_once, one_by_one = (corpus.open(batch_size=1, open_rows=2) for _ in "ab")
    for loader in (at_once, one_by_one):
        loader.load_state_dict(states[-1], on_change={"open_rows": "accept"})
    whole = ids_of(at_once.take(12))
    assert [each for _ in whole for each in ids_of(one_by_one.take(1))] == whole


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
@pytest.mark.parametrize("epochs", [None, 1])
def test_a_document_that_has_begun_is_read_to_its_end_though_it_is_too_short_now(
    write: Write, packing: str, epochs: int | None
) -> None:
    corpus = write(
        ["a" * 20, "b" * 40, "c" * 20], packing=packing, num_lanes=1, shuffle=False, epochs=epochs
    )
    rows, states = corpus.run(Leg(batches=1))
    loader = corpus.open(batch_size=1, min_tokens=30)
    loader.load_state_dict(states[-1], on_change={"min_tokens": "accept"})
    rest = [
        stop - start
        for batch in loader.take(20)
        for _, stream, epoch, sample, start, stop in batch.spans.tolist()
        if (stream, epoch, sample) == (0, 0, 0)
    ]
    assert rows[0].spans == ((0, 0, 0, 0, 8),)
    assert sum(rest) == 13


@THOROUGH
@given(
    case=cases(packings=PACKINGS[:2]), seq_lens=st.lists(st.integers(1, 20), min_size=4, max_size=4)
)
def test_any_chain_of_seq_lens_and_worlds_up_to_the_end_has_every_token_once(
    scratch: Path, case: Case, seq_lens: list[int]
) -> None:
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        corpus = write_corpus(Path(folder), case.documents, **case.settings)
        rows: list[Row] = []
        state: State | None = None
        for leg, seq_len in zip(case.legs, seq_lens, strict=False):
            if not corpus.expected:
                return
            more, states = corpus.run(leg, state, seq_len=seq_len)
            rows, state = rows + more, states[-1]
    assert tokens_in(rows) == corpus.expected
    assert [stats.documents for stats in corpus.stats] == [len(corpus.expected)] * len(corpus.stats)


# ---------------------------------------------------------------- what became of the documents

# with these settings, the last document is left out, so no row follows it
BARREN = {"eos": EOS, "seq_len": 8, "num_lanes": 1, "epochs": 1, "transform": leave_out}


@THOROUGH
@given(case=cases())
@example(case=Case(("d" * 7, "-"), BARREN, (Leg(batches=None),)))
@example(case=Case(("d" * 7, "-"), BARREN, (Leg(batch_size=2, batches=None),)))
def test_at_the_end_every_document_was_counted_once_whatever_became_of_it(
    scratch: Path, case: Case
) -> None:
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        corpus = write_corpus(Path(folder), case.documents, **case.settings)
        if not corpus.expected:
            with pytest.raises(DatasetError, match="has any tokens"):
                corpus.run(replace(case.legs[0], batches=None))
            return
        rows: list[Row] = []
        state: State | None = None
        for leg in case.legs:
            more, states = corpus.run(leg, state)
            rows, state = rows + more, states[-1]
    assert tokens_in(rows) == corpus.expected
    for stats in corpus.stats:
        found = {name: getattr(stats, name) for name in corpus.expected_counts}
        assert found == corpus.expected_counts


@every_packing
def test_documents_left_out_after_the_last_row_are_counted_wherever_the_batches_end(
    write: Write, packing: Packing
) -> None:
    for last, batch_size in itertools.product(("ccc", "c"), (1, 2, 3, 4)):
        documents = ["a" * 7, "b" * 7, last, "-", "-", "c"]
        corpus = write(
            documents, **packing, num_lanes=1, shuffle=False, min_tokens=3, transform=leave_out
        )
        wanted = corpus.expected_counts["documents"], corpus.expected_counts["filtered"], 1.0
        _, states = corpus.run(Leg(batch_size=batch_size, batches=None))
        for seq_len in (8, 5):
            corpus.run(Leg(batches=None), states[-1], seq_len=seq_len)
            [stats] = corpus.stats
            [stream] = stats.streams.values()
            assert (stats.documents, stats.filtered, stream.epoch) == wanted, (
                f"{documents} documents, batch_size={batch_size}, then seq_len={seq_len}"
            )
