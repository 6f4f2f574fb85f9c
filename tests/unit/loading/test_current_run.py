"""A run's position moves as reading would move it, and a member leaves one world for another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloudload.config import DeliveryConfig
from cloudload.loading.current_run import CurrentRun, _Lengths
from cloudload.loading.delivery.exchange import Exchange
from cloudload.loading.delivery.run_log import KEPT_POSITIONS, RunLog
from cloudload.loading.delivery.world import Environment, Membership
from cloudload.order import World
from cloudload.run.position import Position
from testkit.tiny_runs import tiny_recipe

# ---------------------------------------------------------------- skipping


class Foreseen(CurrentRun):
    """A run whose positions up to row `end` are known, and that counts how often it is asked."""

    end, asked = 1 << 40, 0

    def advance(self, position: Position, row: int, *, pads: bool = False) -> Position | None:
        type(self).asked += 1
        return None if row > self.end else replace(position, rows=row, table_rows=row)


@pytest.fixture
def run() -> Foreseen:
    recipe: Any = tiny_recipe([9])
    Foreseen.asked = 0
    return Foreseen(recipe, recipe, RunLog(Position.start(recipe)), None)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 1_000_000])
def test_the_positions_of_the_last_batches_that_are_skipped_are_kept(
    run: Foreseen, count: int
) -> None:
    assert run.skip_batches(count, 4)
    found = [run.log.past(lag) for lag in range(min(count, KEPT_POSITIONS - 1) + 1)]
    assert [each.batches for each in found] == list(range(count, count - len(found), -1))
    assert all(each.rows == 4 * each.batches for each in found)
    assert all(each.skipped == ((0, each.rows),) for each in found if each.rows)
    assert run.asked <= KEPT_POSITIONS
    assert run.log.progress.has_jumped == (count > 0)
    assert run.position.global_batch == (4 if count else 0)


def test_a_skip_past_what_is_known_moves_nothing(run: Foreseen) -> None:
    run.end = 15
    assert not run.skip_batches(4, 4)
    assert run.position.rows == 0


def test_a_resumed_run_reads_no_lengths_before_it_needs_them() -> None:
    recipe = tiny_recipe([9])
    start = Position.start(recipe)
    lengths = _Lengths((), recipe, Path("/dev/null/cache"), start)
    assert "of_samples" not in vars(lengths.of(recipe, start))
    known: Any = "the lengths"
    lengths.of_samples = known
    assert lengths.of(recipe, start).of_samples is known


def test_a_run_that_larger_batches_padded_past_its_end_may_stay_there() -> None:
    recipe: Any = tiny_recipe([9], packing="one_per_row", epochs=1, frames=[(1, None)])
    padded = replace(Position.start(recipe), rows=16, table_rows=16)
    run = CurrentRun(recipe, recipe, RunLog(padded), None)
    assert run.find_position(16, 2) == padded
    with pytest.raises(ValueError, match="rows is 18, but the run has 9 rows"):
        run.find_position(18, 2)
    with pytest.raises(ValueError, match="rows is 15, but the loader is already at row 16"):
        run.find_position(15, 2)


# ---------------------------------------------------------------- membership


class Closed(Exchange):
    """An exchange that records how often it is closed."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class TwoNodes(Environment):
    """A world of four ranks, two on each node, unless the loader is told another."""

    def find_world(self, delivery: DeliveryConfig) -> World:
        return World(delivery.dp_rank or 0, delivery.dp_world_size or 4, 2)

    def open_exchange(self, delivery: DeliveryConfig) -> Exchange:
        return Closed()


@pytest.fixture
def member() -> Membership:
    return Membership(TwoNodes(), DeliveryConfig(batch_size=3))


def test_a_member_of_another_world_has_its_rank_and_batch_size(member: Membership) -> None:
    assert (member.world, member.global_batch) == (World(0, 4, 2), 12)
    same_batch = member.moved(5, 6, None, None)
    assert (same_batch.world, same_batch.global_batch) == (World(5, 6, 2), 18)
    assert same_batch.environment is member.environment
    assert member.moved(5, 6, 2, None).global_batch == 12
    assert member.moved(5, 6, None, 3).world == World(5, 6, 3)
    assert member.moved(1, 2, None, 8).world == World(1, 2, 2)  # a node has at most all ranks


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((6, 6, None, None), "rank is 6"),
        ((-1, 6, None, None), "rank is -1"),
        ((0, 0, None, None), "world size is 0"),
        ((0.5, 6, None, None), "rank is 0.5"),
        ((0, "6", None, None), "size is '6'"),
        ((0, 6, 0, None), "batch_size is 0"),
        ((0, 6, None, 0), "ranks_per_node is 0"),
    ],
)
def test_an_impossible_world_is_refused(
    member: Membership, numbers: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        member.moved(*numbers)


def test_a_connection_is_opened_once_and_closed_once(member: Membership) -> None:
    member.disconnect()
    first = member.connect()
    assert member.connect() is first
    member.disconnect()
    member.disconnect()
    assert isinstance(first, Closed)
    assert first.closed == 1
    assert member.connect() is not first
