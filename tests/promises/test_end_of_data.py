"""A finite run delivers every token once, ends on the same step on every rank, and pads only its
last row."""

from __future__ import annotations

from typing import Any

import pytest

from cloudload.errors import DatasetError, RanksDisagreeError
from cloudload.testing import Leg, assert_same_rows, real_tokens
from testkit.corpora import EOS
from testkit.finite_runs import (
    LANES,
    TO_THE_END,
    Packing,
    Write,
    counts_of,
    every_packing,
    leave_out,
    length,
    tokens_in,
    trimmed,
    uneven,
)
from testkit.loaders import ids_of, rows_of


@every_packing
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("leg", TO_THE_END, ids=lambda leg: f"{leg.ranks}x{leg.batch_size}")
def test_every_token_is_delivered_once_and_only_the_last_rows_are_padding(
    write: Write, packing: Packing, epochs: int, leg: Leg
) -> None:
    corpus = write(uneven(1, 41), **packing, epochs=epochs, eos=None)
    rows, states = corpus.run(leg)
    assert tokens_in(rows) == corpus.expected
    real = trimmed(rows)
    assert len(rows) - len(real) < leg.ranks * leg.batch_size, (
        "rows past the end may only fill the last global batch"
    )
    assert not any(row.is_padding for row in real)
    if packing["packing"] == "concat":
        assert all(length(row) == 8 for row in real[:-1]), "only the last row may have fewer tokens"
    assert states[-1]["rows"] == len(rows)
    assert counts_of(states[-1])["padding"] == 8 * len(rows) - counts_of(states[-1])["tokens"]


