"""Keep a saved run's bos and eos if the tokenizer's files, or the rules for "auto", changed."""

from __future__ import annotations

import logging
import re
from dataclasses import replace

from cloudload.errors import StreamChangedError
from cloudload.run.recipe import TOKENS_FIELD, Recipe
from cloudload.run.sources import read_sources
from cloudload.run.state import Saved
from cloudload.run.state_codec import show

logger = logging.getLogger("cloudload.resume")


def keep_framing(saved: Saved, recipe: Recipe) -> Recipe:
    """Return a recipe with the saved bos and eos if the run and the loader both use "auto".

    Without this, the state would be refused if the tokenizer's config file changed, or if a new
    version of cloudload changed the rules for "auto".
    """
    texts = str(saved.fields["bos_eos"]).split(",")
    if texts == recipe.fields["bos_eos"].split(",")[: len(texts)]:
        return recipe
    columns = str(saved.fields[TOKENS_FIELD]).split(",")
    is_same = (
        saved.fields["tokenizer"] == recipe.fields["tokenizer"]
        and columns == recipe.fields[TOKENS_FIELD].split(",")[: len(columns)]
    )
    if not is_same or not _is_automatic(saved.sources) or not _is_automatic(recipe.sources):
        return recipe
    tokenizer = recipe.tokenizer
    pairs = [re.fullmatch(r"(None|\d{1,9})/(None|\d{1,9})", text) for text in texts]
    frames = tuple((_read_id(pair[1]), _read_id(pair[2])) for pair in pairs if pair)
    known = [number < tokenizer.vocab_size for pair in frames for number in pair if number]
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
