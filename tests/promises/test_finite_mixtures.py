"""Mixtures whose streams end match an oracle that assigns rows one by one from token counts."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudload import Batch, CloudLoader, Rows, Stream
from cloudload.errors import DatasetError, StreamChangedError
from cloudload.loading.workers.trace import TracedSpan
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
from cloudload.stats import COUNTS
from cloudload.testing import Leg, Row, assert_same_rows, check_worlds, run_leg
from testkit.awkward import MANY_RANKS, legs
from testkit.best_fit_oracle import BestFitOracle
from testkit.corpora import EOS, byte_tokenizer, random_documents, write_mds
from testkit.counted import count, write_counted
from testkit.examples import EXAMPLES
from testkit.loaders import SEQ_LEN, make_loader, rows_of
from testkit.mixtures import Mixtures, Oracle, Weights, units
from testkit.quick_laws import quick_laws  # noqa: F401
from testkit.state_fields import without

MIN_TOKENS = 25


@pytest.fixture(scope="module")
def data(module_folder: Path) -> Mixtures:
    documents = [
        random_documents(seed, size, max_words=10) for seed, size in enumerate((7, 40, 70))
    ]
    for of_stream in documents:
        of_stream[len(of_stream) // 2] = ""
    return Mixtures.write(module_folder, documents)


def packed(packing: str) -> dict[str, Any]:
    """Return a packing's options. A name such as "best_fit 3" ends with the number of open rows."""
    if packing.startswith("best_fit"):
        return {"packing": "best_fit", "open_rows": int(packing.rsplit(maxsplit=1)[-1])}
    return {} if packing == "concat" else {"packing": "one_per_row", "overflow": packing}


# ---------------------------------------------------------------- any chain of legs

BEST_FITS = ["best_fit 1", "best_fit 3", "best_fit 16"]
Ends = tuple[int | None, tuple[int | None, ...]]
"""The `epochs` of the run, and the `max_epochs` of each stream."""
ENDS: list[Ends] = [(1, (None,) * 3), (2, (3, None, 1)), (None, (2, 1, None))]


@dataclass(frozen=True)
class Part:
    """A part of a run, with the options that the next part may change."""

    leg: Leg
    seq_len: int
    weights: Weights
    first: bool


