"""Mixtures whose streams end match an oracle that assigns rows one by one from token counts."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import CloudLoader, Rows, Stream
from cloudload.cli import main
from cloudload.errors import DatasetError, StreamChangedError
from cloudload.provenance import (
    compare_states,
    compare_with_loader,
    describe_state,
    find_document,
    open_run,
    start_run,
    trace_steps,
)
from cloudload.run.state import State
from cloudload.testing import Leg, Row, assert_same_rows, check_worlds, run_leg
from cloudload.tools.cli.state_command import list_lines
from cloudload.tools.count import count_tokens
from testkit.awkward import tokenize
from testkit.best_fit_oracle import BestFitOracle, choose_stream
from testkit.corpora import EOS, byte_tokenizer, random_documents, write_mds
from testkit.examples import EXAMPLES
from testkit.loaders import SEQ_LEN, make_loader
from testkit.quick_laws import quick_laws  # noqa: F401

SIZES = (7, 40, 70)
MIN_TOKENS = 25
Weights = tuple[float, ...]


@dataclass(frozen=True)
class Data:
    cache: Path
    folders: list[str]
    documents: list[list[str]]

    def streams(self, weights: Weights, caps: Sequence[int | None]) -> list[Stream]:
        """A mixture of the first `len(weights)` datasets."""
        return [
            Stream(folder, proportion=weight, max_epochs=cap, name=f"s{number}")
            for number, (folder, weight, cap) in enumerate(
                zip(self.folders, weights, caps, strict=False)
            )
        ]

    def sizes(self, min_tokens: int) -> list[list[int]]:
        """The number of tokens of each document by stream, with eos; 0 if it is filtered out."""
        whole = [[len(tokenize(text)) + 1 for text in texts] for texts in self.documents]
        return [[size if size >= min_tokens else 0 for size in sizes] for sizes in whole]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    root = tmp_path_factory.mktemp("mixtures")
    made = Data(root / "cache", [], [])
    for number, size in enumerate(SIZES):
        documents = random_documents(number, size, max_words=10)
        documents[size // 2] = ""
        made.documents.append(documents)
        made.folders.append(write_mds(root / str(number), documents, shard_bytes=3_000))
        count_tokens(made.folders[-1], tokenizer=byte_tokenizer(), processes=1, progress=False)
    return made


# ---------------------------------------------------------------- the oracle


@dataclass
class Oracle:
    """A model of a mixture that counts the units left in each stream.

    With `concat`, a unit is a token. With `one_per_row`, it is a row.
    """

    left: list[int | None]
    num_lanes: int
    row: int = 0
    streams: list[int] = field(default_factory=list)
    """The stream of each row so far; -1 for padding."""
    fills: list[int] = field(default_factory=list)
    """The number of units of each row so far."""

    def take(self, number: int, weights: Weights, first: bool, per_row: int) -> bool:
        """Assign the next `number` rows; after the end, pad. Returns whether the run has ended."""
        is_over = self._is_over(weights, first)
        for _ in range(number):
            stream = -1 if is_over else self._choose(weights)
            self.streams.append(stream)
            self.fills.append(0 if is_over else self._use(stream, per_row))
            self.row += 1
            is_over = is_over or self._is_over(weights, first)
        return is_over

    def _is_over(self, weights: Weights, first: bool) -> bool:
        over = [left == 0 for weight, left in zip(weights, self.left, strict=True) if weight]
        return any(over) if first else all(over)

    def _choose(self, weights: Weights) -> int:
        live = [w if left != 0 else 0 for w, left in zip(weights, self.left, strict=True)]
        return choose_stream(self.row, self.num_lanes, live)

    def _use(self, stream: int, per_row: int) -> int:
        left = self.left[stream]
        used = per_row if left is None else min(per_row, left)
        if left is not None:
            self.left[stream] = left - used
        return used


def packed(packing: str) -> dict[str, Any]:
    """Return a packing's options. A name such as "best_fit 3" ends with the number of open rows."""
    if packing.startswith("best_fit"):
        return {"packing": "best_fit", "open_rows": int(packing.rsplit(maxsplit=1)[-1])}
    return {} if packing == "concat" else {"packing": "one_per_row", "overflow": packing}


