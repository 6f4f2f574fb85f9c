"""The two laws of a loader, for cloudload's tests and for yours.

    saved after every batch and restored afresh, the remainder is the same            check_resume
    every world size, and every change between them, reads the same ordered stream    check_worlds

Both take a function that makes the loader of one rank, and run it in this process: ranks in
lockstep, workers inline.

    def make_loader(**kwargs):
        return CloudLoader("/data/corpus", tokenizer="gpt2", seq_len=128, num_lanes=12, **kwargs)

    check_resume(make_loader, global_batch=12, num_batches=5)
    check_worlds(make_loader, [Leg(ranks=1), Leg(ranks=4, workers=3), Leg(ranks=2, batch_size=5)])
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cloudload.arrays import Ints
from cloudload.batch import Batch
from cloudload.delivery.world import World
from cloudload.loader import CloudLoader
from cloudload.run.state import State
from cloudload.segments import IGNORED_LABEL
from cloudload.workers.processes import inline_blocks


class MakeLoader(Protocol):
    """Makes the loader of one rank; passes the keyword arguments on to `CloudLoader`."""

    def __call__(
        self,
        *,
        dp_rank: int,
        dp_world_size: int,
        batch_size: int,
        num_workers: int,
        exchange_every: int,
    ) -> CloudLoader: ...


@dataclass(frozen=True)
class Leg:
    """One stretch of a run: a world, and how many global batches it takes (None: to the end)."""

    ranks: int = 1
    workers: int = 0
    batch_size: int = 1
    batches: int | None = 3
    ranks_per_node: int | None = None
    exchange_every: int = 1


@dataclass(frozen=True)
class Row:
    """A row as a rank received it. Rows are equal where ids, labels and spans are."""

    input_ids: tuple[int, ...]
    labels: tuple[int, ...]
    spans: tuple[tuple[int, ...], ...]

    @property
    def is_padding(self) -> bool:
        """Whether no token of the row is real."""
        return all(label == IGNORED_LABEL for label in self.labels)


def run_leg(
    make_loader: MakeLoader, leg: Leg, state: State | None = None
) -> tuple[list[Row], list[State]]:
    """Run one leg from `state`; the rows of its global batches in order, and the state before and
    after each batch.

    Asserts that all ranks hold the same state at every step and end on the same step.
    """
    hub = _Hub(leg.ranks)
    loaders = [_make_rank(make_loader, leg, rank, hub) for rank in range(leg.ranks)]
    try:
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        iterators: list[Any] = [loader._begin_pass() for loader in loaders]
        rows: list[Row] = []
        states = [_common_state(loaders)]
        while leg.batches is None or len(states) <= leg.batches:
            batches = _next_batches(iterators)
            if batches is None:
                break
            rows += _rows_in_order(batches)
            states.append(_common_state(loaders))
        return rows, states
    finally:
        for loader in loaders:
            loader.close()


def run_legs(make_loader: MakeLoader, legs: Iterable[Leg], state: State | None = None) -> list[Row]:
    """Run legs one after the other, each in new loaders from the state of the one before."""
    rows: list[Row] = []
    for leg in legs:
        more, states = run_leg(make_loader, leg, state)
        rows += more
        state = states[-1]
    return rows


def check_resume(make_loader: MakeLoader, *, global_batch: int, num_batches: int) -> None:
    """Assert the first law on one rank: after every batch, what a restored loader reads is what
    this one went on to read."""
    whole, states = run_leg(make_loader, Leg(batch_size=global_batch, batches=num_batches))
    for taken, state in enumerate(states):
        rest, _ = run_leg(
            make_loader, Leg(batch_size=global_batch, batches=len(states) - 1 - taken), state
        )
        assert_same_rows(rest, whole[taken * global_batch :], f"restored after batch {taken}")


def check_worlds(make_loader: MakeLoader, legs: Sequence[Leg]) -> list[Row]:
    """Assert the second law: the legs, one after the other, read what one rank reads without
    stopping. Returns the rows."""
    rows = run_legs(make_loader, legs)
    expected: list[Row] = []
    if legs[-1].batches is None:
        expected = run_legs(make_loader, [Leg(batches=None)])
        assert_same_rows(_trimmed(rows), _trimmed(expected), f"{legs} to the end")
    else:
        expected = run_legs(make_loader, [Leg(batches=len(rows))])
        # in a finite run the legs may pad their last batch past the end of one rank's rows
        assert_same_rows(rows[: len(expected)], expected[: len(rows)], f"{legs}")
        assert all(row.is_padding for row in rows[len(expected) :]), f"{legs}: tokens after the end"
    return rows


def assert_same_rows(found: Sequence[Row], expected: Sequence[Row], what: str) -> None:
    """Assert equality, naming the first row that differs."""
    for number, (one, other) in enumerate(zip(found, expected, strict=False)):
        assert one == other, f"{what}: row {number} is {one}, expected {other}"
    assert len(found) == len(expected), f"{what}: {len(found)} rows, expected {len(expected)}"


def real_tokens(rows: Iterable[Row]) -> list[int]:
    """The tokens of rows without padding, joined."""
    return [
        token
        for row in rows
        for token, label in zip(row.input_ids, row.labels, strict=True)
        if label != IGNORED_LABEL
    ]


def _trimmed(rows: list[Row]) -> list[Row]:
    end = len(rows)
    while end and rows[end - 1].is_padding:
        end -= 1
    return rows[:end]


# ---------------------------------------------------------------- ranks in one process


def _make_rank(make_loader: MakeLoader, leg: Leg, rank: int, hub: _Hub) -> CloudLoader:
    loader = make_loader(
        dp_rank=rank,
        dp_world_size=leg.ranks,
        batch_size=leg.batch_size,
        num_workers=leg.workers,
        exchange_every=leg.exchange_every,
    )
    world = World(rank, leg.ranks, leg.ranks_per_node or leg.ranks)
    # the seams of the loader that keep processes and networks out of its arithmetic
    vars(loader).update(
        _exchange=_HubExchange(hub, rank), _open_blocks=inline_blocks, _find_world=lambda: world
    )
    return loader


def _next_batches(iterators: list[Any]) -> list[Batch] | None:
    """The next batch of every rank, or None at the end."""
    while True:
        for iterator in iterators:
            iterator.arrive()
        batches: list[Batch | None] = []
        ended = 0
        for iterator in iterators:
            try:
                batches.append(iterator.hand_out())
            except StopIteration:
                ended += 1
        assert ended in (0, len(iterators)), (
            f"{ended} of {len(iterators)} ranks ended before the others"
        )
        if ended:
            return None
        # a rank hands out nothing where the lanes have ended and their sizes are yet to be
        # exchanged
        if any(batch is None for batch in batches):
            assert not any(batches), "some ranks are in the tail before the others"
            continue
        return [batch for batch in batches if batch is not None]


def _rows_in_order(batches: list[Batch]) -> list[Row]:
    rows: dict[int, Row] = {}
    for batch in batches:
        spans: list[list[tuple[int, ...]]] = [[] for _ in batch["input_ids"]]
        for place, *span in batch.spans.tolist():
            spans[place].append(tuple(span))
        for place, (ids, labels) in enumerate(
            zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True)
        ):
            number = batch.first_row + place * batch.row_step
            assert number not in rows, f"row {number} came twice"
            rows[number] = Row(tuple(ids), tuple(labels), tuple(spans[place]))
    assert sorted(rows) == list(range(min(rows), max(rows) + 1)), (
        f"rows are missing: {sorted(rows)}"
    )
    return [rows[number] for number in sorted(rows)]


def _common_state(loaders: list[CloudLoader]) -> State:
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states), "the ranks hold different states"
    restored: State = json.loads(json.dumps(states[0]))
    return restored


class _Hub:
    def __init__(self, num_ranks: int) -> None:
        self.messages: list[list[Ints]] = [[] for _ in range(num_ranks)]


class _HubExchange:
    def __init__(self, hub: _Hub, rank: int) -> None:
        self._hub, self._rank = hub, rank

    def start(self, message: Ints) -> Callable[[], list[Ints]]:
        own = self._hub.messages[self._rank]
        turn = len(own)
        own.append(message.copy())
        return lambda: [messages[turn] for messages in self._hub.messages]

    def compare(self, facts: dict[str, Any], world: World) -> None:
        pass

    def close(self) -> None:
        pass
