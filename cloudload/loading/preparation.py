"""Prepare an iteration: plan its workers, and compute its end and its lanes from token lengths.

make_worker_plan   run, position, world ─► WorkerPlan
take_share         the lanes, rows and workers of a rank
foresee            the end of a finite run, if the lengths determine it
find_known         the lanes of all ranks, if the lengths determine them
check_alone        whether ranks that cannot communicate can read the run
check_balance      whether the option `balance` has an effect
"""

from __future__ import annotations

import functools
import logging
from dataclasses import replace

from cloudload.config import DeliveryConfig
from cloudload.data import cache_folder
from cloudload.loading.current_run import CurrentRun
from cloudload.loading.delivery import progress
from cloudload.loading.delivery.exchange import Exchange
from cloudload.loading.delivery.rank_checks import check_can_end
from cloudload.loading.delivery.working_set import check_cache_limit, open_current_orders
from cloudload.loading.delivery.world import (
    Membership,
    count_cores,
    default_num_workers,
    explain_lone_rank,
)
from cloudload.loading.workers.worker_plan import Phase, WorkerPlan
from cloudload.order import RankShare, StepShape, World, share_rows
from cloudload.run import RunInputs
from cloudload.system import NEVER

logger = logging.getLogger("cloudload.loader")


def make_worker_plan(run: CurrentRun, member: Membership) -> WorkerPlan:
    """Create the plan of a member's workers, starting at the run's position.

    Raises `ValueError` if the ranks cannot share the lanes, and `CacheError` if lengths cannot be
    read into the cache folder.
    """
    reached = run.log.progress
    position, has_jumped = reached.positions[-1], reached.has_jumped
    if position.table_rows < position.rows:
        advanced = run.advance(position, position.rows)
        position, has_jumped = advanced or position, has_jumped or advanced is not None
    run.check_world(member)
    return WorkerPlan(
        inputs=run.inputs,
        delivery=member.delivery,
        share=take_share(run.inputs, member.delivery, member.world),
        position=position,
        phase=Phase(run.ending),
        has_jumped=has_jumped and run.inputs.lengths is not None and member.is_first,
    )


def take_share(
    inputs: RunInputs, delivery: DeliveryConfig, world: World, cores: tuple[int, int] | None = None
) -> RankShare:
    """Return the share of the world's rank: its lanes, its rows of a step, and its workers.

    `cores` are those of a process and of its node, by default of this process. Raises `ValueError`
    if a step has fewer rows than ranks.
    """
    recipe, num_workers = inputs.recipe, delivery.num_workers
    if num_workers is None:
        is_fast = inputs.backend.is_fast and all(each.is_fast for each in recipe.config.sources)
        cores = cores or count_cores()
        num_workers = default_num_workers(world.ranks_per_node, *cores, is_fast=is_fast)
    num_workers = min(max(1, num_workers), max(1, recipe.num_lanes // world.size))
    lanes = [component.lanes for component in recipe.components]
    shape, balances = StepShape.of(delivery, world.size), delivery.balance is not None
    return share_rows(lanes, world, shape, num_workers, balances=balances)


def check_cache_limit_of(run: CurrentRun, member: Membership) -> None:
    """Raise `CacheError` if `cache_limit` is below the working set of a member's node."""
    if member.delivery.cache_limit_bytes() is None:
        return
    plan = make_worker_plan(run, member)
    cache_folder.open_cache_folder(plan.inputs.cache_root)
    orders = open_current_orders(plan.inputs, plan.share, plan.position)
    check_cache_limit(run.recipe, member.delivery, plan.share, orders)


def foresee(run: CurrentRun, plan: WorkerPlan, exchange: Exchange) -> WorkerPlan:
    """Add the end of a finite run to its plan, if the lengths determine it."""
    lengths = run.lengths
    if lengths is None or not plan.recipe.has_tails or plan.ending is not None:
        return plan
    share = plan.share
    is_needed = (exchange.is_alone and share.world_size > 1) or not share.has_whole_lanes
    if not lengths.can_foresee(plan.position, is_needed=is_needed):
        return plan
    pauses = len(set(share.world.hosts)) > 1 and share.is_even and not exchange.is_alone
    ending, pause = lengths.find_tails(plan.position).ending, NEVER
    if pauses:
        pause = share.end_whole_batches(plan.position.rows, ending.lane_ends[0])
    return replace(plan, phase=Phase(ending, pause))


def find_known(run: CurrentRun, plan: WorkerPlan, exchange: Exchange) -> progress.KnownLanes | None:
    """Return the lanes of all ranks, or None if ranks must exchange them or there is one rank."""
    lengths = run.lengths
    if lengths is not None and plan.ending is not None and len(plan.recipe.components) > 1:
        return progress.KnownLanes(lengths, plan.position)
    if plan.share.world_size == 1 or lengths is None:
        return None
    # computing all best_fit lanes takes time, and workers know their own lanes anyway
    has_lanes = plan.share.has_whole_lanes
    is_exchanged = plan.recipe.packing.has_residue and has_lanes and not exchange.is_alone
    is_known = plan.ending is not None or not plan.recipe.has_tails
    return progress.KnownLanes(lengths, plan.position) if is_known and not is_exchanged else None


def check_alone(
    run: CurrentRun, member: Membership, exchange: Exchange, known: progress.KnownLanes | None
) -> None:
    """Warn ranks that cannot communicate, and refuse a run that they could not end together."""
    world, delivery = member.world, member.delivery
    if world.size == 1 and delivery.dp_rank is None and (warning := explain_lone_rank()):
        _warn_once(warning)
    if world.size == 1 or not exchange.is_alone:
        return
    if known is None:
        check_can_end(run.recipe, delivery, world)
        if run.log.knows_all_lanes and member.environment.saves_states:
            logger.warning(
                "torch.distributed is not initialized, so the %d ranks of %s cannot "
                "exchange cursors. The data has no token lengths either, so state_dict() will "
                "raise an error. Run cloudload count once, or call init_process_group before "
                "iterating",
                world.size,
                "WORLD_SIZE" if delivery.dp_rank is None else "dp_world_size",
            )
    run.log.knows_all_lanes = known is not None


def check_balance(share: RankShare, delivery: DeliveryConfig) -> None:
    """Warn if several ranks have the option `balance`, but it has no effect."""
    if delivery.balance is None or share.world_size == 1:
        return
    why = None
    if not share.is_balanced:
        why = "each node has a single rank, and rows do not move between nodes"
    elif share.shape.rank_rows == 1:
        why = "each rank has one row per step. Use a larger batch"
    if why is not None:
        _warn_once(f"balance has no effect, because {why}")


@functools.cache
def _warn_once(warning: str) -> None:
    logger.warning("%s", warning)
