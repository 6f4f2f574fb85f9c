"""Start a run from a StreamingDataset's state, right after the samples that the dataset has read.

    11 samples in 4 canonical nodes    node 0: 0 1 · node 1: 2 3 4 · node 2: 5 6 7 · node 3: 8 9 10
    Streaming reads column by column   0 2 5 8 · 1 3 6 9 · 1 4 7 10
    our canonical order                0 2 5 8 · 1 3 6 9 ·   4 7 10
    10 samples read                    the first 9 of our order, because Streaming repeated sample 1

With the partition algorithms `orig` and `relaxed`, StreamingDataset has read a prefix of this order
at the end of each step, on any number of physical nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cloudload.errors import StreamChangedError
from cloudload.order import default_block_size
from cloudload.run.position import Origin, Position
from cloudload.run.recipe import Recipe
from cloudload.run.state_fields import damaged, find_nested, is_state, show


@dataclass(frozen=True)
class StreamingState:
    """The parts of a StreamingDataset's state that determine the next sample."""

    epoch: int
    """The epoch, from 0."""
    sample_in_epoch: int
    """Number of samples of the epoch that all ranks together have read, including repeats."""
    num_canonical_nodes: int
    shuffle_seed: int


def start_from_streaming(recipe: Recipe, state: Mapping[str, Any]) -> tuple[Recipe, Position]:
    """Compute the recipe and the position of a run that continues where a StreamingDataset stopped.

    The new recipe has the state's canonical nodes. Unless the config sets a shuffle block size, it
    has StreamingDataset's default. Raises `StreamChangedError` if this recipe cannot continue from
    the state.
    """
    saved = read_streaming_state(state)
    config = recipe.config
    if config.is_mixed:
        raise StreamChangedError(
            "the streams have proportions or a schedule, so each has a separate order, but "
            "StreamingDataset reads all streams in one order. Use repeat or choose instead, "
            "because StreamingDataset itself converts its proportions to choose"
        )
    if config.shuffle_algo == "seekable":
        raise StreamChangedError(
            "shuffle_algo: StreamingDataset has no 'seekable'. Create the loader with the "
            "shuffle_algo of the dataset, whose default is 'py1e'"
        )
    _compare("seed", "shuffle_seed", config.seed, saved.shuffle_seed)
    if config.num_canonical_nodes is not None:
        name = "num_canonical_nodes"
        _compare(name, name, config.num_canonical_nodes, saved.num_canonical_nodes)
    num_samples = recipe.components[0].num_positions
    if num_samples <= saved.num_canonical_nodes:
        raise StreamChangedError(
            f"num_canonical_nodes: the state has {saved.num_canonical_nodes:,} for {num_samples:,} "
            "samples. With so few samples, StreamingDataset repeats some in many places, so this "
            "loader has no equivalent position. Start a new run"
        )
    nodes = saved.num_canonical_nodes
    block_size = config.shuffle_block_size or default_block_size(nodes)
    recipe = recipe.reconfigure(num_canonical_nodes=nodes, shuffle_block_size=block_size)
    count = count_read(saved.sample_in_epoch, num_samples, nodes)
    origin = Origin(saved.epoch, count)
    recipe = replace(recipe, fair_from=origin.first_ordinal(recipe.components[0].lanes))
    if config.epochs is not None and (saved.epoch, count) >= (config.epochs - 1, num_samples):
        raise StreamChangedError(
            f"epoch: the state has read {saved.epoch} epochs and {count:,} of {num_samples:,} "
            f"samples, but the loader has epochs={config.epochs}, so nothing is left to read. Use "
            "more epochs"
        )
    return recipe, Position.start(recipe, origin)


def count_read(sample_in_epoch: int, num_samples: int, num_nodes: int) -> int:
    """The number of different positions among the first `sample_in_epoch` of an epoch.

    Each node has `num_samples // num_nodes` samples or one more. At the end of a node that does not
    have one more, StreamingDataset repeats a sample. An epoch has no other repeats.
    """
    whole = num_samples // num_nodes
    in_last_column = min(max(0, sample_in_epoch - whole * num_nodes), num_nodes)
    added = in_last_column * num_samples // num_nodes - in_last_column * whole
    return min(sample_in_epoch, whole * num_nodes) + added


def read_streaming_state(state: Mapping[str, Any]) -> StreamingState:
    """Parse a StreamingDataset's `state_dict()`, or find it in a Composer checkpoint.

    In a checkpoint, the epoch and the sample are taken from Composer's timestamp. At the end of an
    epoch, the dataset's own epoch is one behind, so Streaming would read that epoch again. Raises
    `StreamChangedError` if there is no such state, or if it is damaged.

    """
    composer = state.get("state", state) if isinstance(state, Mapping) else state
    if isinstance(composer, Mapping) and "dataset_state" in composer:
        own = (composer["dataset_state"] or {}).get("train")
        if own is None:
            raise StreamChangedError(
                "the Composer checkpoint has no state of a training dataset. Pass a checkpoint of "
                "a run that trained on a StreamingDataset"
            )
        timestamp = (composer.get("timestamp") or {}).get("Timestamp", {})
        state = {**own, **{name: timestamp.get(name) for name in ("epoch", "sample_in_epoch")}}
    if (path := find_nested(state, is_state)) is not None:
        path = f" contains, at {path}," if path else " is"
        raise StreamChangedError(f"this{path} a CloudLoader's state. Use loader.load_state_dict")
    names = StreamingState.__dataclass_fields__
    missing = [name for name in names if not isinstance(state, Mapping) or name not in state]
    if missing:
        raise StreamChangedError(
            f"this is not a StreamingDataset's state: it has no {', '.join(missing)}. Pass the "
            "dataset's state_dict(), or a Composer checkpoint loaded with torch.load"
        )
    values = {name: state[name] for name in names}
    if values["epoch"] == -1:
        raise StreamChangedError(
            "epoch: the state has -1, so its dataset was never iterated over. Start the run "
            "without this state"
        )
    for name, value in values.items():
        least = int(name == "num_canonical_nodes")
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            what = f"the state has {show(value)}, which is not a whole number of at least {least}"
            raise damaged(name, what)
    return StreamingState(**values)


def _compare(ours: str, theirs: str, value: int, saved: int) -> None:
    if value != saved:
        raise StreamChangedError(
            f"{theirs}: the state has {saved}, but the loader has {ours}={value}. Create the "
            f"loader with {ours}={saved}"
        )
