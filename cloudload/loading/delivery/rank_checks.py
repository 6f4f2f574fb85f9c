"""The values that all ranks must agree on before they exchange messages."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cloudload.config import DeliveryConfig, choices
from cloudload.errors import RanksDisagreeError
from cloudload.order import World
from cloudload.rows import tables
from cloudload.run import Position, Recipe, RunInputs, state_fields
from cloudload.system import NEVER

_RANKS_PER_NODE = (
    "ranks per node, from LOCAL_WORLD_SIZE (set it to 1 if nodes have different numbers of ranks)"
)
_LENGTHS, _ORDER = "lengths", "order (the hash of its first samples)"
_COMPARED_POSITIONS = 1024
_NOT_FOUND = "not found"


def list_facts(
    inputs: RunInputs, delivery: DeliveryConfig, world: World, position: Position
) -> dict[str, Any]:
    """Return the values that must be equal on all ranks, by the names used in error messages.

    `position` is that of the run. Raises `CacheError` if an order cannot be written.
    """
    recipe, lengths = inputs.recipe, inputs.lengths
    residues = b"" if position.residues is None else b"".join(position.residues.ravel().tolist())
    return {
        **recipe.fields,
        "seq_len": recipe.config.seq_len,
        "mixture": recipe.mixture.to_json(),
        "batch_size": delivery.batch_size,
        "global_batch_size": delivery.global_batch_size,
        "micro_batch_size": delivery.micro_batch_size,
        "balance": delivery.balance,
        "tail": delivery.tail,
        "exchange_every": delivery.exchange_every,
        "stop_every": delivery.stop_every,
        "world_size": world.size,
        _RANKS_PER_NODE: world.ranks_per_node,
        "rows": position.rows,
        "table_rows": position.table_rows,
        _LENGTHS: lengths.digest if lengths else _describe_missing(delivery),
        # a single rank need not wait until its orders are built
        _ORDER: _hash_orders(inputs, position) if world.size > 1 else "",
        "cursors": hashlib.sha256(position.cursors.tobytes() + residues).hexdigest()[:16],
    }


def _hash_orders(inputs: RunInputs, position: Position) -> str:
    """The hash of the first samples in the order of the latest epoch of each component."""
    digest = hashlib.sha256()
    recipe = inputs.recipe
    for component, cursors in zip(recipe.components, position.cursors, strict=True):
        lanes = component.lanes
        epochs, _ = lanes.epoch_positions(
            np.arange(recipe.num_lanes), cursors[:, tables.CURSOR_ORDINAL]
        )
        order = component.orders(inputs.cache_root)(
            min(int(epochs.max()), (lanes.epochs or NEVER) - 1)
        )
        first = np.arange(min(_COMPARED_POSITIONS, lanes.num_positions))
        digest.update(order[first].astype("<i8").tobytes())
    return digest.hexdigest()[:16]


def _describe_missing(delivery: DeliveryConfig) -> str:
    return _NOT_FOUND if delivery.lengths == choices.AUTO else choices.OFF


def differ_in_found_lengths(differing: Mapping[str, Sequence[Any]]) -> bool:
    """Whether ranks differ only because some looked for token lengths before they were written.

    `differing` maps the name of each differing value to the values of all ranks.
    """
    found = differing.get(_LENGTHS, ())
    return len(differing) == 1 and _NOT_FOUND in found and choices.OFF not in found


def advise_on_difference(names: Sequence[str]) -> str:
    """Return the next step for an error message. `names` are the values that differ."""
    if "data" in names:
        return (
            "If data was appended or rewritten while the job was starting, restart the job. "
            "Otherwise, use the same config and load the same state on every rank"
        )
    if {state_fields.ORDER_FIELD, _ORDER} & set(names):
        return (
            "Use the same version of NumPy on every rank, because another one may shuffle "
            f"differently (this rank has NumPy {np.__version__}). If the versions are the same, "
            "remove the folder `orders` in the cache folder of each node"
        )
    return "Use the same config and load the same state on every rank"


def check_can_end(recipe: Recipe, delivery: DeliveryConfig, world: World) -> None:
    """Raise `RanksDisagreeError` if ranks without communication must end on the same step.

    This is the case with `epochs` or stop_every="epoch". Do not call this if all ranks can compute
    that step from token lengths.
    """
    epochs = recipe.config.epochs
    if epochs is None and delivery.stop_every != choices.EPOCH:
        return
    end = f"epochs={epochs}" if epochs else "stop_every='epoch'"
    raise RanksDisagreeError(
        f"with {end}, the {world.size} ranks must communicate to end on the same step. Initialize "
        "torch.distributed before iterating, run cloudload count to count token lengths, or omit "
        f"{end.partition('=')[0]} and use take(n)"
    )
