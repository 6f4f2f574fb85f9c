"""A finite run ends: every token once, on the same step on every rank, and only the last row of all
short of tokens."""

from __future__ import annotations

import itertools
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cloudload import CloudLoader
from cloudload.errors import DatasetError, RanksDisagreeError, StreamChangedError
from cloudload.run.state import State
from cloudload.stats import COUNTS, Stats
from cloudload.testing import Leg, Row, assert_same_rows, check_worlds, real_tokens, run_leg
from tests.support.awkward import EOS, EOS_ID, byte_tokenizer, tokenize
from tests.support.corpora import write_mds
from tests.support.examples import EXAMPLES
from tests.support.torchrun import Corpus as TorchrunCorpus
from tests.support.torchrun import Run, launch

THOROUGH = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))

Packing = dict[str, str]
PACKINGS: list[Packing] = [
    {"packing": "concat"},
    {"packing": "best_fit"},
    {"packing": "one_per_row", "overflow": "cut"},
    {"packing": "one_per_row", "overflow": "rows"},
]
every_packing = pytest.mark.parametrize(
    "packing", PACKINGS, ids=["-".join(each.values()) for each in PACKINGS]
)

LANES = 6
TO_THE_END = [
    Leg(6, batch_size=1, batches=None),
    Leg(3, workers=2, batch_size=4, batches=None, exchange_every=3),
    Leg(batch_size=7, batches=None),
]
"""Six rows a batch, twelve, and seven, which divides nothing."""


@dataclass
class Corpus:
    """Documents as an MDS dataset, and loaders of it. A document that begins with `-` is left out
    by the transform."""

    folder: Path
    documents: Sequence[str]
    settings: dict[str, Any]
    stats: list[Stats] = field(default_factory=list)
    """Of the ranks of the last leg, at its end."""

    def make_loader(self, **settings: Any) -> CloudLoader:
        loader = CloudLoader(
            self.folder / "mds",
            local=self.folder / "cache",
            tokenizer=byte_tokenizer(),
            **{**self.settings, **settings},
        )

        def close() -> None:
            self.stats.append(loader.stats())
            CloudLoader.close(loader)

        vars(loader)["close"] = close
        return loader

    def loaders(self, **changes: Any) -> Callable[..., CloudLoader]:
        return lambda **rank: self.make_loader(**changes, **rank)

    def run(
        self, leg: Leg, state: State | None = None, **changes: Any
    ) -> tuple[list[Row], list[State]]:
        self.stats.clear()
        return run_leg(self.loaders(**changes), leg, state)

    def check_worlds(self, legs: Sequence[Leg], **changes: Any) -> list[Row]:
        return check_worlds(self.loaders(**changes), legs)

    def tokens(self, document: str) -> tuple[int, ...]:
        """What a document becomes, less what is left out."""
        ids = tokenize(document) + (EOS_ID,) * (self.settings["eos"] is not None)
        is_left_out = document.startswith("-") or len(ids) < self.settings.get("min_tokens", 0)
        return () if is_left_out else ids

    @property
    def cut_at(self) -> int | None:
        is_cut = (self.settings.get("packing"), self.settings.get("overflow", "cut")) == (
            "one_per_row",
            "cut",
        )
        return self.settings["seq_len"] if is_cut else None

    @property
    def expected(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """The tokens of each document (epoch, sample) that has any in rows."""
        ids = {
            sample: self.tokens(text)[: self.cut_at] for sample, text in enumerate(self.documents)
        }
        return {
            (epoch, sample): kept
            for epoch in range(self.settings["epochs"])
            for sample, kept in ids.items()
            if kept
        }

    @property
    def expected_counts(self) -> dict[str, int]:
        """What the statistics of the whole run should say, from each document on its own."""
        frame = self.settings["eos"] is not None
        empty = [
            not text.startswith("-") and not tokenize(text) and not frame for text in self.documents
        ]
        # where there is a floor, a document without a token is below it
        empty = [is_empty and not self.settings.get("min_tokens", 0) for is_empty in empty]
        sizes = [len(self.tokens(text)) for text in self.documents]
        once = {
            "tokens": sum(len(self.tokens(text)[: self.cut_at]) for text in self.documents),
            "documents": sum(size > 0 for size in sizes),
            "filtered": sum(
                not size and not is_empty for size, is_empty in zip(sizes, empty, strict=True)
            ),
            "empty": sum(empty),
            "truncated": sum(max(0, size - (self.cut_at or size)) for size in sizes),
        }
        return {name: self.settings["epochs"] * number for name, number in once.items()}


def leave_out(sample: dict[str, Any]) -> str | None:
    text = str(sample["text"])
    return None if text.startswith("-") else text


Write = Callable[..., Corpus]


def write_corpus(folder: Path, documents: Sequence[str], **settings: Any) -> Corpus:
    write_mds(folder / "mds", documents, shard_bytes=400)
    return Corpus(
        folder, documents, {"eos": EOS, "seq_len": 8, "num_lanes": LANES, "epochs": 1, **settings}
    )


@pytest.fixture
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    return lambda documents, **settings: write_corpus(
        tmp_path_factory.mktemp("corpus"), documents, **settings
    )


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    ) as folder:
        yield Path(folder)