@every_packing
def test_the_end_does_not_depend_on_the_world_nor_on_the_batch_size(
    write: Write, packing: Packing
) -> None:
    corpus = write(uneven(2, 50), **packing)
    whole, _ = corpus.run(Leg(batches=None))
    for ranks, batch_size, workers, nodes in [
        (1, 1, 3, 1),
        (2, 1, 0, 2),
        (3, 5, 2, 1),
        (6, 2, 0, 3),
        (6, 9, 1, 1),
        (1, 999, 6, 1),
    ]:
        leg = Leg(ranks, workers, batch_size, batches=None, ranks_per_node=ranks // nodes)
        assert_same_rows(trimmed(corpus.run(leg)[0]), whole, f"{leg}")


@every_packing
def test_dropping_the_tail_gives_whole_batches_and_counts_all_other_tokens_as_dropped(
    write: Write, packing: Packing
) -> None:
    corpus = write(uneven(3, 45), **packing, epochs=2)
    num_tokens = sum(map(len, corpus.expected.values()))
    whole, _ = corpus.run(Leg(batches=None))
    sizes = (2, 5, 11, 17, 40, 999)
    for leg in [*TO_THE_END, *(Leg(batch_size=size, batches=None) for size in sizes)]:
        rows, _ = corpus.run(leg, tail="drop")
        step = leg.ranks * leg.batch_size
        assert_same_rows(rows, whole[: len(whole) // step * step], f"{leg}")
        assert {stats.dropped for stats in corpus.stats} == {num_tokens - len(real_tokens(rows))}, (
            f"every rank must report the dropped tokens ({leg})"
        )


def test_what_was_dropped_is_there_for_a_smaller_batch_and_for_padding(write: Write) -> None:
    corpus = write(uneven(4, 30))
    whole, _ = corpus.run(Leg(batches=None))
    rows, states = corpus.run(Leg(2, batch_size=7, batches=None), tail="drop")
    assert 0 < len(rows) < len(whole)
    rest, _ = corpus.run(Leg(3, batches=None), states[-1])
    assert trimmed(rows + rest) == whole


@pytest.mark.parametrize("tail", ["pad", "drop"])
@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_len_is_the_number_of_batches_where_every_document_is_a_row(
    write: Write, tail: str, epochs: int
) -> None:
    corpus = write([text or "x" for text in uneven(5, 23)], packing="one_per_row", epochs=epochs)
    for batch_size in (1, 3, 4, 23, 24, 500):
        loader = corpus.open(batch_size=batch_size, tail=tail)
        assert len(loader) == len(list(loader)) == len(loader)
    for ranks in (2, 3, 6):
        loader = corpus.open(batch_size=2, tail=tail, dp_rank=0, dp_world_size=ranks)
        _, states = corpus.run(Leg(ranks, batch_size=2, batches=None), tail=tail)
        assert len(loader) == len(states) - 1


@pytest.mark.parametrize(
    "changes",
    [
        {"packing": "concat"},
        {"packing": "best_fit"},
        {"overflow": "rows"},
        {"epochs": None},
        {"min_tokens": 2},
        {"eos": None},
        {"transform": leave_out},
    ],
    ids=["concat", "best_fit", "overflow", "endless", "min_tokens", "no eos", "transform"],
)
def test_where_only_the_tokens_can_tell_len_is_a_type_error_and_list_works(
    write: Write, changes: dict[str, Any]
) -> None:
    corpus = write(uneven(6, 9))
    options = {"packing": "one_per_row", "eos": EOS, **changes}
    loader = corpus.open(batch_size=3, **options)
    unknown = r"the number of batches is unknown, because .*\. (To count|Add epochs=1)"
    with pytest.raises(TypeError, match=unknown):
        len(loader)
    if changes.get("epochs", 1):
        assert list(loader)


@every_packing
def test_take_ends_before_at_and_after_the_end_and_continues(
    write: Write, packing: Packing
) -> None:
    corpus = write(uneven(7, 24), **packing)
    whole = ids_of(corpus.open(batch_size=2))
    for number in range(len(whole) + 2):
        loader = corpus.open(batch_size=2)
        taken = [ids_of(loader.take(count)) for count in (number, 2, 0, 10_000, 1)]
        second = max(0, min(2, len(whole) - number))
        assert [len(part) for part in taken[:3]] == [min(number, len(whole)), second, 0]
        assert taken[4] == []
        assert [batch for part in taken for batch in part] == whole


@every_packing
def test_skip_passes_over_the_beginning_of_the_tail_and_over_the_end(
    write: Write, packing: Packing
) -> None:
    corpus = write(uneven(13, 20), **packing)
    whole = ids_of(corpus.open(batch_size=2))
    for number in range(0, len(whole) + 2, 2):
        loader = corpus.open(batch_size=2)
        loader.skip(number)
        assert loader.stats().skipped_rows == 2 * min(number, len(whole))
        assert ids_of(loader) == whole[number:]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_run_that_seeks_before_its_tail_reads_on_to_its_end(
    write: Write, batch_size: int
) -> None:
    corpus = write(uneven(14, 20))
    whole, _ = corpus.run(Leg(batches=None))
    for row in range(len(whole) + 2):
        loader = corpus.open(batch_size=batch_size)
        loader.seek(row)
        found = rows_of(loader)
        assert found[: len(whole) - row] == [list(row.input_ids) for row in whole[row:]]
        assert len(found) == -(-max(0, len(whole) - row) // batch_size) * batch_size


def test_what_was_dropped_is_still_known_when_the_loader_is_closed(write: Write) -> None:
    with write(["abcd"] * 5).open(batch_size=5, tail="drop") as loader:
        assert list(loader) == []
        assert loader.stats().dropped == 25
    assert loader.stats().dropped == 25


def test_several_ranks_need_to_communicate_to_end_together(write: Write) -> None:
    loader = write(["abc"]).open(batch_size=1, dp_rank=1, dp_world_size=3)
    needed = (
        r"with epochs=1, the 3 ranks must.*Initialize torch.distributed.*omit epochs.*take\(n\)"
    )
    with pytest.raises(RanksDisagreeError, match=needed):
        next(iter(loader))


@every_packing
@pytest.mark.parametrize(
    "documents",
    [
        *(["a"], ["x" * 7], ["x" * 8], ["ab", "c"], ["a", "", "b"], [""] * 4, ["y" * 23, "z"]),
        *(list("abcdefg"), ["x" * 7] * LANES),
    ],
    ids=lambda documents: ",".join(f"{len(text)}" for text in documents),
)
def test_data_smaller_than_the_lanes_the_ranks_or_a_row_ends_well(
    write: Write, packing: Packing, documents: list[str]
) -> None:
    corpus = write(documents, **packing, epochs=3)
    for legs in [
        [Leg(batches=None)],
        [Leg(6, batches=1), Leg(3, 2, 2, batches=None)],
        [Leg(2, batches=2), Leg(6, 1, batches=None)],
    ]:
        assert tokens_in(corpus.check_worlds(legs)) == corpus.expected


@every_packing
def test_one_document_of_hundreds_of_rows_is_read_to_its_end_by_all(
    write: Write, packing: Packing
) -> None:
    corpus = write(["".join(map(str, range(900)))], **packing)
    rows = corpus.check_worlds(
        [Leg(2, batches=1), Leg(3, 2, 5, batches=4), Leg(6, batches=11), Leg(2, 3, 7, batches=None)]
    )
    assert tokens_in(rows) == corpus.expected
    assert len(trimmed(rows)) == (1 if packing.get("overflow") == "cut" else 324)


@every_packing
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    ("documents", "changes"),
    [
        ([""] * 13, {"eos": None}),
        (["-a", "-bc"] * 8, {"transform": leave_out}),
        (["abc"] * 3, {"min_tokens": 5}),
        ([""], {"eos": None, "epochs": 7}),
    ],
    ids=["empty", "left out", "too short", "one empty"],
)
def test_a_finite_run_without_a_token_is_an_error_that_says_so(
    write: Write, packing: Packing, ranks: int, documents: list[str], changes: dict[str, Any]
) -> None:
    corpus = write(documents, **packing, **changes)
    without = r"no document of corpus\d* has any tokens, because all documents are empty, filter"
    with pytest.raises(DatasetError, match=without):
        corpus.run(Leg(ranks, batches=None))
