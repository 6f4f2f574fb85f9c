"""Save the current run as a state, and resume the run of a saved state."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from cloudload.errors import RanksDisagreeError
from cloudload.loading.delivery.run_log import RunLog
from cloudload.loading.session.current_run import CurrentRun, Membership
from cloudload.run import (
    Saved,
    State,
    accept_changes,
    build_state,
    read_state,
    resume_position,
    resume_recipe,
)

logger = logging.getLogger("cloudload.loader")


def save(run: CurrentRun, lag: int) -> State:
    """Return the state `lag` batches ago. Raises the errors of `CloudLoader.state_dict`."""
    position = run.log.past(lag)
    check_knows_all_lanes(run.log)
    return build_state(run.settled_recipe, position, run.backend.versions)


def check_knows_all_lanes(log: RunLog) -> None:
    """Raise `RanksDisagreeError` if this rank does not know the cursors of other ranks."""
    if not log.knows_all_lanes and log.has_read:
        raise RanksDisagreeError(
            "the ranks cannot communicate and have no token lengths, so no rank knows the whole "
            "state. Run cloudload count once to count token lengths, or initialize "
            "torch.distributed before iterating"
        )


def resume_run(
    run: CurrentRun, member: Membership, state: Mapping[str, Any], on_change: Mapping[str, str]
) -> CurrentRun:
    """Return the run that continues from a state.

    Raises the errors of `CloudLoader.load_state_dict`.
    """
    saved = read_state(state)
    recipe = resume_recipe(saved, run.opened.recipe)
    changes = accept_changes(saved, recipe, on_change)
    resumed = run.resumed(recipe, resume_position(saved, recipe, changes))
    resumed.check_world(member.world.size)
    if member.is_first:
        _log_resumed(resumed, saved)
    return resumed


def _log_resumed(run: CurrentRun, saved: Saved) -> None:
    """Log the data that the resumed run leaves out, and a change of the tokenizer backend."""
    for stream, dataset in zip(run.recipe.config.streams, run.recipe.corpus.datasets, strict=True):
        if dataset.num_left_out:
            count = len(dataset.shards)
            logger.info(
                f"{stream.label}: this run reads only the first {count:,} of "
                f"{count + dataset.num_left_out:,} shards, because the others were added after it "
                "began. A new run reads all shards"
            )
    if saved.tokenizer_backend != run.backend.versions:
        logger.info(
            "the state was saved with %s. The run continues with %s, %s",
            saved.tokenizer_backend,
            run.backend.versions,
            "which produces the same IDs for a fixed set of texts"
            if "token_ids" in saved.fields
            else "whose IDs cannot be compared, because the state has no token_ids",
        )