def units(packing: str, sizes: list[int], seq_len: int) -> int:
    """The number of units in one epoch of a stream. `Oracle` explains units."""
    if packing == "concat":
        return sum(sizes)
    return sum(min(1, size) if packing == "cut" else -(-size // seq_len) for size in sizes)


# ---------------------------------------------------------------- any chain of legs

BEST_FITS = ["best_fit 1", "best_fit 3", "best_fit 16"]
CHAIN = st.lists(
    st.tuples(
        st.builds(
            Leg,
            ranks=st.one_of(st.integers(1, 9), st.integers(1, 40)),
            workers=st.integers(0, 2),
            batch_size=st.integers(1, 4),
            batches=st.sampled_from([1, 2, 9]),
            ranks_per_node=st.sampled_from([None, 1, 3]),
        ),
        st.sampled_from([SEQ_LEN, SEQ_LEN, 50]),
        st.sampled_from([(1.0, 3.0, 1.0), (0.2, 1.0, 0.5), (1.0, 0.0, 3.0), (0.0, 1.0, 0.01)]),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


@given(
    packing=st.sampled_from(["concat", "concat", "cut", "rows", *BEST_FITS]),
    num_lanes=st.sampled_from([12, 30, 60]),
    ends=st.sampled_from(
        [(1, (None,) * 3), (2, (3, None, 1)), (None, (2, 1, None)), (3, (1,) * 3)]
    ),
    min_tokens=st.sampled_from([0, MIN_TOKENS]),
    chain=CHAIN,
)
@settings(max_examples=EXAMPLES)
def test_any_chain_of_worlds_ends_streams_where_the_oracle_does(
    data: Data,
    *,
    packing: str,
    num_lanes: int,
    ends: tuple[int | None, tuple[int | None, ...]],
    min_tokens: int,
    chain: list[Any],
) -> None:
    """Each leg continues from the state of the previous one, with different weights, `seq_len`, and
    `stopping`. If the run is finite, the last leg reaches its end."""
    epochs, caps = ends
    repeats = [epochs if cap is None else cap for cap in caps]
    sizes = data.sizes(min_tokens)
    if packing == "rows":
        chain = [(leg, SEQ_LEN, weights, first) for leg, _, weights, first in chain]
    oracle: Oracle | BestFitOracle
    if packing in BEST_FITS:
        options = {"num_lanes": num_lanes, "local": data.cache}
        with make_loader(data.streams(chain[0][2], caps), **options) as loader:
            components = loader.recipe.components
        oracle = BestFitOracle(components, repeats, sizes, packed(packing)["open_rows"])
    else:
        left = [
            None if times is None else times * units(packing, each, SEQ_LEN)
            for times, each in zip(repeats, sizes, strict=True)
        ]
        oracle = Oracle(left, num_lanes)
    state, rows = None, list[Row]()
    last = chain[-1][0]
    chain[-1] = (replace(last, batches=300 // last.ranks), *chain[-1][1:])
    for leg, seq_len, weights, first in chain:
        make = partial(
            make_loader,
            data.streams(weights, caps),
            local=data.cache,
            epochs=epochs,
            stopping="first" if first else "all",
            num_lanes=num_lanes,
            min_tokens=min_tokens,
            seq_len=seq_len,
            **packed(packing),
        )
        found, states = run_leg(make, leg, state)
        alone = Leg(1, 0, leg.ranks * leg.batch_size, leg.batches)
        expected, expected_states = run_leg(make, alone, state)
        assert_same_rows(found, expected, f"{leg}")
        assert states == expected_states
        before = len(rows)
        per_row = 1 if packing in ("cut", "rows") else seq_len
        is_over = oracle.take(0, weights, first, per_row)
        for _ in range(leg.batches or 0):
            if is_over:
                break
            is_over = oracle.take(leg.ranks * leg.batch_size, weights, first, per_row)
        rows, state = rows + found, states[-1]
        assert [stream_of(row) for row in rows] == oracle.streams
        if isinstance(oracle, BestFitOracle):
            assert [list(row.spans) for row in rows] == oracle.rows
        elif packing == "concat":
            assert [tokens_of(row) for row in rows] == oracle.fills
        check_len(make, leg, state, is_over)
        assert len(rows) == before + len(found) == state["rows"]
    check_documents(rows, sizes, repeats, packing, oracle)
    assert state is not None
    check_counts(rows, state, sizes, repeats, oracle)


def stream_of(row: Row) -> int:
    """The stream that fills a row; -1 for a row of padding."""
    [stream] = {span[0] for span in row.spans} or {-1}
    return stream


def tokens_of(row: Row) -> int:
    return sum(stop - start for *_, start, stop in row.spans)


def check_len(make: Any, leg: Leg, state: State, is_over: bool) -> None:
    """Check that a loader yields nothing after the end, and that its length is then the number of
    batches delivered."""
    loader = make(dp_rank=0, dp_world_size=leg.ranks, batch_size=leg.batch_size, num_workers=0)
    loader.load_state_dict(state)
    assert (list(loader.take(1)) == []) == is_over
    if is_over:
        assert len(loader) == -(-state["rows"] // leg.ranks // leg.batch_size)
    loader.close()


def check_documents(
    rows: list[Row], sizes: Any, repeats: Any, packing: str, oracle: Oracle | BestFitOracle
) -> None:
    """Check that no token is in two rows, and that all tokens of ended streams are in the rows."""
    spans = defaultdict(list)
    for row in rows:
        for stream, epoch, sample, start, stop in row.spans:
            spans[stream, epoch, sample].append((start, stop))
    for (stream, epoch, _), found in spans.items():
        found.sort()
        assert all(one[1] <= other[0] for one, other in pairwise(found))
        assert repeats[stream] is None or epoch < repeats[stream]
    for stream, left in enumerate(oracle.left):
        for epoch in range(repeats[stream] or 0) if left == 0 else ():
            for sample, size in enumerate(sizes[stream]):
                found = spans[stream, epoch, sample]
                assert len(found) == (size > 0) or packing != "cut"
                assert sum(stop - start for start, stop in found) == size or packing == "cut"


def check_counts(
    rows: list[Row], state: State, sizes: Any, repeats: Any, oracle: Oracle | BestFitOracle
) -> None:
    """Check each stream's statistics against the rows and, if it ended, all its documents."""
    tokens: Counter[int] = Counter()
    for row in rows:
        for stream, _, _, start, stop in row.spans:
            tokens[stream] += stop - start
    for stream, counts in enumerate(json.loads(state["counts"])):
        assert counts[0] == tokens[stream]
        if oracle.left[stream] == 0 and stream in oracle.streams:
            full = sum(size > 0 for size in sizes[stream])
            assert counts[1] == repeats[stream] * full
            assert counts[2] == repeats[stream] * (len(sizes[stream]) - full)


MEMBERS = st.builds(
    Leg,
    ranks=st.integers(1, 9),
    workers=st.integers(0, 1),
    batch_size=st.integers(1, 4),
    batches=st.sampled_from([0, 1, 3, 9]),
    ranks_per_node=st.sampled_from([None, 1, 3]),
)


@given(
    packing=st.sampled_from(["concat", "cut", *BEST_FITS]),
    num_lanes=st.sampled_from([12, 30]),
    ends=st.sampled_from([(1, (None,) * 3), (2, (3, None, 1)), (None, (2, 1, None))]),
    first=st.booleans(),
    legs=st.lists(MEMBERS, min_size=2, max_size=5),
)
@settings(max_examples=EXAMPLES)
def test_ranks_that_leave_and_join_end_on_one_step(
    data: Data,
    *,
    packing: str,
    num_lanes: int,
    ends: tuple[int | None, tuple[int | None, ...]],
    first: bool,
    legs: list[Leg],
) -> None:
    """Call `set_world` before, during, and after streams' tails. The rows must not change."""
    epochs, caps = ends
    legs[-1] = replace(legs[-1], batches=None if epochs or first else 9)
    make = partial(
        make_loader,
        data.streams((1.0, 3.0, 0.5), caps),
        local=data.cache,
        epochs=epochs,
        stopping="first" if first else "all",
        num_lanes=num_lanes,
        **packed(packing),
    )
    assert check_worlds(make, legs, restarts=False)


# ---------------------------------------------------------------- the ways to a row agree


@given(
    packing=st.sampled_from(["concat", "cut", "rows", *BEST_FITS]),
    ends=st.sampled_from([(1, (None,) * 3), (2, (3, None, 1)), (None, (2, 1, None))]),
    stopping=st.sampled_from(["first", "all"]),
    schedule=st.sampled_from(
        [
            None,
            [(0, {"s0": 1.0}), (200, {"s1": 1.0}), (210, {"s2": 2.0, "s1": 1.0})],
            [(0, {"s1": 3.0, "s0": 1.0}), (60, {"s0": 1.0, "s2": 1.0})],
        ]
    ),
    before=st.sampled_from([None, None, (SEQ_LEN, 9), (50, 12), (50, 30), (7, 60)]),
    moves=st.tuples(st.integers(0, 12), st.integers(0, 90)),
    chosen=st.integers(0, 1_000),
)
@settings(max_examples=EXAMPLES)
def test_rows_by_number_seek_where_and_trace_agree_with_the_loader(
    data: Data,
    *,
    packing: str,
    ends: tuple[int | None, tuple[int | None, ...]],
    stopping: Any,
    schedule: Any,
    before: tuple[int, int] | None,
    moves: tuple[int, int],
    chosen: int,
) -> None:
    """In some examples, the run starts from a state that was saved with a different `seq_len`."""
    options = {
        **{"tokenizer": byte_tokenizer(), "eos": EOS, "seq_len": SEQ_LEN, "num_lanes": 12},
        **{"local": data.cache, "epochs": ends[0], "stopping": stopping, "schedule": schedule},
        **packed(packing),
    }
    streams = data.streams((1.0, 2.0, 0.5), ends[1])
    start, (saved, distance) = None, moves
    if before is not None:
        with make_loader(streams, **{**options, "seq_len": before[0]}) as loader:
            list(loader.take(before[1]))
            start = loader.state_dict()
    first, first_step = (start["rows"], start["batches"]) if start else (0, 0)
    with make_loader(streams, **options) as loader:
        if start:
            loader.load_state_dict(start)
        batches, states = [], [loader.state_dict()]
        for batch in loader.take(120):
            batches.append(batch)
            states.append(loader.state_dict())
        ids = [row for batch in batches for row in batch["input_ids"].tolist()]
        traced = [loader.trace(batch) for batch in batches]
        if len(batches) < 120:
            assert len(loader) == first_step + len(batches)
    rows = Rows(streams, **{**options, "num_rows": None}, state=start)
    if len(batches) < 120:
        assert -(-max(0, len(rows) - first) // 4) == len(batches)
        ids = ids[: len(rows) - first]
    if not batches:
        return
    for row in (0, chosen % len(ids), len(ids) - 1):
        assert rows[first + row]["input_ids"].tolist() == ids[row]
    saved %= len(batches)
    assert without_batches(rows.state_dict(first + 4 * saved)) == without_batches(states[saved])
    with make_loader(streams, **options) as loader:
        loader.load_state_dict(states[saved])
        loader.seek(first + min(len(batches) - 1, saved + distance) * 4)
        found = next(iter(loader))
        place = (found.first_row - first) // 4
        assert found["input_ids"].tolist() == batches[place]["input_ids"].tolist()
        assert without_batches(loader.state_dict()) == without_batches(states[place + 1])
    run = open_run(states[saved], tokenizer=byte_tokenizer(), global_batch=4)
    span = traced[chosen % len(traced)][0]
    wanted = ("stream", "epoch", "sample", "start", "stop")
    expected = [
        (step, *(getattr(each, name) for name in wanted))
        for step, spans in enumerate(traced[saved:], first_step + saved + 1)
        for each in spans
        if (each.stream, each.sample) == (span.stream, span.sample)
    ]
    delivery: Any = {"num_workers": 0, "local": data.cache}
    last_step = first_step + len(batches)
    occurrences = find_document(run, int(span.stream[1]), span.sample, last_step, **delivery)
    assert [
        (each.step, *(getattr(each, name) for name in wanted)) for each in occurrences
    ] == expected
    step = first_step + saved + 1
    [(_, spans)] = trace_steps(run, range(step, step + 1), 0, **delivery)
    assert [(each.stream, each.sample, each.start) for each in spans] == [
        (each.stream, each.sample, each.start)
        for each in traced[saved]
        if each.row == first + 4 * saved
    ]


def without_batches(state: State) -> State:
    """Remove the fields about batches, because a state of `Rows` has none."""
    return {name: value for name, value in state.items() if name not in ("batches", "global_batch")}


# ---------------------------------------------------------------- single promises


def make_mixture(data: Data, weights: Weights = (1.0, 1.0), **options: Any) -> CloudLoader:
    caps = options.pop("caps", (None, None, None))
    return make_loader(data.streams(weights, caps), local=data.cache, **options)


def test_shares_are_exact_until_the_first_stream_ends(data: Data) -> None:
    """Most rows of a small stream are in its tail, and the tail must keep the stream's share."""
    with make_mixture(data, (1.0, 4.0), num_lanes=30, epochs=3, stopping="first") as loader:
        rows = [int(row) for batch in loader for row in batch.spans[:, 1]]
        batches = len(loader)
    assert batches > 15
    with make_mixture(data, (1.0, 4.0), num_lanes=30) as endless:
        expected = [int(row) for batch in endless.take(batches) for row in batch.spans[:, 1]]
    assert [*dict.fromkeys(rows)] == [*dict.fromkeys(expected)]


def test_counts_of_batches_and_what_is_dropped(data: Data) -> None:
    tokens = [sum(sizes) for sizes in data.sizes(0)]
    rows = sum(-(-number // SEQ_LEN) for number in tokens[:2])
    for tail, batches in (("pad", -(-rows // 4)), ("drop", rows // 4)):
        with make_mixture(data, epochs=1, tail=tail) as loader:
            assert len(loader) == len(list(loader)) == batches
            assert loader.stats().tokens + loader.stats().dropped == sum(tokens[:2])
            assert list(loader) == []
            with pytest.raises(ValueError, match=f"rows is 10,000, but the run has {rows} rows"):
                loader.seek(10_000)
    with make_mixture(data) as endless:
        assert endless.count_batches(1) == -(-rows // 4)
        assert endless.is_endless
    with make_mixture(data, caps=(3, None, None)) as capped:
        assert capped.is_endless
        assert capped.count_batches(1) == -(
            -(rows + -(-3 * tokens[0] // SEQ_LEN) - -(-tokens[0] // SEQ_LEN)) // 4
        )
        with pytest.raises(TypeError):
            len(capped)


def test_documents_after_the_last_row_of_a_stream_are_counted(tmp_path: Path) -> None:
    """Each lane fills one row and is left with a filtered document, so the tail has no row."""
    folder = write_mds(tmp_path / "mds", ["long enough"] * 12 + ["short"] * 12)
    count_tokens(folder, tokenizer=byte_tokenizer(), processes=1, progress=False)
    streams = [Stream(folder, proportion=1.0, name="only")]
    options: dict[str, Any] = {
        "packing": "one_per_row",
        "min_tokens": 8,
        "shuffle": False,
        "epochs": 1,
    }
    for batch_size in (4, 7):
        with make_loader(streams, local=tmp_path, batch_size=batch_size, **options) as loader:
            next(iter(loader))
            state = loader.state_dict()
        with make_loader(streams, local=tmp_path, batch_size=batch_size, **options) as loader:
            loader.load_state_dict(state)
            list(loader)
            stats = loader.stats()
            assert (stats.documents, stats.filtered, stats.streams["only"].epoch) == (12, 12, 1)
            assert loader.state_dict()["stream_tails"] == "16:0"
            loader.load_state_dict(loader.state_dict())
            assert (list(loader), loader.stats().filtered) == ([], 12)


@pytest.mark.parametrize("ranks", [1, 7])
def test_a_stream_that_best_fit_packs_without_a_tail_ends_with_its_last_row(
    tmp_path: Path, ranks: int
) -> None:
    """Each document of the first two streams fills a row, so nothing is left for their tails."""
    streams, sizes = [], [[16] * 12, [16] * 31, [9, 7, 12, 4, 9] * 9]
    for number, of_stream in enumerate(sizes):
        folder = write_mds(tmp_path / str(number), ["x" * (size - 1) for size in of_stream])
        count_tokens(folder, tokenizer=byte_tokenizer(), processes=1, progress=False)
        streams.append(Stream(folder, proportion=1.0, name=f"s{number}"))
    options: dict[str, Any] = {"packing": "best_fit", "open_rows": 2, "local": tmp_path}
    with make_loader(streams, epochs=1, **options) as loader:
        oracle = BestFitOracle(loader.recipe.components, (1, 1, 1), sizes, 2)
        number = len(loader) * 4
    with make_loader(streams, **options) as endless:
        assert endless.count_batches(1) * 4 == number
    make = partial(make_loader, streams, epochs=1, **options)
    rows, _ = run_leg(make, Leg(ranks, 0, 2, None))
    assert oracle.take(len(rows), (1, 1, 1), False, SEQ_LEN)
    assert [list(row.spans) for row in rows] == oracle.rows


def test_a_stream_with_a_cap_ends_and_the_run_continues(data: Data) -> None:
    with make_mixture(data, caps=(2, None, None)) as loader:
        streams = [set(batch.spans[:, 1].tolist()) for batch in loader.take(300)]
        assert loader.stats().streams["s0"].epoch == 2
        assert loader.stats().streams["s1"].epoch > 5
    assert {0, 1} in streams[:10]
    assert all(each == {1} for each in streams[100:])


def test_an_endless_mixture_resumes_as_a_finite_one_if_the_change_is_accepted(data: Data) -> None:
    with make_mixture(data) as loader:
        before = [batch.spans for batch in loader.take(2)]
        state = loader.state_dict()
    with make_mixture(data, epochs=1) as loader:
        with pytest.raises(StreamChangedError, match="epochs: saved None, found 1"):
            loader.load_state_dict(state)
        loader.load_state_dict(state, on_change={"epochs": "accept"})
        spans = [tuple(span) for batch in loader for span in batch.spans[:, 1:].tolist()]
    spans += [tuple(span) for each in before for span in each[:, 1:].tolist()]
    tokens = sum(stop - start for *_, start, stop in spans)
    assert len(set(spans)) == len(spans)
    assert tokens == sum(sum(sizes) for sizes in data.sizes(0)[:2])


def test_stopping_may_change_at_a_resume_and_a_cap_may_not_once_a_stream_is_in_its_tail(
    data: Data,
) -> None:
    with make_mixture(data, epochs=1, stopping="first") as loader:
        first = len(list(loader))
        state = loader.state_dict()
    with make_mixture(data, epochs=1) as loader:
        loader.load_state_dict(state)
        assert first + len(list(loader)) >= len(loader) > first
    with make_mixture(data, caps=(1, 4, None)) as loader:
        accepted = {"epochs": "accept", "max_epochs": "accept"}
        with pytest.raises(StreamChangedError, match="once a stream of the mixture is in its tail"):
            loader.load_state_dict(state, on_change=accepted)


def test_checkpoints_in_the_tail_of_a_stream_are_told_from_other_runs(data: Data) -> None:
    with make_mixture(data, epochs=1) as loader:
        states = [loader.state_dict(), *(loader.state_dict() for _ in loader)]
    first, last = describe_state(states[0]), describe_state(states[-1])
    assert (first.streams_in_tail, last.streams_in_tail) == ((), ("s0", "s1"))
    assert "  in their tails, or at their ends: s0, s1" in list_lines(last)
    inside = next(state for state in states if describe_state(state).streams_in_tail)
    for later in (inside, states[-1]):
        rules = {each.name: each.rule for each in compare_states(states[0], later)}
        assert rules["stream_tails"] == "position"
        assert not [rule for rule in rules.values() if rule.startswith("held")]
    with make_mixture(data, epochs=1, stopping="first") as loader:
        changed, refusal = compare_with_loader(inside, loader)
    assert ({each.name for each in changed} - {"mixture"}, refusal) == ({"stopping"}, None)
    assert {each.rule[:10] for each in changed} == {"may change"}


def test_a_run_whose_lengths_are_elsewhere_is_traced_from_its_state(
    data: Data, tmp_path: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders, lengths, tokenizer = [], tmp_path / "lengths", str(tokenizer_folder)
    for number, documents in enumerate(data.documents[:2]):
        folders.append(write_mds(tmp_path / str(number), documents))
        count_tokens(folders[-1], tokenizer=tokenizer, processes=1, progress=False, out=lengths)
    options: dict[str, Any] = {
        **{"data": [Stream(folder, proportion=1.0) for folder in folders], "epochs": 1},
        **{"tokenizer": tokenizer, "seq_len": SEQ_LEN, "lengths": lengths},
    }
    with CloudLoader(**options, batch_size=4, num_lanes=4, local=tmp_path / "a") as loader:
        state, batches = loader.state_dict(), list(loader)
        spans = loader.trace(batches[1])
    run = start_run(4, **options, num_lanes=4, local=tmp_path / "b")
    found = dict(trace_steps(run, range(2, 3), num_workers=0, local=tmp_path / "b"))
    assert [each.text for each in found[2]] == [each.text for each in spans]
    (tmp_path / "state.json").write_text(json.dumps(state))
    common = ["--global-batch", "4", "--local", str(tmp_path / "c"), "--workers", "0", "--json"]
    common = [str(tmp_path / "state.json"), *common, "--quiet"]
    trace, where = ["trace", *common, "--steps", "2"], ["where", *common, "--until", "2"]
    assert main(trace) == 1
    assert "needs token lengths" in capsys.readouterr().err
    assert main([*trace, "--lengths", str(lengths)]) == 0
    shown = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    assert shown == [each.text for each in spans]
    sample = f"{run.labels.index(spans[0].stream)}:{spans[0].sample}"
    assert main([*where, "--sample", sample, "--lengths", str(lengths)]) == 0


def test_what_a_mixture_with_ends_cannot_have_is_refused(data: Data, tmp_path: Path) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"lengths": "off"}, "lengths is 'off', but a mixture with epochs or max_epochs"),
        ({"stop_every": "epoch"}, "stop_every is 'epoch'"),
        ({"epochs": None, "stopping": "first"}, "stopping is 'first', but no stream ends"),
        ({"stopping": "any"}, "stopping is 'any'"),
        ({"caps": (0, None, None)}, "max_epochs of s0 is 0"),
    ]
    for options, message in refused:
        with pytest.raises(ValueError, match=message):
            make_mixture(data, **{"epochs": 1, **options})
    for options, message in (
        ({"stopping": "first"}, "without proportions or a schedule, all streams end together"),
        ({}, "has max_epochs, which requires a mixture"),
    ):
        stream = Stream(data.folders[0], max_epochs=None if options else 2)
        with pytest.raises(ValueError, match=message):
            make_loader([stream], epochs=1, **options)
    other = write_mds(tmp_path / "mds", ["a text"])
    streams = [*data.streams((1.0,), (None,)), Stream(other, proportion=1.0)]
    with pytest.raises(DatasetError, match=r"1 of 2 streams .*Run: cloudload count .*/mds"):
        make_loader(streams, epochs=1)
    with pytest.raises(DatasetError, match="no document of s0, s1 has any tokens"):
        make_mixture(data, epochs=1, min_tokens=10_000).worker_plan()


def test_damaged_tails_of_streams_are_refused(data: Data) -> None:
    with make_mixture(data, epochs=1) as loader:
        list(loader)
        state = loader.state_dict()
        for text in ("16:1", "16:1;x", "0:1;16:1", "16:1;16:1;16:1"):
            with pytest.raises(StreamChangedError, match="stream_tails"):
                loader.load_state_dict({**state, "stream_tails": text})
        with pytest.raises(StreamChangedError, match="table_rows"):
            loader.load_state_dict({**state, "table_rows": state["rows"] - 4})
    accepted = {"epochs": "accept"}
    with make_mixture(data) as endless, pytest.raises(StreamChangedError, match="in its tail"):
        endless.load_state_dict(state, on_change=accepted)
