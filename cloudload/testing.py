"""Check the two laws of a loader, in cloudload's tests and in yours.

    check_resume    a new loader, restored after any batch, reads the same remaining rows
    check_worlds    a run that changes its world size reads the same rows as a run on one rank

Both take a function that creates the loader of one rank. They run all ranks as threads of this
process, in lockstep, and do the work of workers inline. The threads exchange messages in memory.

    def make_loader(**kwargs):
        return CloudLoader("/data/corpus", tokenizer="gpt2", seq_len=128, num_lanes=12, **kwargs)

    check_resume(make_loader, global_batch=12, num_batches=5)
    check_worlds(make_loader, [Leg(ranks=1), Leg(ranks=4, workers=3), Leg(ranks=2, batch_size=5)])
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from cloudload.config import DeliveryConfig
from cloudload.errors import RanksDisagreeError
from cloudload.loading import (
    Batch,
    CloudLoader,
    Environment,
    Exchange,
    use_environment,
)
from cloudload.order import World
from cloudload.run import State
from cloudload.segments import IGNORED_LABEL
from cloudload.system import Ints


class MakeLoader(Protocol):
    """Creates the loader of one rank. It must pass the keyword arguments to `CloudLoader`.

    For a leg with a `global_batch`, it also gets `global_batch_size` and `micro_batch_size`, and
    `batch_size` is None.
    """

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
    """A part of a run during which the world does not change."""

    ranks: int = 1
    workers: int = 0
    """Workers per rank."""
    batch_size: int = 1
    """Rows per rank and batch."""
    batches: int | None = 3
    """Number of global batches; None for all batches until the data ends."""
    ranks_per_node: int | None = None
    """Number of ranks per node. By default, all ranks are on one node."""
    exchange_every: int = 1
    """Number of batches between exchanges of cursors."""
    global_batch: int | None = None
    """Rows per global batch, instead of `batch_size`."""
    micro_batch: int | None = None
    """Maximum number of rows per micro-batch, with a `global_batch`."""

    @property
    def steps(self) -> dict[str, Any]:
        """The loader's options for the rows of a step."""
        if self.global_batch is None:
            return {"batch_size": self.batch_size}
        sizes = {"global_batch_size": self.global_batch, "micro_batch_size": self.micro_batch}
        return {"batch_size": None, **sizes}


@dataclass(frozen=True)
class Row:
    """A row as a rank received it. Rows are equal if their IDs, labels and spans are equal."""

    input_ids: tuple[int, ...]
    labels: tuple[int, ...]
    spans: tuple[tuple[int, ...], ...]
    """(stream, epoch, sample, start, stop) of each span."""

    @property
    def is_padding(self) -> bool:
        """Whether all labels are masked, as in a row of padding."""
        return all(label == IGNORED_LABEL for label in self.labels)


def run_leg(
    make_loader: MakeLoader, leg: Leg, state: State | None = None
) -> tuple[list[Row], list[State]]:
    """Run one leg from `state`, or from the start.

    Returns the rows of its global batches in order, and the states before the first batch and after
    each batch. Raises `AssertionError` if the ranks' states differ, if the ranks end on different
    steps, or if a row is missing or repeated. Also raises the errors of the loaders.
    """
    with _Ranks(make_loader, leg) as ranks:
        if state is not None:
            for loader in ranks.loaders:
                loader.load_state_dict(state)
        ranks.start()
        return _run_ranks(ranks, leg)


def _run_ranks(ranks: _Ranks, leg: Leg) -> tuple[list[Row], list[State]]:
    rows: list[Row] = []
    states = [_common_state(ranks.loaders)]
    while leg.batches is None or len(states) <= leg.batches:
        batches = ranks.next_step()
        if not batches:
            break
        rows += _rows_in_order(batches)
        states.append(_common_state(ranks.loaders))
    return rows, states


def _run_members(make_loader: MakeLoader, legs: Sequence[Leg]) -> list[Row]:
    """Run legs in sequence, with `set_world` in between, and return their rows."""
    with _Ranks(make_loader, legs[0]) as ranks:
        ranks.start()
        rows, _ = _run_ranks(ranks, legs[0])
        for leg in legs[1:]:
            ranks.change(make_loader, leg)
            rows += _run_ranks(ranks, leg)[0]
        return rows


def run_legs(make_loader: MakeLoader, legs: Iterable[Leg], state: State | None = None) -> list[Row]:
    """Run legs one after the other, each with new loaders, and return their rows.

    The first leg starts from `state`, or from the start of the run. Every later leg starts from the
    previous leg's final state. Raises the errors of `run_leg`.
    """
    rows: list[Row] = []
    for leg in legs:
        more, states = run_leg(make_loader, leg, state)
        rows += more
        state = states[-1]
    return rows


