"""Open the run that a loader's options specify.

RowsConfig ─────► recipe: data, tokenizer, layout ─► token lengths
DeliveryConfig ─► cache folder, tokenizer backend
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudload.config import DeliveryConfig, RowsConfig, choices
from cloudload.data import cache_folder, urls
from cloudload.loading.delivery.start_log import StartLog
from cloudload.loading.delivery.world import rank_in_mesh
from cloudload.rows import Choice, choose_backend, start_loading
from cloudload.run import (
    Recipe,
    find_lengths,
    length_files,
    open_recipe,
    open_tokenizer,
)
from cloudload.system import activity, paused_collection


@dataclass(frozen=True)
class OpenedRun:
    """A run as its options define it, before a state is loaded."""

    recipe: Recipe
    backend: Choice
    """The tokenizer backend."""
    cache_root: Path
    asked_lengths: str
    """The option `lengths`."""
    lengths: Sequence[length_files.CountedDataset] | None
    """The token lengths found for the data, or None if there are none."""


def ranks_of(
    device_mesh: Any, dp_rank: int | None, dp_world_size: int | None
) -> tuple[int | None, int | None]:
    """Return the rank and the number of ranks that a loader's arguments specify, or None for both.

    Raises `ValueError` if both a mesh and a rank or world size are given.
    """
    if device_mesh is None:
        return dp_rank, dp_world_size
    if dp_rank is not None or dp_world_size is not None:
        raise ValueError(
            f"device_mesh is set, but dp_rank is {dp_rank} and dp_world_size is {dp_world_size}. "
            "Pass either device_mesh, or dp_rank and dp_world_size"
        )
    return rank_in_mesh(device_mesh)


def open_current_run(
    asked: RowsConfig, delivery: DeliveryConfig, tokenizer: Any, start_log: StartLog
) -> OpenedRun:
    """Open the data, the tokenizer, its backend, and the token lengths.

    Raises `CloudloadError` if one of them, or a store, cannot be used, and `ValueError` if the
    options do not suit the data.
    """
    with activity.Wait(None, "opening the data", start_log.notice):
        return _open_run(asked, delivery, tokenizer, start_log)


def _open_run(
    asked: RowsConfig, delivery: DeliveryConfig, tokenizer: Any, start_log: StartLog
) -> OpenedRun:
    local, retry, lengths = delivery.local, delivery.retry, os.fspath(delivery.lengths)
    cache_root = urls.expand_home(local) if local else cache_folder.default_cache()
    cache_folder.check_cache_folder(cache_root, [stream.url for stream in asked.streams])
    with paused_collection():
        with activity.doing("loading the tokenizer"):
            spec = open_tokenizer(asked, tokenizer, cache_root)
        text = spec.json if asked.has_text else ""
        with activity.doing("checking the tokenizer backend"):
            backend = choose_backend(text, delivery.tokenizer_backend, cache_root)
        if backend.name == choices.FASTOKENS and delivery.shares_tokenizer:
            start_loading(text)  # in a thread, while the index is read and the model created
        with activity.doing("reading the index"):
            recipe = open_recipe(asked, tokenizer, retry, spec, cache_root)
    start_log.log_opened(recipe, backend)
    with activity.doing("looking for token lengths"):
        found = find_lengths(recipe, lengths)
    return OpenedRun(recipe, backend, cache_root, lengths, found)