def uneven(seed: int, count: int, *, most: int = 20) -> list[str]:
    """Documents of very different sizes, empty ones among them: the lanes are far apart when the
    first of them ends."""
    sizes = random.Random(seed)
    return [
        chr(97 + number % 26) * (sizes.randint(0, most) if number % 5 else sizes.randint(0, 3))
        for number in range(count)
    ]


def tokens_in(rows: Sequence[Row]) -> dict[tuple[int, int], tuple[int, ...]]:
    """The tokens of each document (epoch, sample) in its order; `best_fit` may hand a beginning out
    after its end."""
    parts: dict[tuple[int, int], list[tuple[int, tuple[int, ...]]]] = {}
    for row in rows:
        ids = iter(row.input_ids)
        for _, epoch, sample, start, stop in row.spans:
            parts.setdefault((epoch, sample), []).append(
                (start, tuple(next(ids) for _ in range(stop - start)))
            )
    joined = {}
    for document, pieces in parts.items():
        found: tuple[int, ...] = ()
        for start, piece in sorted(pieces):
            assert start == len(found), (
                f"document {document} has a gap, or tokens that came twice, at {start}"
            )
            found += piece
        joined[document] = found
    assert len(real_tokens(rows)) == sum(map(len, joined.values())), "every real token is in a span"
    return joined


def trimmed(rows: Sequence[Row]) -> list[Row]:
    """Less the rows past the end."""
    number = len(rows)
    while number and rows[number - 1].is_padding:
        number -= 1
    return list(rows[:number])


def length(row: Row) -> int:
    return sum(stop - start for *_, start, stop in row.spans)


def counts_of(state: State) -> dict[str, int]:
    return dict(zip(COUNTS, map(sum, zip(*json.loads(state["counts"]), strict=True)), strict=True))


# ---------------------------------------------------------------- the end


