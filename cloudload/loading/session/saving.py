"""Save the current run as a state, and find the recipe and the position of a saved state."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cloudload.errors import RanksDisagreeError, StreamChangedError
from cloudload.loading.delivery.run_log import RunLog
from cloudload.loading.session.current_run import CurrentRun
from cloudload.run import (
    Position,
    Recipe,
    Saved,
    State,
    build_state,
    describe_left_out,
    keep_beginning,
    read_sources,
    resume_mixture,
    resume_packing,
    resume_position,
    show,
    state_fields,
)

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
            "the ranks cannot communicate and have no token lengths, so no rank knows the whole "
            "state. Run cloudload count once to count token lengths, or initialize "
            "torch.distributed before iterating"
        )


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


def keep_framing(saved: Saved, recipe: Recipe) -> Recipe:
    """Return a recipe with the saved bos and eos if the run and the loader both use "auto".

    Without this, the state would be refused if the tokenizer's config file changed, or if a new
    version of cloudload changed the rules for "auto".
    """
    texts = str(saved.fields["bos_eos"]).split(",")
    if texts == recipe.fields["bos_eos"].split(",")[: len(texts)]:
        return recipe
    columns = str(saved.fields[state_fields.TOKENS_FIELD]).split(",")
    is_same = (
        saved.fields["tokenizer"] == recipe.fields["tokenizer"]
        and columns == recipe.fields[state_fields.TOKENS_FIELD].split(",")[: len(columns)]
    )
    if not is_same or not _is_automatic(saved.sources) or not _is_automatic(recipe.sources):
        return recipe
    tokenizer = recipe.tokenizer
    pairs = [re.fullmatch(r"(None|\d{1,9})/(None|\d{1,9})", text) for text in texts]
    frames = tuple((_read_id(pair[1]), _read_id(pair[2])) for pair in pairs if pair)
    known = [token_id < tokenizer.vocab_size for pair in frames for token_id in pair if token_id]
    if len(frames) < len(pairs) or len(frames) > len(tokenizer.frames) or not all(known):
        return recipe
    logger.warning(
        "bos_eos: the tokenizer's files now specify %s, but the run continues with %s from the "
        "state. To change the IDs, pass bos and eos, and on_change={'bos_eos': 'accept'}",
        show(recipe.fields["bos_eos"]),
        show(saved.fields["bos_eos"]),
    )
    frames += tokenizer.frames[len(frames) :]
    return replace(recipe, tokenizer=replace(tokenizer, frames=frames))


def _is_automatic(sources: str) -> bool:
    try:
        return read_sources(sources).has_automatic_framing
    except StreamChangedError:
        return False


def _read_id(text: str) -> int | None:
    return None if text == "None" else int(text)
