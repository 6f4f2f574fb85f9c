"""A plan enters its next phase, and each worker receives its own part of a change."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cloudload.loading.workers.worker_plan import NextPhase, Phase, Request, WorkerPlan
from cloudload.order import StepShape, World, share_rows
from cloudload.run.position import Position
from testkit.tiny_runs import tiny_recipe

RECIPE = tiny_recipe([9], num_lanes=8)
START = Position.start(RECIPE)


@pytest.fixture
def plan() -> WorkerPlan:
    """The plan of rank 1 of 2, with two workers and 4 rows per step, after a jump."""
    lanes = [component.lanes for component in RECIPE.components]
    share = share_rows(lanes, World(1, 2, 2), StepShape(8, 2), num_workers=2)
    unused: Any = None
    return WorkerPlan(unused, unused, share, START, Phase(), has_jumped=True)


def test_the_next_phase_starts_at_its_position_and_checks_no_lengths_again(
    plan: WorkerPlan,
) -> None:
    change = NextPhase(replace(START, rows=8), Phase(pause=16, request=Request()))
    after = plan.enter(change)
    assert (after.position, after.phase) == (change.position, change.phase)
    assert (after.share, after.has_jumped) == (plan.share, False)


def test_a_worker_receives_only_the_documents_that_others_read_for_it(plan: WorkerPlan) -> None:
    of_first, of_second = SimpleNamespace(), SimpleNamespace()
    documents: Any = (of_first, of_second)
    change = NextPhase(START, Phase(), documents)
    part = plan.part_of(change, 1)
    assert (part.position, part.phase) == (change.position, change.phase)
    assert [*part.documents] == [of_second]
    assert plan.part_of(replace(change, documents=()), 1).documents == ()


@pytest.mark.parametrize(
    ("end", "of_worker_0", "of_worker_1"),
    [
        (16, [9, 13], [11, 15]),  # lanes 1 and 5, 3 and 7
        (17, [9, 13, 17, 21], [11, 15, 19, 23]),  # the last batch is padded
        (8, [], []),
        (5, [], []),
    ],
)
def test_a_worker_receives_only_its_own_rows_of_a_measured_tail(
    plan: WorkerPlan, end: int, of_worker_0: list[int], of_worker_1: list[int]
) -> None:
    measured: Any = SimpleNamespace(packed="all", end=end, take=lambda rows: rows.tolist())
    change = NextPhase(replace(START, rows=8), Phase(measured, pause=99))
    for worker, rows in enumerate((of_worker_0, of_worker_1)):
        part = plan.part_of(change, worker)
        assert part.phase == Phase(rows, pause=99)  # type: ignore[arg-type]
        assert part.position is change.position
    known: Any = SimpleNamespace(packed=None)
    assert plan.part_of(NextPhase(START, Phase(known)), 0).phase.ending is known


@pytest.mark.parametrize(
    ("table_rows", "rows", "ranges"),
    [
        (8, 8, []),
        (8, 9, [(8, 9)]),
        (8, 4_104, [(8, 4_104)]),  # 2,048 rows of each rank
        (8, 4_105, [(8, 4_104), (4_104, 4_105)]),
    ],
)
def test_rows_to_read_again_are_read_in_ranges(
    plan: WorkerPlan, table_rows: int, rows: int, ranges: list[tuple[int, int]]
) -> None:
    plan = replace(plan, position=replace(START, rows=rows, table_rows=table_rows))
    assert list(plan.replays()) == ranges


def test_the_tails_are_opened_once_and_are_no_part_of_a_pickle(plan: WorkerPlan) -> None:
    assert plan.tails is None
    ending: Any = SimpleNamespace()
    inputs: Any = SimpleNamespace(open_tails=lambda ending: SimpleNamespace(ending=ending))
    plan = replace(plan, inputs=inputs, phase=Phase(ending))
    assert plan.tails is not None
    assert plan.tails.ending is ending
    assert plan.tails is plan.tails
    assert plan.__getstate__().keys() == WorkerPlan.__dataclass_fields__.keys()