@dataclass(frozen=True)
class Chain:
    """Parts of a run. If the run is finite, the last part reaches its end."""

    packing: str
    num_lanes: int
    ends: Ends
    min_tokens: int
    parts: list[Part]

    @property
    def repeats(self) -> list[int | None]:
        """How often the run repeats each stream."""
        epochs, caps = self.ends
        return [epochs if cap is None else cap for cap in caps]

    def maker(self, data: Mixtures, part: Part) -> Any:
        """A function that makes the loaders of a part."""
        return partial(
            make_loader,
            data.streams(part.weights, self.ends[1]),
            local=data.cache,
            epochs=self.ends[0],
            stopping="first" if part.first else "all",
            num_lanes=self.num_lanes,
            min_tokens=self.min_tokens,
            seq_len=part.seq_len,
            **packed(self.packing),
        )

    def oracle(self, data: Mixtures) -> Oracle | BestFitOracle:
        sizes = data.sizes(self.min_tokens)
        if self.packing in BEST_FITS:
            with self.maker(data, self.parts[0])() as loader:
                components = loader.recipe.components
            open_rows = packed(self.packing)["open_rows"]
            return BestFitOracle(components, self.repeats, sizes, open_rows)
        left = [
            None if times is None else times * units(self.packing, each, SEQ_LEN)
            for times, each in zip(self.repeats, sizes, strict=True)
        ]
        return Oracle(left, self.num_lanes)


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    packing = draw(st.sampled_from(["concat", "concat", "cut", "rows", *BEST_FITS]))
    part_legs = legs(MANY_RANKS, batches=st.sampled_from([1, 2, 9]))
    seq_lens = [SEQ_LEN] if packing == "rows" else [SEQ_LEN, SEQ_LEN, 50]
    weights = [(1.0, 3.0, 1.0), (0.2, 1.0, 0.5), (1.0, 0.0, 3.0), (0.0, 1.0, 0.01)]
    part = st.builds(
        Part, part_legs, st.sampled_from(seq_lens), st.sampled_from(weights), st.booleans()
    )
    parts = draw(st.lists(part, min_size=1, max_size=4))
    last = parts[-1].leg
    parts[-1] = replace(parts[-1], leg=replace(last, batches=300 // last.ranks))
    return Chain(
        packing,
        draw(st.sampled_from([12, 30, 60])),
        draw(st.sampled_from([*ENDS, (3, (1,) * 3)])),
        draw(st.sampled_from([0, MIN_TOKENS])),
        parts,
    )


def alone(leg: Leg) -> Leg:
    """The leg with the same batches on one rank."""
    return Leg(1, 0, leg.ranks * leg.batch_size, leg.batches)


@given(chain=chains())
@settings(max_examples=EXAMPLES)
def test_any_chain_of_worlds_reads_the_rows_of_one_rank(data: Mixtures, chain: Chain) -> None:
    state = None
    for part in chain.parts:
        make = chain.maker(data, part)
        found, states = run_leg(make, part.leg, state)
        expected, expected_states = run_leg(make, alone(part.leg), state)
        assert_same_rows(found, expected, f"{part.leg}")
        assert states == expected_states
        state = states[-1]


@given(chain=chains())
@settings(max_examples=EXAMPLES)
def test_streams_end_where_the_oracle_ends_them(data: Mixtures, chain: Chain) -> None:
    oracle, rows, state = chain.oracle(data), list[Row](), None
    for part in chain.parts:
        make, batch = chain.maker(data, part), part.leg.ranks * part.leg.batch_size
        found, states = run_leg(make, alone(part.leg), state)
        rows, state = rows + found, states[-1]
        per_row = 1 if chain.packing in ("cut", "rows") else part.seq_len
        is_over = oracle.take(0, part.weights, part.first, per_row)
        for _ in range(part.leg.batches or 0):
            is_over = is_over or oracle.take(batch, part.weights, part.first, per_row)
        assert [stream_of(row) for row in rows] == oracle.streams, "other streams fill the rows"
        if isinstance(oracle, BestFitOracle):
            assert [list(row.spans) for row in rows] == oracle.rows, "the rows have other spans"
        elif chain.packing == "concat":
            assert [tokens_of(row) for row in rows] == oracle.fills, "the rows have other sizes"
        check_len(make, part.leg, state, is_over)
        assert len(rows) == state["rows"]
    check_documents(rows, data.sizes(chain.min_tokens), chain, oracle)
    check_counts(rows, state or {}, data.sizes(chain.min_tokens), chain, oracle)


def stream_of(row: Row) -> int:
    """The stream that fills a row; -1 for a row of padding."""
    [stream] = {span[0] for span in row.spans} or {-1}
    return stream


def tokens_of(row: Row) -> int:
    return sum(stop - start for *_, start, stop in row.spans)


def check_len(make: Any, leg: Leg, state: State, is_over: bool) -> None:
    """Check that a loader yields nothing after the end, and that its length is then the number of
    batches delivered."""
    loader = make(dp_rank=0, dp_world_size=leg.ranks, batch_size=leg.batch_size)
    loader.load_state_dict(state)
    assert (list(loader.take(1)) == []) == is_over
    if is_over:
        assert len(loader) == -(-state["rows"] // leg.ranks // leg.batch_size)
    loader.close()


def check_documents(
    rows: list[Row], sizes: Any, chain: Chain, oracle: Oracle | BestFitOracle
) -> None:
    """Check that no token is in two rows, and that all tokens of ended streams are in the rows."""
    spans = defaultdict(list)
    for row in rows:
        for stream, epoch, sample, start, stop in row.spans:
            spans[stream, epoch, sample].append((start, stop))
    for (stream, epoch, _), found in spans.items():
        found.sort()
        assert all(one[1] <= other[0] for one, other in pairwise(found))
        assert epoch < (chain.repeats[stream] or epoch + 1)
    for stream, left in enumerate(oracle.left):
        for epoch in range(chain.repeats[stream] or 0) if left == 0 else ():
            for sample, size in enumerate(sizes[stream]):
                found = spans[stream, epoch, sample]
                assert len(found) == (size > 0) or chain.packing != "cut"
                assert sum(stop - start for start, stop in found) == size or chain.packing == "cut"


def check_counts(
    rows: list[Row], state: State, sizes: Any, chain: Chain, oracle: Oracle | BestFitOracle
) -> None:
    """Check each stream's statistics against the rows and, if it ended, all its documents."""
    tokens: Counter[int] = Counter()
    for row in rows:
        for stream, _, _, start, stop in row.spans:
            tokens[stream] += stop - start
    for stream, counts in enumerate(json.loads(state["counts"])):
        assert counts[0] == tokens[stream]
        if oracle.left[stream] == 0 and stream in oracle.streams:
            full, times = sum(size > 0 for size in sizes[stream]), chain.repeats[stream] or 0
            assert counts[1] == times * full
            assert counts[2] == times * (len(sizes[stream]) - full)


MEMBERS = legs(batches=st.sampled_from([0, 1, 3, 9]), most_workers=1)


@given(
    packing=st.sampled_from(["concat", "cut", *BEST_FITS]),
    num_lanes=st.sampled_from([12, 30]),
    ends=st.sampled_from(ENDS),
    first=st.booleans(),
    members=st.lists(MEMBERS, min_size=2, max_size=5),
)
@settings(max_examples=EXAMPLES)
def test_ranks_that_leave_and_join_end_on_one_step(
    data: Mixtures, *, packing: str, num_lanes: int, ends: Ends, first: bool, members: list[Leg]
) -> None:
    """Call `set_world` before, during, and after streams' tails. The rows must not change."""
    members[-1] = replace(members[-1], batches=None if ends[0] or first else 9)
    part = Part(members[0], SEQ_LEN, (1.0, 3.0, 0.5), first)
    make = Chain(packing, num_lanes, ends, 0, [part]).maker(data, part)
    assert check_worlds(make, members, restarts=False)


# ---------------------------------------------------------------- the ways to a row agree


@dataclass
class Played:
    """A run of at most 120 batches, perhaps from a state that another `seq_len` saved."""

    streams: list[Stream]
    options: dict[str, Any]
    start: State | None
    batches: list[Batch]
    states: list[State]
    """The states before the first batch and after each batch."""
    traced: list[list[TracedSpan]]
    length: int | None
    """The number of batches of the whole run if it ended."""

    @property
    def first(self) -> tuple[int, int]:
        """The row and the step at which the run starts."""
        return (self.start["rows"], self.start["batches"]) if self.start else (0, 0)

    def open(self, state: State | None) -> CloudLoader:
        loader = make_loader(self.streams, **self.options)
        if state:
            loader.load_state_dict(state)
        return loader


SCHEDULES = [
    None,
    [(0, {"s0": 1.0}), (200, {"s1": 1.0}), (210, {"s2": 2.0, "s1": 1.0})],
    [(0, {"s1": 3.0, "s0": 1.0}), (60, {"s0": 1.0, "s2": 1.0})],
]
RUNS = st.fixed_dictionaries(
    {
        "packing": st.sampled_from(["concat", "cut", "rows", *BEST_FITS]),
        "ends": st.sampled_from(ENDS),
        "stopping": st.sampled_from(["first", "all"]),
        "schedule": st.sampled_from(SCHEDULES),
        "before": st.sampled_from([None, None, (SEQ_LEN, 9), (50, 12), (50, 30), (7, 60)]),
    }
)
CHOSEN = st.integers(0, 1_000)
_played: dict[str, Played] = {}


def play(
    data: Mixtures, packing: str, ends: Ends, *, stopping: str, schedule: Any, before: Any
) -> Played:
    """Play a run, once for all properties."""
    key = repr((packing, ends, stopping, schedule, before))
    if key in _played:
        return _played[key]
    options = {"local": data.cache, "epochs": ends[0], "stopping": stopping, **packed(packing)}
    options |= {"tokenizer": byte_tokenizer(), "eos": EOS, "seq_len": SEQ_LEN, "num_lanes": 12}
    options["schedule"] = schedule
    run = Played(data.streams((1.0, 2.0, 0.5), ends[1]), options, None, [], [], [], None)
    if before is not None:
        with make_loader(run.streams, **{**options, "seq_len": before[0]}) as loader:
            list(loader.take(before[1]))
            run.start = loader.state_dict()
    with run.open(run.start) as loader:
        run.states.append(loader.state_dict())
        for batch in loader.take(120):
            run.batches.append(batch)
            run.states.append(loader.state_dict())
        run.traced = [loader.trace(batch) for batch in run.batches]
        run.length = len(loader) if len(run.batches) < 120 else None
    return _played.setdefault(key, run)


@given(run=RUNS, chosen=CHOSEN)
@settings(max_examples=EXAMPLES)
def test_rows_by_number_agree_with_the_loader(
    data: Mixtures, run: dict[str, Any], chosen: int
) -> None:
    played = play(data, **run)
    (first, first_step), batches = played.first, played.batches
    ids = rows_of(batches)
    rows = Rows(played.streams, **{**played.options, "num_rows": None}, state=played.start)
    if played.length is not None:
        assert played.length == first_step + len(batches)
        assert -(-max(0, len(rows) - first) // 4) == len(batches)
        ids = ids[: len(rows) - first]
    for row in {0, chosen % len(ids), len(ids) - 1} if ids else ():
        assert rows[first + row]["input_ids"].tolist() == ids[row]
    saved = chosen % len(batches) if batches else 0
    found, expected = rows.state_dict(first + 4 * saved), played.states[saved]
    if batches:
        assert without_batches(found) == without_batches(expected)


def without_batches(state: State) -> State:
    """Remove the fields about batches, because a state of `Rows` has none."""
    return without(state, "batches", "global_batch")


@given(run=RUNS, saved=st.integers(0, 12), distance=st.integers(0, 90))
@settings(max_examples=EXAMPLES)
def test_a_seek_agrees_with_the_loader(
    data: Mixtures, run: dict[str, Any], saved: int, distance: int
) -> None:
    played = play(data, **run)
    first, batches = played.first[0], played.batches
    if not batches:
        return
    saved %= len(batches)
    with played.open(played.states[saved]) as loader:
        loader.seek(first + min(len(batches) - 1, saved + distance) * 4)
        found = next(iter(loader))
        place = (found.first_row - first) // 4
        assert found["input_ids"].tolist() == batches[place]["input_ids"].tolist()
        assert without_batches(loader.state_dict()) == without_batches(played.states[place + 1])


@given(run=RUNS, saved=st.integers(0, 12), chosen=CHOSEN)
@settings(max_examples=EXAMPLES)
def test_where_and_trace_agree_with_the_loader(
    data: Mixtures, run: dict[str, Any], saved: int, chosen: int
) -> None:
    played = play(data, **run)
    (first, first_step), traced = played.first, played.traced
    if not traced:
        return
    saved %= len(traced)
    opened = open_run(played.states[saved], tokenizer=byte_tokenizer(), global_batch=4)
    delivery: Any = {"num_workers": 0, "local": data.cache}
    span = traced[chosen % len(traced)][0]
    found = find_document(
        opened, int(span.stream[1]), span.sample, first_step + len(traced), **delivery
    )
    assert [(each.step, lengths_location(each)) for each in found] == [
        (step, lengths_location(each))
        for step, spans in enumerate(traced[saved:], first_step + saved + 1)
        for each in spans
        if (each.stream, each.sample) == (span.stream, span.sample)
    ], "`find_document` finds other places"
    step = first_step + saved + 1
    [(_, spans)] = trace_steps(opened, range(step, step + 1), 0, **delivery)
    assert [(each.stream, each.sample, each.start) for each in spans] == [
        (each.stream, each.sample, each.start)
        for each in traced[saved]
        if each.row == first + 4 * saved
    ], "`trace_steps` finds other spans"


def lengths_location(span: Any) -> tuple[Any, ...]:
    return span.stream, span.epoch, span.sample, span.start, span.stop


# ---------------------------------------------------------------- single promises


def make_mixture(data: Mixtures, weights: Weights = (1.0, 1.0), **options: Any) -> CloudLoader:
    streams = data.streams(weights, options.pop("caps", ()))
    return make_loader(streams, local=data.cache, **options)


def test_shares_are_exact_until_the_first_stream_ends(data: Mixtures) -> None:
    """Most rows of a small stream are in its tail, and the tail must keep the stream's share."""
    with make_mixture(data, (1.0, 4.0), num_lanes=30, epochs=3, stopping="first") as loader:
        rows = [int(row) for batch in loader for row in batch.spans[:, 1]]
        batches = len(loader)
    assert batches > 15
    with make_mixture(data, (1.0, 4.0), num_lanes=30) as endless:
        expected = [int(row) for batch in endless.take(batches) for row in batch.spans[:, 1]]
    assert [*dict.fromkeys(rows)] == [*dict.fromkeys(expected)]


def test_counts_of_batches_and_what_is_dropped(data: Mixtures) -> None:
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
    with make_mixture(data, caps=(3, None)) as capped:
        assert capped.is_endless
        assert capped.count_batches(1) == -(
            -(rows + -(-3 * tokens[0] // SEQ_LEN) - -(-tokens[0] // SEQ_LEN)) // 4
        )
        with pytest.raises(TypeError):
            len(capped)


def test_documents_after_the_last_row_of_a_stream_are_counted(tmp_path: Path) -> None:
    """Each lane fills one row and is left with a filtered document, so the tail has no row."""
    folder = write_counted(tmp_path / "mds", ["long enough"] * 12 + ["short"] * 12)
    options: dict[str, Any] = {"packing": "one_per_row", "min_tokens": 8, "shuffle": False}
    options |= {"epochs": 1, "local": tmp_path}
    streams = [Stream(folder, proportion=1.0, name="only")]
    for batch_size in (4, 7):
        with make_loader(streams, batch_size=batch_size, **options) as loader:
            next(iter(loader))
            state = loader.state_dict()
        with make_loader(streams, batch_size=batch_size, **options) as loader:
            loader.load_state_dict(state)
            list(loader)
            stats = loader.stats()
            assert (stats.documents, stats.filtered, stats.streams["only"].epoch) == (12, 12, 1)
            state = loader.state_dict()
            counts = json.loads(state["counts"])
            counts[0][COUNTS.index("filtered")] = 12
            # older states of a mixture of one stream count them already
            old = {**state, "stream_tails": "16:0", "counts": json.dumps(counts)}
            for each in (state, old | {"tail": "", "table_rows": state["rows"]}):
                loader.load_state_dict(each)
                assert (list(loader), loader.stats().filtered) == ([], 12)


@pytest.mark.parametrize("ranks", [1, 7])
def test_a_stream_that_best_fit_packs_without_a_tail_ends_with_its_last_row(
    tmp_path: Path, ranks: int
) -> None:
    """Each document of the first two streams fills a row, so nothing is left for their tails."""
    sizes = [[16] * 12, [16] * 31, [9, 7, 12, 4, 9] * 9]
    texts = [["x" * (size - 1) for size in of_stream] for of_stream in sizes]
    streams = Mixtures.write(tmp_path, texts).streams((1.0, 1.0, 1.0))
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


def test_a_stream_with_a_cap_ends_and_the_run_continues(data: Mixtures) -> None:
    with make_mixture(data, caps=(2, None)) as loader:
        streams = [set(batch.spans[:, 1].tolist()) for batch in loader.take(300)]
        assert loader.stats().streams["s0"].epoch == 2
        assert loader.stats().streams["s1"].epoch > 5
    assert {0, 1} in streams[:10]
    assert all(each == {1} for each in streams[100:])


def test_an_endless_mixture_resumes_as_a_finite_one_if_the_change_is_accepted(
    data: Mixtures,
) -> None:
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
    data: Mixtures,
) -> None:
    with make_mixture(data, epochs=1, stopping="first") as loader:
        first = len(list(loader))
        state = loader.state_dict()
    with make_mixture(data, epochs=1) as loader:
        loader.load_state_dict(state)
        assert first + len(list(loader)) >= len(loader) > first
    with make_mixture(data, caps=(1, 4)) as loader:
        accepted = {"epochs": "accept", "max_epochs": "accept"}
        with pytest.raises(StreamChangedError, match="once a stream of the mixture is in its tail"):
            loader.load_state_dict(state, on_change=accepted)


def test_checkpoints_in_the_tail_of_a_stream_are_told_from_other_runs(data: Mixtures) -> None:
    with make_mixture(data, epochs=1) as loader:
        states = [loader.state_dict(), *(loader.state_dict() for _ in loader)]
    first, last = describe_state(states[0]), describe_state(states[-1])
    assert (first.streams_in_tail, last.streams_in_tail) == ((), ("s0", "s1"))
    assert "  in their tails, or at their ends: s0, s1" in last.describe()
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
    data: Mixtures, tmp_path: Path, tokenizer_folder: Path, cli: Any
) -> None:
    folders, lengths, tokenizer = [], tmp_path / "lengths", str(tokenizer_folder)
    for number, documents in enumerate(data.documents[:2]):
        folders.append(write_mds(tmp_path / str(number), documents))
        count(folders[-1], tokenizer=tokenizer, out=lengths)
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
    common = [tmp_path / "state.json", "--global-batch", "4", "--local", tmp_path / "c"]
    common += ["--workers", "0", "--json", "--quiet"]
    trace, where = ["trace", *common, "--steps", "2"], ["where", *common, "--until", "2"]
    assert "needs token lengths" in cli(*trace, status=1).err
    shown = cli(*trace, "--lengths", lengths).out.splitlines()
    assert [json.loads(line)["text"] for line in shown] == [each.text for each in spans]
    sample = f"{run.labels.index(spans[0].stream)}:{spans[0].sample}"
    cli(*where, "--sample", sample, "--lengths", lengths)


def test_what_a_mixture_with_ends_cannot_have_is_refused(data: Mixtures, tmp_path: Path) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"lengths": "off"}, "lengths is 'off', but a mixture with epochs or max_epochs"),
        ({"stop_every": "epoch"}, "stop_every is 'epoch'"),
        ({"epochs": None, "stopping": "first"}, "stopping is 'first', but no stream ends"),
        ({"stopping": "any"}, "stopping is 'any'"),
        ({"caps": (0, None)}, "max_epochs of s0 is 0"),
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
    streams = [*data.streams((1.0,)), Stream(other, proportion=1.0)]
    with pytest.raises(DatasetError, match=r"1 of 2 streams .*Run: cloudload count .*/mds"):
        make_loader(streams, epochs=1)
    with pytest.raises(DatasetError, match="no document of s0, s1 has any tokens"):
        make_mixture(data, epochs=1, min_tokens=10_000).worker_plan()