def check_resume(make_loader: MakeLoader, *, global_batch: int, num_batches: int) -> None:
    """Check the first law on one rank: a resume after any batch reads the same remaining rows.

    Saves the state before the first batch, and after each of `num_batches` batches of
    `global_batch` rows. Restores each state in a new loader. Raises an `AssertionError` that names
    the first row that differs, and the errors of `run_leg`.
    """
    whole, states = run_leg(make_loader, Leg(batch_size=global_batch, batches=num_batches))
    for taken, state in enumerate(states):
        rest, _ = run_leg(
            make_loader, Leg(batch_size=global_batch, batches=len(states) - 1 - taken), state
        )
        assert_same_rows(rest, whole[taken * global_batch :], f"restored after batch {taken}")


def check_worlds(
    make_loader: MakeLoader, legs: Sequence[Leg], *, restarts: bool = True
) -> list[Row]:
    """Check the second law: the legs read the same rows as one run on one rank.

    With `restarts=False`, the ranks change their world with `set_world`. If the next leg has fewer
    ranks, the first ranks leave. If it has more, new ranks join from the state, and only these use
    its `workers` and `exchange_every`. All legs must then have the same `global_batch` and
    `micro_batch`. Ignores padding rows at the end. Returns the rows. Raises an `AssertionError`
    that names the first row that differs, and the errors of `run_leg`.
    """
    rows = run_legs(make_loader, legs) if restarts else _run_members(make_loader, legs)
    is_to_end = legs[-1].batches is None
    whole = Leg(batch_size=max(1, len(rows)), batches=None if is_to_end else 1)
    # drop the padding rows at the end, because their number depends on the global batch size
    expected = _trimmed(run_legs(make_loader, [whole]))
    assert_same_rows(_trimmed(rows), expected, f"{legs}{' to the end' * is_to_end}")
    return rows


def assert_same_rows(found: Sequence[Row], expected: Sequence[Row], what: str) -> None:
    """Raise `AssertionError` unless two sequences of rows are equal.

    The message begins with `what`, and names the first row that differs.
    """
    for row, (one, other) in enumerate(zip(found, expected, strict=False)):
        assert one == other, f"{what}: row {row} is {one}, expected {other}"
    assert len(found) == len(expected), f"{what}: found {len(found)} rows, expected {len(expected)}"


def real_tokens(rows: Iterable[Row]) -> list[int]:
    """Concatenate the tokens of rows, without masked tokens such as padding."""
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


class _Ranks:
    """The loaders of all ranks of a leg, iterated in threads, in lockstep."""

    def __init__(self, make_loader: MakeLoader, leg: Leg) -> None:
        self._hub = Hub(leg.ranks)
        self._environments = [_open_environment(leg, rank, self._hub) for rank in range(leg.ranks)]
        self.loaders = [_make_rank(make_loader, leg, each) for each in self._environments]
        self._iterators: list[Iterator[Batch]] = []
        self._threads = ThreadPoolExecutor(leg.ranks, "cloudload-rank")

    def __enter__(self) -> _Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        for loader in self.loaders:
            loader.close()

    def start(self) -> None:
        """On every rank, start a pass that ignores `stop_every`."""
        self._iterators = [loader.take(sys.maxsize) for loader in self.loaders]

    def change(self, make_loader: MakeLoader, leg: Leg) -> None:
        """Change to the world of the next leg. The last ranks stay, and new ones follow them."""
        state, rows = _common_state(self.loaders), self.loaders[0].rows
        for loader in self.loaders[: -leg.ranks]:
            loader.close()
        del self.loaders[: -leg.ranks], self._environments[: -leg.ranks]
        del self._iterators[: -leg.ranks]
        self._threads.shutdown()
        self._threads = ThreadPoolExecutor(leg.ranks, "cloudload-rank")
        self._hub = Hub(leg.ranks)
        for rank in range(leg.ranks):
            environment = _open_environment(leg, rank, self._hub)
            if rank < len(self.loaders):
                self._environments[rank].move(environment)
                batch_size = leg.steps["batch_size"]
                self.loaders[rank].set_world(rank, leg.ranks, rows=rows, batch_size=batch_size)
            else:
                self._environments.append(environment)
                self.loaders.append(_make_rank(make_loader, leg, environment))
                self.loaders[rank].load_state_dict(state)
                self._iterators.append(self.loaders[rank].take(sys.maxsize))

    def next_step(self) -> list[Batch]:
        """Return the batches of the next step of every rank, or an empty list at the end."""
        count = self.loaders[0].micro_batches
        return [batch for _ in range(count) for batch in self.next_batches()]

    def next_batches(self) -> list[Batch]:
        """Return the next batch of every rank, or an empty list at the end.

        Raises the error of a rank that failed, and `AssertionError` if only some ranks end.
        """
        futures = [self._threads.submit(self._next, rank) for rank in range(len(self.loaders))]
        errors = [error for future in futures if (error := future.exception())]
        if errors:
            raise next((each for each in errors if not isinstance(each, StoppedError)), errors[0])
        batches = [batch for future in futures if (batch := future.result()) is not None]
        ended = len(futures) - len(batches)
        assert ended in (0, len(futures)), (
            f"{ended} of {len(futures)} ranks reached the end before the other ranks"
        )
        return batches

    def _next(self, rank: int) -> Batch | None:
        batch = None
        try:
            batch = next(self._iterators[rank], None)
            return batch
        finally:
            if batch is None:
                self._hub.stop(rank)


