"""Compute the key of lengths, by which a run finds the lengths that match its recipe."""

from __future__ import annotations

import json

from cloudload.config.choices import RAISE
from cloudload.run.lengths.index import LengthsKey
from cloudload.run.recipe import Recipe


def make_key(recipe: Recipe, stream: int) -> LengthsKey:
    """The key of the lengths of one stream of a recipe, given by its index."""
    column = recipe.config.token_columns[stream]
    if column is not None:
        return LengthsKey("", "", json.dumps(["tokens", *column]))
    config = recipe.config
    skips = [config.on_error] if config.on_error != RAISE else []
    documents = json.dumps(["text", config.text_key, config.transform_name, *skips])
    return LengthsKey(recipe.tokenizer.fingerprint, recipe.tokenizer.token_ids, documents)