@every_packing
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("leg", TO_THE_END, ids=lambda leg: f"{leg.ranks}x{leg.batch_size}")
def test_every_token_comes_once_and_only_the_last_rows_are_padding(
    write: Write, packing: Packing, epochs: int, leg: Leg
) -> None:
    corpus = write(uneven(1, 41), **packing, epochs=epochs, eos=None)
    rows, states = corpus.run(leg)
    assert tokens_in(rows) == corpus.expected
    real = trimmed(rows)
    assert len(rows) - len(real) < leg.ranks * leg.batch_size, (
        "rows past the end only fill the last global batch"
    )
    assert not any(row.is_padding for row in real)
    if packing["packing"] == "concat":
        assert all(length(row) == 8 for row in real[:-1]), "only one row is short of tokens"
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
def test_dropping_the_tail_gives_whole_batches_only(write: Write, packing: Packing) -> None:
    corpus = write(uneven(3, 45), **packing, epochs=2)
    whole, _ = corpus.run(Leg(batches=None))
    for leg in TO_THE_END:
        rows, _ = corpus.run(leg, tail="drop")
        step = leg.ranks * leg.batch_size
        assert_same_rows(rows, whole[: len(whole) // step * step], f"{leg}")


@every_packing
def test_what_is_handed_out_and_what_is_dropped_are_all_tokens(
    write: Write, packing: Packing
) -> None:
    corpus = write(uneven(3, 45), **packing, epochs=2)
    num_tokens = sum(map(len, corpus.expected.values()))
    for leg in [
        *TO_THE_END,
        *(Leg(batch_size=size, batches=None) for size in (2, 5, 11, 17, 40, 999)),
    ]:
        rows, _ = corpus.run(leg, tail="drop")
        assert {stats.dropped for stats in corpus.stats} == {num_tokens - len(real_tokens(rows))}, (
            f"{leg}, on every rank"
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
        loader = corpus.make_loader(batch_size=batch_size, num_workers=0, tail=tail)
        assert len(loader) == len(list(loader)) == len(loader)
    for ranks in (2, 3, 6):
        loader = corpus.make_loader(
            batch_size=2, num_workers=0, tail=tail, dp_rank=0, dp_world_size=ranks
        )
        assert (
            len(loader) == len(corpus.run(Leg(ranks, batch_size=2, batches=None), tail=tail)[1]) - 1
        )


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
    loader = corpus.make_loader(
        batch_size=3, num_workers=0, **{"packing": "one_per_row", "eos": EOS, **changes}
    )
    with pytest.raises(TypeError, match=r"one_per_row.*epochs=N"):
        len(loader)
    if changes.get("epochs", 1):
        assert list(loader)


@every_packing
def test_take_ends_before_at_and_after_the_end_and_goes_on(write: Write, packing: Packing) -> None:
    corpus = write(uneven(7, 24), **packing)
    whole = [
        batch["input_ids"].tolist() for batch in corpus.make_loader(batch_size=2, num_workers=0)
    ]
    for number in range(len(whole) + 2):
        loader = corpus.make_loader(batch_size=2, num_workers=0)
        taken = [
            [batch["input_ids"].tolist() for batch in loader.take(count)]
            for count in (number, 2, 0, 10_000, 1)
        ]
        assert [len(part) for part in taken[:3]] == [
            min(number, len(whole)),
            max(0, min(2, len(whole) - number)),
            0,
        ]
        assert taken[4] == []
        assert [batch for part in taken for batch in part] == whole


@every_packing
def test_skip_passes_over_the_beginning_of_the_tail_and_over_the_end(
    write: Write, packing: Packing
) -> None:
    corpus = write(uneven(13, 20), **packing)
    whole = [
        batch["input_ids"].tolist() for batch in corpus.make_loader(batch_size=2, num_workers=0)
    ]
    for number in range(0, len(whole) + 2, 2):
        loader = corpus.make_loader(batch_size=2, num_workers=0)
        loader.skip(number)
        assert loader.stats().skipped_rows == 2 * min(number, len(whole))
        assert [batch["input_ids"].tolist() for batch in loader] == whole[number:]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_run_that_seeks_before_its_tail_reads_on_to_its_end(
    write: Write, batch_size: int
) -> None:
    corpus = write(uneven(14, 20))
    whole, _ = corpus.run(Leg(batches=None))
    for row in range(len(whole) + 2):
        loader = corpus.make_loader(batch_size=batch_size, num_workers=0)
        loader.seek(row)
        found = [tuple(ids) for batch in loader for ids in batch["input_ids"].tolist()]
        assert found[: len(whole) - row] == [row.input_ids for row in whole[row:]]
        assert len(found) == -(-max(0, len(whole) - row) // batch_size) * batch_size


def test_a_run_that_seeks_in_its_tail_can_be_saved_there(write: Write) -> None:
    corpus = write(uneven(14, 20))
    whole, states = corpus.run(Leg(batches=None))
    state = next(state for state in states if state["tail"])
    loader = corpus.make_loader(batch_size=1, num_workers=0)
    loader.load_state_dict(state)
    loader.seek(state["rows"] + 2)
    rest, _ = corpus.run(Leg(2, batches=None), loader.state_dict())
    assert trimmed(rest) == whole[state["rows"] + 2 :]


@pytest.mark.parametrize("tail", ["0:1", "-8:1", "8:2", "8:0", "8:1,5:1", "8:2,8:-1"])
def test_a_tail_that_cannot_be_is_damage(write: Write, tail: str) -> None:
    corpus = write(uneven(14, 20))
    state = next(state for state in corpus.run(Leg(batches=None))[1] if state["tail"])
    assert state["tail"] == "8:1"
    with pytest.raises(StreamChangedError, match=r"tail.*damaged"):
        corpus.make_loader(batch_size=1, num_workers=0).load_state_dict({**state, "tail": tail})


def test_what_was_dropped_is_still_known_when_the_loader_is_closed(write: Write) -> None:
    with write(["abcd"] * 5).make_loader(batch_size=5, num_workers=0, tail="drop") as loader:
        assert list(loader) == []
        assert loader.stats().dropped == 25
    assert loader.stats().dropped == 25


def test_several_ranks_need_to_communicate_to_end_together(write: Write) -> None:
    loader = write(["abc"]).make_loader(batch_size=1, num_workers=0, dp_rank=1, dp_world_size=3)
    with pytest.raises(
        RanksDisagreeError,
        match=r"epochs=1 on 3 ranks.*Initialize torch.distributed.*"
        r"leave out epochs.*take\(n\)",
    ):
        next(iter(loader))


# ---------------------------------------------------------------- resuming about the end


@every_packing
def test_a_state_saved_anywhere_goes_on_to_the_same_end_on_any_world(
    write: Write, packing: Packing
) -> None:
    corpus = write(uneven(8, 34), **packing, min_tokens=2, seq_len=6)
    whole, states = corpus.run(Leg(batches=None))
    first = next(taken for taken, state in enumerate(states) if state["tail"])
    assert 3 < first <= len(states) - 3, "three states before the tail, and at least three in it"
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
    legs = [
        Leg(ranks, number % 3, size, batches=1) for number in range(6) for ranks, size in worlds
    ]
    rows = corpus.check_worlds([*legs, Leg(batches=None)])
    assert tokens_in(rows) == corpus.expected


@every_packing
@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_a_run_that_has_ended_has_nothing_more(write: Write, packing: Packing, tail: str) -> None:
    corpus = write(uneven(10, 20), **packing)
    _, states = corpus.run(Leg(3, batch_size=2, batches=None), tail=tail)
    # what was dropped is handed out to batches that it fills
    for leg in [
        *(TO_THE_END if tail == "pad" else []),
        Leg(2, 1, 3, batches=None),
        Leg(6, batch_size=50, batches=None),
    ]:
        rows, again = corpus.run(leg, states[-1], tail=tail)
        assert rows == []
        assert again == [states[-1]], "looking for more does not move it"


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_another_seq_len_at_every_point_of_the_tail_loses_and_repeats_no_token(
    write: Write, packing: str
) -> None:
    corpus = write(uneven(11, 24), packing=packing, open_rows=2, seq_len=6)
    whole, states = corpus.run(Leg(batches=None))
    first = next(taken for taken, state in enumerate(states) if state["tail"])
    assert len(states) - first >= 4
    for taken in range(first - 1, len(states)):
        rows, state = whole[:taken], states[taken]
        for ranks, seq_len, batches in [
            (1, 6, 1),
            (3, 13, 1),
            (2, 2, 2),
            (1, 6, 1),
            (6, 7 + taken, None),
        ]:
            more, later = corpus.run(Leg(ranks, taken % 3, batches=batches), state, seq_len=seq_len)
            rows, state = rows + more, later[-1]
        assert tokens_in(rows) == corpus.expected, f"from row {taken} on"
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
    ("field", "before", "after"), [("open_rows", 4, 1), ("min_tokens", 0, 4), ("min_tokens", 4, 0)]
)
@pytest.mark.parametrize("where", ["in the tail", "between exchanges"])
def test_what_packs_the_rows_does_not_change_where_rows_are_packed_again(
    write: Write, field: str, before: int, after: int, where: str
) -> None:
    epochs = 1 if where == "in the tail" else None
    corpus = write(uneven(15, 40), packing="best_fit", epochs=epochs, **{field: before})
    _, states = corpus.run(Leg(batches=None if epochs else 10, exchange_every=4))
    state = next(
        state
        for state in states
        if (state["tail"] if epochs else state["rows"] > state["table_rows"])
    )
    loader = corpus.make_loader(batch_size=1, num_workers=0, **{field: after})
    with pytest.raises(StreamChangedError, match=rf"{field}: .*(exchange|tail)"):
        loader.load_state_dict(state, on_change={field: "accept"})


def test_an_endless_run_becomes_finite_at_an_exchange_only(write: Write) -> None:
    corpus = write(uneven(16, 40), epochs=None)
    rows, states = corpus.run(Leg(batches=6, exchange_every=4))
    finite = corpus.make_loader(batch_size=1, num_workers=0, epochs=1)
    with pytest.raises(StreamChangedError, match=r"epochs: .*exchange"):
        finite.load_state_dict(states[6], on_change={"epochs": "accept"})
    finite.load_state_dict(states[4], on_change={"epochs": "accept"})
    rest = [
        token for batch in finite for token in batch["input_ids"][batch["labels"] >= 0].tolist()
    ]
    assert len(real_tokens(rows[:4]) + rest) == sum(
        len(corpus.tokens(text)) for text in corpus.documents
    )


def test_fewer_open_rows_taken_on_purpose_give_one_stream_of_rows_again(write: Write) -> None:
    corpus = write(uneven(12, 60), packing="best_fit", open_rows=6, num_lanes=1, epochs=None)
    _, states = corpus.run(Leg(batches=5))
    at_once, one_by_one = (
        corpus.make_loader(batch_size=1, num_workers=0, open_rows=2) for _ in range(2)
    )
    for loader in (at_once, one_by_one):
        loader.load_state_dict(states[-1], on_change={"open_rows": "accept"})
    whole = [batch["input_ids"].tolist() for batch in at_once.take(12)]
    assert [batch["input_ids"].tolist() for _ in whole for batch in one_by_one.take(1)] == whole


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
@pytest.mark.parametrize("epochs", [None, 1])
def test_a_document_that_has_begun_is_read_to_its_end_though_it_is_too_short_now(
    write: Write, packing: str, epochs: int | None
) -> None:
    corpus = write(
        ["a" * 20, "b" * 40, "c" * 20], packing=packing, num_lanes=1, shuffle=False, epochs=epochs
    )
    rows, states = corpus.run(Leg(batches=1))
    loader = corpus.make_loader(batch_size=1, num_workers=0, min_tokens=30)
    loader.load_state_dict(states[-1], on_change={"min_tokens": "accept"})
    rest = [
        span[2:]
        for batch in loader.take(20)
        for span in batch.spans.tolist()
        if span[1] == 0 and span[2] == 0
    ]
    assert rows[0].spans == ((0, 0, 0, 0, 8),)
    assert (
        sum(stop - start for sample, start, stop in (span[-3:] for span in rest) if sample == 0)
        == 13
    )


# ---------------------------------------------------------------- tiny data


@every_packing
@pytest.mark.parametrize(
    "documents",
    [
        ["a"],
        ["x" * 7],
        ["x" * 8],
        ["ab", "c"],
        ["a", "", "b"],
        [""] * 4,
        ["y" * 23, "z"],
        list("abcdefg"),
        ["x" * 7] * LANES,
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
    with pytest.raises(
        DatasetError, match=r"no document of .*mds gave any tokens: all are empty or filtered out"
    ):
        corpus.run(Leg(ranks, batches=None))


# ---------------------------------------------------------------- statistics


@dataclass(frozen=True)
class Case:
    """A corpus of which documents are left out, and worlds."""

    documents: tuple[str, ...]
    settings: dict[str, Any]
    legs: tuple[Leg, ...]


@st.composite
def cases(draw: st.DrawFn, packings: Sequence[Packing] = PACKINGS) -> Case:
    """Tiny corpora of few kinds of documents, so that rows are full, and lanes dry, by chance."""
    texts = st.sampled_from(
        ["", "-", "a", "bb", "cccc", "d" * 7, "e" * 8, "f" * 9, "-" * 9, "g" * 40]
    )
    lanes = draw(st.sampled_from([1, 2, 3, 4, 6, 12]))
    chosen = {
        "eos": draw(st.sampled_from([EOS, None])),
        "seq_len": draw(st.sampled_from([1, 3, 8, 9, 16])),
        "num_lanes": lanes,
        "epochs": draw(st.integers(1, 3)),
        "shuffle": draw(st.booleans()),
        **draw(st.sampled_from(packings)),
        "open_rows": draw(st.integers(1, 3)),
        "min_tokens": draw(st.sampled_from([0, 0, 1, 3])),
        "transform": leave_out,
    }
    legs = [
        Leg(
            draw(st.sampled_from([ranks for ranks in (1, 2, 3, 4, 6) if lanes % ranks == 0])),
            draw(st.integers(0, 3)),
            draw(st.integers(1, 4)),
            draw(st.integers(1, 4)),
        )
        for _ in range(draw(st.integers(1, 4)))
    ]
    return Case(
        tuple(draw(st.lists(texts, min_size=1, max_size=25))),
        chosen,
        (*legs[:-1], replace(legs[-1], batches=None)),
    )


# a document that is left out, and no row after it: at the end of a batch, or within one
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
            with pytest.raises(DatasetError, match="gave any tokens"):
                corpus.run(replace(case.legs[0], batches=None))
            return
        rows: list[Row] = []
        state: State | None = None
        for leg in case.legs:
            more, states = corpus.run(leg, state)
            rows, state = rows + more, states[-1]
    assert tokens_in(rows) == corpus.expected
    for stats in corpus.stats:
        assert {
            name: getattr(stats, name) for name in corpus.expected_counts
        } == corpus.expected_counts


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
                f"{documents} by {batch_size}, then {seq_len}"
            )


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


# ---------------------------------------------------------------- real ranks


def test_ranks_killed_in_the_tail_end_on_another_world_with_the_rows_of_one_process(
    tmp_path: Path,
) -> None:
    """One lane has but ends of text and ends early: what is left is most of the run, and the sizes
    of 1,284 documents of a rank, which are more than the exchange begins with."""
    texts = ["" if number % 12 == 0 else str(number + 1_000) for number in range(4_800)]
    url = write_mds(tmp_path / "mds", texts, shard_bytes=20_000, compression="zstd")
    corpus = TorchrunCorpus(url, url, tmp_path / "cache")
    chosen: dict[str, Any] = {"packing": "best_fit", "open_rows": 2, "shuffle": False}

    def make_loader(**rank: Any) -> CloudLoader:
        return corpus.make_loader(epochs=1, **chosen, **rank)

    expected, states = run_leg(make_loader, Leg(batch_size=30, batches=None))
    killed_after = next(number for number, state in enumerate(states) if state["tail"]) + 4
    assert 2 < killed_after < len(states) - 5, "killed in the tail, and not at its ends"

    expected = trimmed(expected)
    found = launch(
        corpus,
        tmp_path,
        0,
        Run(3, 10, 2, killed_after, killed=True),
        epochs=1,
        settings=dict(chosen),
    )
    state = json.loads((tmp_path / "state.json").read_text())
    assert state == {**states[killed_after - 1], "sources": state["sources"]}
    again = launch(corpus, tmp_path, 1, Run(2, 16, 2, 10_000), epochs=1, settings=dict(chosen))
    assert all(again.get(row, ids) == ids for row, ids in found.items()), (
        "rows that are read again are the same"
    )
    found |= again
    assert min(again) == state["rows"] == 30 * (killed_after - 1)
    assert [found[row] for row in range(len(expected))] == [list(row.input_ids) for row in expected]
    assert len(found) - len(expected) < 32
    steps = {
        len((tmp_path / f"run-1-rank-{rank}.jsonl").read_text().splitlines()) for rank in range(2)
    }
    assert steps == {len(again) // 32}, "both ranks end on the same step"