def _open_environment(leg: Leg, rank: int, hub: Hub) -> ThreadEnvironment:
    return ThreadEnvironment(World(rank, leg.ranks, leg.ranks_per_node or leg.ranks), hub)


def _make_rank(make_loader: MakeLoader, leg: Leg, environment: ThreadEnvironment) -> CloudLoader:
    with use_environment(environment):
        return make_loader(
            dp_rank=environment.world.rank,
            dp_world_size=leg.ranks,
            num_workers=leg.workers,
            exchange_every=leg.exchange_every,
            **leg.steps,
        )


def _rows_in_order(batches: list[Batch]) -> list[Row]:
    rows: dict[int, Row] = {}
    for batch in batches:
        spans: list[list[tuple[int, ...]]] = [[] for _ in batch["input_ids"]]
        for index, *span in batch.spans.tolist():
            spans[index].append(tuple(span))
        columns = (batch.rows, batch["input_ids"], batch["labels"])
        for row, ids, labels, own in zip(*(c.tolist() for c in columns), spans, strict=True):
            if row < 0:
                assert not own, "a filler row has documents"
                continue
            assert row not in rows, f"row {row} was received twice"
            rows[row] = Row(tuple(ids), tuple(labels), tuple(own))
    assert sorted(rows) == list(range(min(rows), max(rows) + 1)), (
        f"some rows are missing, because only rows {sorted(rows)} were received"
    )
    return [rows[row] for row in sorted(rows)]


def _common_state(loaders: list[CloudLoader]) -> State:
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states), "the ranks have different states"
    restored: State = json.loads(json.dumps(states[0]))
    return restored


class StoppedError(RanksDisagreeError):
    """A rank waits for a message from a rank that has stopped."""


class Hub:
    """Passes messages between ranks. Each rank posts one message per turn.

    rank 0 ─► post ─┐
    rank 1 ─► post ─┴─► messages by turn ─► wait: the messages of all ranks, or StoppedError
    """

    def __init__(self, num_ranks: int) -> None:
        self._messages: list[list[Ints]] = [[] for _ in range(num_ranks)]
        self._stopped: set[int] = set()
        self._changed = threading.Condition()

    def post(self, rank: int, message: Ints) -> int:
        """Add a rank's next message, and return the index of its turn."""
        with self._changed:
            self._messages[rank].append(message.copy())
            self._changed.notify_all()
            return len(self._messages[rank]) - 1

    def stop(self, rank: int) -> None:
        """Record that a rank will post no more messages, so that ranks do not wait for it."""
        with self._changed:
            self._stopped.add(rank)
            self._changed.notify_all()

    def wait(self, turn: int) -> list[Ints]:
        """Wait for all ranks' messages of a turn, and return them by rank.

        Raises `StoppedError` if a rank stopped before it posted its message.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._late(turn) <= self._stopped)
            if late := self._late(turn):
                raise StoppedError(f"ranks {sorted(late)} stopped before the others")
            return [messages[turn] for messages in self._messages]

    def _late(self, turn: int) -> set[int]:
        return {rank for rank, messages in enumerate(self._messages) if len(messages) <= turn}


class HubExchange(Exchange):
    """One rank's exchange with the other ranks of its hub."""

    is_alone = False

    def __init__(self, hub: Hub, rank: int) -> None:
        self._hub, self._rank = hub, rank

    def start(self, message: Ints) -> Callable[[], list[Ints]]:
        turn = self._hub.post(self._rank, message)
        return lambda: self._hub.wait(turn)


class ThreadEnvironment(Environment):
    """The environment of a rank that runs in a thread. Its workers run in the same thread."""

    def __init__(self, world: World, hub: Hub) -> None:
        self.world, self._hub = world, hub

    def move(self, other: ThreadEnvironment) -> None:
        """Take the rank, the world and the hub of another environment."""
        self.world, self._hub = other.world, other._hub

    def find_world(self, delivery: DeliveryConfig) -> World:
        return self.world

    def is_first_process(self, delivery: DeliveryConfig) -> bool:
        return self.world.rank == 0

    def open_exchange(self, delivery: DeliveryConfig) -> Exchange:
        return HubExchange(self._hub, self.world.rank)

    def has_worker_processes(self, delivery: DeliveryConfig) -> bool:
        return False
