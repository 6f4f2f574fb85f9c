"""Save the current run as a state, and find the recipe and the position of a saved state."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cloudload.errors import RanksDisagreeError
from cloudload.loading.delivery.run_log import RunLog
from cloudload.loading.session.current_run import CurrentRun
from cloudload.loading.session.membership import Membership
from cloudload.run.appended import describe_left_out, keep_beginning
from cloudload.run.framing import keep_framing
from cloudload.run.local_states import mask_lanes
from cloudload.run.position import Position
from cloudload.run.recipe import Recipe
from cloudload.run.resume import resume_mixture, resume_packing, resume_position
from cloudload.run.state import Saved, State, build_state

logger = logging.getLogger("cloudload.loader")


def save(run: CurrentRun, lag: int) -> State:
    """Return the state `lag` batches ago. Raises the errors of `CloudLoader.state_dict`."""
    position = run.log.past(lag)
    check_knows_all_lanes(run.log)
    run.settle()
    return build_state(run.recipe, position, run.backend.versions)


def check_knows_all_lanes(log: RunLog) -> None:
    """Raise `RanksDisagreeError` if this rank does not know the cursors of other ranks."""
    if not log.knows_all_lanes and log.has_read:
        raise RanksDisagreeError(
            "the ranks cannot communicate, so no rank knows the whole state. Initialize "
            "torch.distributed before iterating, or save local_state_dict() on every rank, and "
            "load the result of merge_state_dicts([...])"
        )


def save_part(run: CurrentRun, member: Membership, lag: int) -> State:
    """Return the rank's part of the state `lag` batches ago.

    Raises the errors of `CloudLoader.local_state_dict`.
    """
    run.settle()
    log, world = run.log, member.world
    position = mask_lanes(log.past(lag), world.lanes(run.recipe.num_lanes))
    if world.index:
        # only the first rank's part has the statistics that all ranks know, so that they count
        # once in the sum of all parts
        known = position.counts if log.knows_all_lanes else log.started_at.counts
        position = position.with_lanes(counts=position.counts - known)
    part = f"{world.index}/{world.size}"
    return build_state(run.recipe, position, run.backend.versions, part)


def find_resumed(
    run: CurrentRun, saved: Saved, on_change: Mapping[str, str]
) -> tuple[Recipe, Position]:
    """Return the recipe and the position with which a saved run continues.

    Raises the errors of `CloudLoader.load_state_dict`.
    """
    opened = keep_beginning(saved, run.opened_recipe)
    recipe = resume_packing(saved, keep_framing(saved, opened.settle(saved.layout)))
    position = resume_position(saved, recipe, on_change)
    return replace(recipe, mixture=resume_mixture(saved, recipe)), position


def log_resumed(run: CurrentRun, state: Mapping[str, Any]) -> None:
    """Log the data that the resumed run leaves out, and a change of the tokenizer backend."""
    for line in describe_left_out(run.recipe):
        logger.info("%s", line)
    if state["tokenizer_backend"] != run.backend.versions:
        logger.info(
            "the state was saved with %s. The run continues with %s, %s",
            state["tokenizer_backend"],
            run.backend.versions,
            "which produces the same IDs for a fixed set of texts"
            if "token_ids" in state
            else "whose IDs cannot be compared, because the state has no token_ids",
        )
